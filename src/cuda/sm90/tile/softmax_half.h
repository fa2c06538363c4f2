// Online softmax over scores in half precision, for e4m3 probabilities.
//
// Why half: the scores of 8-bit inputs carry no more than its 11 bits, the fragment takes half the registers, and one
// packed instruction serves two elements.
#pragma once

#include <cstdint>

#include "cuda/sm90/ptx/half2.h"
#include "cuda/sm90/tile/probability.h"

namespace fp8attn::cuda {

// State of the two rows (lane / 4 and lane / 4 + 8 of the warp's 16) that a thread holds parts of. Four neighbouring
// lanes share a row.
//
// Scores lie as wgmma leaves a 64 x 128 half accumulator: register 2 j + i holds columns 8 j + 2 (lane % 4) + {0, 1} of
// row i. Codes lie as the A operand of four k32 products with V in packed token order.
template <class Form>
class SoftmaxHalf {
 public:
  // multiplier: from a score to octaves (log2 units), at least 0, per row.
  __device__ void reset(const float (&multiplier)[2]) {
    maxima_ = kMinusInfinity;
    offset_[0] = offset_[1] = kNoKeyYet;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      // Beyond the range of half, neighbouring scores are octaves apart and the clamp changes no probability.
      const float units = fminf(multiplier[i] * Form::kUnitsPerOctave, 65504.0f);
      multiplier_[i] = ptx::half2_from_floats(units, units);
    }
  }

  // Takes kBlocks blocks of scores; gives their codes and the factor that rescales what was summed before.
  template <int kBlocks>
  __device__ void update(uint32_t (&scores)[kBlocks][32], uint32_t (&codes)[kBlocks][16], float (&rescale)[2]) {
    raise_maxima(scores);
    const uint32_t negated = __byte_perm(multiplier_[0], multiplier_[1], 0x5410) ^ 0x80008000u;
    const uint32_t offsets = ptx::fma_half2(maxima_, negated, Form::kTop);
    // The rounding of a large offset may push the top code beyond the largest one; no key yet shows as infinity.
    constexpr uint32_t kLimit = 0x73FF73FF;  // below 16384, where the last place is 8 units
    const bool in_range = __hblt2(as_half2(offsets & 0x7FFF7FFFu), as_half2(kLimit));
    float next[2];
    uint32_t multiplier[2] = {multiplier_[0], multiplier_[1]};
    uint32_t offset[2] = {__byte_perm(offsets, offsets, 0x1010), __byte_perm(offsets, offsets, 0x3232)};
    if (__all_sync(0xFFFFFFFFu, in_range)) {
      next[0] = ptx::low_half_to_float(offsets);
      next[1] = ptx::high_half_to_float(offsets);
    } else {
      subtract_maxima(scores, next);
      multiplier[0] = multiplier[1] = kOne;
      offset[0] = offset[1] = Form::kTop;
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      rescale[i] = ptx::exp2_float((next[i] - offset_[i]) * (1.0f / Form::kUnitsPerOctave));
      offset_[i] = next[i];
    }
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) {
#pragma unroll
      for (int k = 0; k < 4; ++k) {
#pragma unroll
        for (int r = 0; r < 4; ++r) {
          const int i = r & 1;
          const int j = 4 * k + 2 * (r >> 1);
          codes[block][4 * k + r] =
              Form::codes(scores[block][2 * j + i], scores[block][2 * j + 2 + i], multiplier[i], offset[i]);
        }
      }
    }
  }

  // log2 of the sum of 2^(score * multiplier), from the sum of the stored probabilities of row i.
  __device__ float log2_sum(int i, float stored_sum) const {
    return log2f(stored_sum) - kProbabilityTopLog2 -
           (offset_[i] - Form::kTopValue) * (1.0f / Form::kUnitsPerOctave);
  }

 private:
  static constexpr uint32_t kMinusInfinity = 0xFC00FC00;
  static constexpr uint32_t kOne = 0x3C003C00;
  static constexpr float kNoKeyYet = 3e38f;

  __device__ static __half2 as_half2(uint32_t bits) { return *reinterpret_cast<const __half2*>(&bits); }

  // Row maxima over the new scores, row 0 in the low half.
  template <int kBlocks>
  __device__ void raise_maxima(const uint32_t (&scores)[kBlocks][32]) {
    uint32_t row[2][2];  // two chains a row, to halve the latency
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      row[i][0] = scores[0][i];
      row[i][1] = scores[0][2 + i];
#pragma unroll
      for (int block = 0; block < kBlocks; ++block) {
#pragma unroll
        for (int j = block == 0 ? 2 : 0; j < 16; j += 2) {
          row[i][0] = ptx::max_half2(row[i][0], scores[block][2 * j + i]);
          row[i][1] = ptx::max_half2(row[i][1], scores[block][2 * j + 2 + i]);
        }
      }
      row[i][0] = ptx::max_half2(row[i][0], row[i][1]);
    }
    uint32_t both = ptx::max_half2(__byte_perm(row[0][0], row[1][0], 0x5410), __byte_perm(row[0][0], row[1][0], 0x7632));
    both = ptx::max_half2(both, __shfl_xor_sync(0xFFFFFFFFu, both, 1));
    both = ptx::max_half2(both, __shfl_xor_sync(0xFFFFFFFFu, both, 2));
    maxima_ = ptx::max_half2(maxima_, both);
  }

  // The rare form, for offsets outside half's range and for rows that see no key yet: scores become their distance
  // below the maximum in units.
  template <int kBlocks>
  __device__ void subtract_maxima(uint32_t (&scores)[kBlocks][32], float (&next)[2]) const {
    constexpr uint32_t kFloor = 0xE400E400;  // -1024 units: no probability is left
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const uint32_t maximum = __byte_perm(maxima_, maxima_, i == 0 ? 0x1010 : 0x3232);
      const float score = i == 0 ? ptx::low_half_to_float(maxima_) : ptx::high_half_to_float(maxima_);
      next[i] = score == -INFINITY ? offset_[i] : Form::kTopValue - score * ptx::low_half_to_float(multiplier_[i]);
#pragma unroll
      for (int block = 0; block < kBlocks; ++block) {
#pragma unroll
        for (int j = 0; j < 16; ++j) {
          uint32_t& s = scores[block][2 * j + i];
          s = ptx::max_half2(ptx::mul_half2(ptx::sub_half2(s, maximum), multiplier_[i]), kFloor);
        }
      }
    }
  }

  uint32_t maxima_;         // largest score so far, both rows
  uint32_t multiplier_[2];  // from scores to units, a row each, in both halves
  float offset_[2];         // what the stored probabilities' exponents are relative to, in units
};

}  // namespace fp8attn::cuda
