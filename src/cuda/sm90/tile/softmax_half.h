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
// Scores lie as wgmma leaves a half accumulator of 64 rows: register 2 j + i holds columns 8 j + 2 (lane % 4) + {0, 1}
// of row i. The codes are A operands of products with V in packed token order.
template <class Form>
class SoftmaxHalf {
 public:
  // multiplier: from a score to octaves (log2 units), at least 0, per row.
  __device__ void reset(const float (&multiplier)[2]) {
    maxima_ = kMinusInfinity;
    offset_[0] = offset_[1] = kNoKeyYet;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      // Within the range of half: above it neighbouring scores are octaves apart, below it all scores are alike, so the
      // clamp changes no probability. What is not finite becomes NaN, and so does the row.
      float units = multiplier[i] * Form::kUnitsPerOctave;
      if (units < 0x1p-24f) units = 0x1p-24f;
      if (units > 65504.0f) units = isinf(multiplier[i]) ? NAN : 65504.0f;
      multiplier_[i] = ptx::half2_from_floats(units, units);
    }
  }

  // Takes note of the largest scores of a new step.
  template <int kParts, int kRegisters>
  __device__ void raise_maxima(const uint32_t (&scores)[kParts][kRegisters]) {
    uint32_t row[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      uint32_t chain[2] = {scores[0][i], scores[0][2 + i]};  // two, to halve the latency
#pragma unroll
      for (const auto& part : scores) {
#pragma unroll
        for (int j = 0; j < kRegisters / 2; j += 2) {
          chain[0] = ptx::max_half2(chain[0], part[2 * j + i]);
          chain[1] = ptx::max_half2(chain[1], part[2 * j + 2 + i]);
        }
      }
      row[i] = ptx::max_half2(chain[0], chain[1]);
    }
    maxima_ = ptx::max_half2(maxima_,
                             ptx::max_half2(__byte_perm(row[0], row[1], 0x5410), __byte_perm(row[0], row[1], 0x7632)));
  }

  // Behind raise_maxima(): prepares the step's probabilities, and gives the factor that rescales what was summed
  // before.
  template <int kParts, int kRegisters>
  __device__ void prepare(uint32_t (&scores)[kParts][kRegisters], float (&rescale)[2]) {
    maxima_ = ptx::max_half2(maxima_, __shfl_xor_sync(0xFFFFFFFFu, maxima_, 1));
    maxima_ = ptx::max_half2(maxima_, __shfl_xor_sync(0xFFFFFFFFu, maxima_, 2));
    const uint32_t negated = __byte_perm(multiplier_[0], multiplier_[1], 0x5410) ^ 0x80008000u;
    const uint32_t offsets = ptx::fma_half2(maxima_, negated, Form::kTop);
    // The rounding of a large offset may push the top code beyond the largest one; no key yet shows as infinity.
    constexpr uint32_t kLimit = 0x73FF73FF;  // below 16384, where the last place is 8 units
    const bool in_range = __hblt2(as_half2(offsets & 0x7FFF7FFFu), as_half2(kLimit));
    float next[2];
    if (__all_sync(0xFFFFFFFFu, in_range)) {
      next[0] = ptx::low_half_to_float(offsets);
      next[1] = ptx::high_half_to_float(offsets);
      code_offset_[0] = __byte_perm(offsets, offsets, 0x1010);
      code_offset_[1] = __byte_perm(offsets, offsets, 0x3232);
    } else {
      subtract_maxima(scores, next);
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      rescale[i] = ptx::exp2_float((next[i] - offset_[i]) * (1.0f / Form::kUnitsPerOctave));
      offset_[i] = next[i];
    }
  }

  // The A operand of k32 product `k` of the prepared step: its codes of 32 tokens.
  template <int kRegisters>
  __device__ void operand(const uint32_t (&scores)[kRegisters], int k, uint32_t (&a)[4]) const {
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      // Word r: row r % 2, tokens 0..15 (r < 2) or 16..31.
      const int i = r % 2;
      const int j = 4 * k + 2 * (r / 2);
      a[r] = Form::codes(scores[2 * j + i], scores[2 * j + 2 + i], multiplier_[i], code_offset_[i], 4 * k + r);
    }
  }

  // log2 of the sum of 2^(score * multiplier), from the sum of the stored probabilities of row i. multiplier: what
  // reset() got, or that times a power of two, or 0 where that is not known. The probabilities were made with its
  // rounding to half, which moves large logits: they are corrected by what it moved the largest one.
  __device__ float log2_sum(int i, float stored_sum, float multiplier) const {
    const uint32_t rounded = i == 0 ? multiplier_[0] : multiplier_[1];
    const uint32_t ratio = __float_as_uint(multiplier * ptx::reciprocal(ptx::low_half_to_float(rounded)));
    const float mantissa = __uint_as_float((ratio & 0x007FFFFFu) | 0x3F800000u);
    float excess = (mantissa > 1.5f ? 0.5f * mantissa : mantissa) - 1.0f;
    if (fabsf(excess) > 0x1p-10f) excess = 0.0f;  // a multiplier outside half's range
    const float maximum = (Form::kTopValue - (i == 0 ? offset_[0] : offset_[1])) * (1.0f / Form::kUnitsPerOctave);
    return ptx::log2_float(stored_sum) - kProbabilityTopLog2 + fmaf(maximum, excess, maximum);
  }

 private:
  static constexpr uint32_t kMinusInfinity = 0xFC00FC00;
  static constexpr float kNoKeyYet = 3e38f;

  __device__ static __half2 as_half2(uint32_t bits) { return *reinterpret_cast<const __half2*>(&bits); }

  // The rare form, for offsets outside half's range and for rows that see no key yet: scores become their distance
  // below the maximum, so that the offset is that of the top alone.
  template <int kParts, int kRegisters>
  __device__ void subtract_maxima(uint32_t (&scores)[kParts][kRegisters], float (&next)[2]) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float score = i == 0 ? ptx::low_half_to_float(maxima_) : ptx::high_half_to_float(maxima_);
      const bool no_key = score == -INFINITY;
      next[i] = no_key ? offset_[i] : Form::kTopValue - score * ptx::low_half_to_float(multiplier_[i]);
      code_offset_[i] = Form::kTop;
      // Hidden scores stay minus infinity, which every form makes 0.
      const uint32_t maximum = no_key ? 0 : __byte_perm(maxima_, maxima_, i == 0 ? 0x1010 : 0x3232);
#pragma unroll
      for (auto& part : scores) {
#pragma unroll
        for (int j = 0; j < kRegisters / 2; ++j) part[2 * j + i] = ptx::sub_half2(part[2 * j + i], maximum);
      }
    }
  }

  uint32_t maxima_;          // largest score so far, row 0 in the low half; of the whole rows behind prepare()
  uint32_t multiplier_[2];   // from scores to units, a row each, in both halves
  uint32_t code_offset_[2];  // of the prepared step, in both halves
  float offset_[2];          // what the stored probabilities' exponents are relative to, in units
};

}  // namespace fp8attn::cuda
