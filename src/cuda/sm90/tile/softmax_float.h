// Online softmax over scores in float32, for 16-bit probabilities.
#pragma once

#include <cstdint>

#include "cuda/sm90/ptx/half2.h"

namespace fp8attn::cuda {

// As SoftmaxHalf, for a float accumulator: register 4 j + 2 i + c holds column 8 j + 2 (lane % 4) + c of row i. The
// probabilities lie as the A operands of k16 products. Pack makes one register of two floats.
template <class Pack>
class SoftmaxFloat {
 public:
  __device__ void reset(const float (&multiplier)[2]) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      multiplier_[i] = multiplier[i];
      maximum_[i] = -INFINITY;
      sum_[i] = 0.0f;
    }
  }

  // Takes note of the largest scores of a new step.
  template <int kParts, int kRegisters>
  __device__ void raise_maxima(const float (&scores)[kParts][kRegisters]) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      step_maximum_[i] = scores[0][2 * i];
#pragma unroll
      for (const auto& part : scores) {
#pragma unroll
        for (int j = 0; j < kRegisters / 4; ++j) {
          step_maximum_[i] = fmaxf(step_maximum_[i], fmaxf(part[4 * j + 2 * i], part[4 * j + 2 * i + 1]));
        }
      }
    }
  }

  // Behind raise_maxima(): prepares the step's probabilities, and gives the factor that rescales what was summed
  // before.
  template <int kParts, int kRegisters>
  __device__ void prepare(float (&scores)[kParts][kRegisters], float (&rescale)[2]) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      float maximum = step_maximum_[i];
      maximum = fmaxf(maximum, __shfl_xor_sync(0xFFFFFFFFu, maximum, 1));
      maximum = fmaxf(maximum, __shfl_xor_sync(0xFFFFFFFFu, maximum, 2));
      maximum = fmaxf(maximum_[i], maximum);
      // A row that sees no key yet: any finite bias gives 2^-infinity = 0.
      const float used = maximum == -INFINITY ? 0.0f : maximum;
      rescale[i] = ptx::exp2_float((maximum_[i] - used) * multiplier_[i]);
      sum_[i] *= rescale[i];
      maximum_[i] = maximum;
      bias_[i] = -used * multiplier_[i];
    }
    // The bias is rounded; where that could show, subtract the maximum first.
    const bool small = fabsf(bias_[0]) < 4096.0f && fabsf(bias_[1]) < 4096.0f;
    if (!__all_sync(0xFFFFFFFFu, small)) subtract_maxima(scores);
  }

  // The A operand of k16 product `k` of the prepared step: its probabilities of 16 tokens.
  template <int kRegisters>
  __device__ void operand(const float (&scores)[kRegisters], int k, uint32_t (&a)[4]) {
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      // Word r: row r % 2, tokens 0..7 (r < 2) or 8..15.
      const int i = r % 2;
      const int first = 4 * (2 * k + r / 2) + 2 * i;
      const float low = ptx::exp2_float(fmaf(scores[first], multiplier_[i], bias_[i]));
      const float high = ptx::exp2_float(fmaf(scores[first + 1], multiplier_[i], bias_[i]));
      sum_[i] += low + high;
      a[r] = Pack::pack(low, high);
    }
  }

  // The sum of row i's probabilities, relative to its maximum.
  __device__ float sum(int i) const {
    float total = sum_[i];
    total += __shfl_xor_sync(0xFFFFFFFFu, total, 1);
    return total + __shfl_xor_sync(0xFFFFFFFFu, total, 2);
  }

  __device__ float log2_sum(int i, float stored_sum, float) const {
    return ptx::log2_float(stored_sum) + (i == 0 ? maximum_[0] * multiplier_[0] : maximum_[1] * multiplier_[1]);
  }

 private:
  template <int kParts, int kRegisters>
  __device__ void subtract_maxima(float (&scores)[kParts][kRegisters]) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float used = maximum_[i] == -INFINITY ? 0.0f : maximum_[i];
#pragma unroll
      for (auto& part : scores) {
#pragma unroll
        for (int j = 0; j < kRegisters / 4; ++j) {
          part[4 * j + 2 * i] -= used;
          part[4 * j + 2 * i + 1] -= used;
        }
      }
      bias_[i] = 0.0f;
    }
  }

  float multiplier_[2];    // from a score to octaves
  float step_maximum_[2];  // what this thread holds of the last step
  float maximum_[2];
  float bias_[2];  // -maximum in octaves
  float sum_[2];
};

}  // namespace fp8attn::cuda
