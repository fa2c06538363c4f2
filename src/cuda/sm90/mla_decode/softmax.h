// Online softmax over a block's logits in octaves, and the end of a row.
#pragma once

#include <cstdint>

#include "cuda/sm90/mla_decode/params.h"
#include "cuda/sm90/mla_decode/traits.h"
#include "cuda/sm90/ptx/half2.h"
#include "cuda/sm90/tile/probability.h"

namespace fp8attn::cuda {

// State of the two rows that a thread holds parts of; four neighbouring lanes share a row. Logits lie as in
// MlaAccumulators. The largest probability of a row is stored as 2^kTop.
template <class Traits>
class MlaSoftmax {
 public:
  static constexpr float kTop = Traits::kIsE4M3 ? kProbabilityTopLog2 : 0.0f;
  static constexpr float kSlack = 0.75f;  // octaves above kTop that are left: 2^8.75 = 430, and e4m3 ends at 448
  static constexpr float kRoom = 2.0f;    // octaves for maxima to come
  static constexpr bool kGivesRoom = Traits::kSymmetric;               // the others have no registers for it
  static constexpr float kMany = Traits::kIsE4M3 ? 8 * 256.0f : 8.0f;  // eight times 2^kTop

  __device__ void reset() {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      maximum_[i] = -INFINITY;
      sum_[i] = 0.0f;
    }
  }

  // Takes note of a block's largest logits. before: what the probabilities of the rows were relative to until now.
  // rescale: what everything summed of these is to be multiplied with. Bit i is set where that is not 1 for all rows i
  // of the warp. settles: whether this block is the one behind which maxima should have been found. least_scale: of the
  // tokens summed until now.
  //
  // A row's largest stored probability is not rounded, since it may be most of the row. Where the others make up for
  // kMany of it, the row gets room for maxima to come instead, and few are raised from then on: a vote tells.
  __device__ __forceinline__ uint32_t raise_maxima(const float (&logits)[32], const float (&before)[2], bool settles,
                                                   float least_scale, float (&rescale)[2]) {
    float maximum[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      float chain[2] = {logits[2 * i], logits[2 * i + 1]};  // two, to halve the latency
#pragma unroll
      for (int j = 1; j < 8; ++j) {
        chain[0] = fmaxf(chain[0], logits[4 * j + 2 * i]);
        chain[1] = fmaxf(chain[1], logits[4 * j + 2 * i + 1]);
      }
      maximum[i] = fmaxf(chain[0], chain[1]);
      rescale[i] = 1.0f;
    }
    float top[2] = {before[0], before[1]};
    uint32_t raised = 0;
    if (__any_sync(0xFFFFFFFFu, settles || maximum[0] > top[0] || maximum[1] > top[1])) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        maximum[i] = fmaxf(maximum[i], __shfl_xor_sync(0xFFFFFFFFu, maximum[i], 1));
        maximum[i] = fmaxf(maximum[i], __shfl_xor_sync(0xFFFFFFFFu, maximum[i], 2));
        float next = maximum[i];
        bool above = next > top[i];
        if constexpr (kGivesRoom) {
          next = fmaxf(next, top[i]);
          // The sum is one of probabilities without scales. Before the first block it is 0 times NaN.
          const bool many = sum(i) * least_scale * ptx::exp2_float(maximum_[i] - next) >= kMany;
          above = maximum[i] > top[i] + (many ? kSlack : 0.0f) || (settles && many);
          if (many) next += kRoom;
        }
        if (above) {  // so it is not minus infinity
          rescale[i] = ptx::exp2_float(top[i] - next);
          top[i] = next;
        }
        if (__any_sync(0xFFFFFFFFu, above)) raised |= 1u << i;
      }
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if (top[i] == maximum_[i]) continue;
      sum_[i] *= ptx::exp2_float(maximum_[i] - top[i]);
      maximum_[i] = top[i];
    }
    return raised;
  }

  __device__ float maximum(int i) const { return maximum_[i]; }
  __device__ void set_maximum(int i, float maximum) { maximum_[i] = maximum; }

  // Octaves that a stored probability of 1 stands for.
  __device__ float offset(int i) const { return (maximum_[i] == -INFINITY ? 0.0f : maximum_[i]) - kTop; }

  // Column group j becomes probabilities. inverse: of the scales of the thread's two tokens.
  __device__ __forceinline__ void exponentiate(float (&logits)[32], int j, float2 inverse) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float offset = this->offset(i);
      float& low = logits[4 * j + 2 * i];
      float& high = logits[4 * j + 2 * i + 1];
      low = ptx::exp2_float(low - offset);
      high = ptx::exp2_float(high - offset);
      if constexpr (Traits::kTokenScales) {
        sum_[i] = fmaf(low, inverse.x, sum_[i]);
        sum_[i] = fmaf(high, inverse.y, sum_[i]);
      } else {
        sum_[i] += low + high;
      }
    }
  }

  // The sum of row i's probabilities, relative to the stored ones.
  __device__ float sum(int i) const {
    const float total = sum_[i] + __shfl_xor_sync(0xFFFFFFFFu, sum_[i], 1);
    return total + __shfl_xor_sync(0xFFFFFFFFu, total, 2);
  }

  __device__ float log2_sum(int i, float sum) const {
    return sum > 0.0f ? offset(i) + ptx::log2_float(sum) : -INFINITY;
  }

 private:
  float maximum_[2];
  float sum_[2];  // what this thread holds of them
};

// log2_sum: of exp(logits) of a finished row, base 2.
__device__ __forceinline__ void store_lse(const MlaParams& params, int sequence, int row, float log2_sum) {
  constexpr float kLn2 = 0.693147180559945f;
  if (params.lse == nullptr) return;
  const auto [batch, token, head] = params.place(sequence, row);
  params.lse[batch * params.lse_strides[0] + head * params.lse_strides[1] + token * params.lse_strides[2]] =
      log2_sum * kLn2;
}

// What the sink of its head, which is in the denominator only, leaves of a row's output.
__device__ __forceinline__ float share_beside_sink(const MlaParams& params, int sequence, int row, float log2_sum) {
  constexpr float kLog2E = 1.44269504088896f;
  if (params.sink == nullptr || log2_sum == -INFINITY) return 1.0f;
  const int head = params.place(sequence, row).head;
  const float sink = __ldg(params.sink + head * params.sink_stride) * kLog2E;
  return ptx::reciprocal(1.0f + ptx::exp2_float(sink - log2_sum));
}

}  // namespace fp8attn::cuda
