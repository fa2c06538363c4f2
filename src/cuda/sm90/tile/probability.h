// From scores to the e4m3 codes of probabilities, two elements at a time in packed half arithmetic.
//
// A form is given x * multiplier + offset with the row's largest score at kTop, in units of 1 / kUnitsPerOctave
// octaves, and makes a code whose value is about 2^((that - kTop) / kUnitsPerOctave + 8): the largest probability of a
// row is stored as 256. The constant cancels in the division by the sum of the stored probabilities.
//
// The forms by arithmetic take the code for a logarithm with a linear or curved mantissa, which it is not below 8
// (2^-6, subnormal): they drop what lies 15 octaves below the top, where the exact form still has 18. (Leaving steps
// where that matters to the exact form takes a branch a block, which costs 5 to 10% everywhere.)
#pragma once

#include <cstdint>

#include "cuda/sm90/ptx/half2.h"

namespace fp8attn::cuda {

// log2 of the value that the largest probability is stored as.
inline constexpr float kProbabilityTopLog2 = 8.0f;

// exp2 in the special-function unit, then a rounded conversion.
struct ExactProbability {
  static constexpr float kUnitsPerOctave = 1.0f;
  static constexpr uint32_t kTop = 0x48004800;  // 8.0
  static constexpr float kTopValue = 8.0f;

  // Codes of the two elements of `a` and the two of `b`, which become word `word` (a constant after unrolling) of the
  // A operands of a block.
  __device__ static uint32_t codes(uint32_t a, uint32_t b, uint32_t multiplier, uint32_t offset, int) {
    return convert(ptx::fma_half2(a, multiplier, offset), ptx::fma_half2(b, multiplier, offset));
  }

  // Codes of 2^a and 2^b.
  __device__ static uint32_t convert(uint32_t a, uint32_t b) {
    const uint16_t low = ptx::e4m3x2_from_half2(ptx::exp2_half2(a));
    const uint16_t high = ptx::e4m3x2_from_half2(ptx::exp2_half2(b));
    return low | static_cast<uint32_t>(high) << 16;
  }
};

// The code by arithmetic, but for every fourth word, of either row in turn, which is exact: the special-function unit
// would idle, and the errors of the two mix.
//
// t lies between 128 and 256, where the last place of a half is 1/8 of a unit: its last six bits are the fraction f of
// the octave in 64ths, the seven before them the code if the mantissa were logarithmic. It is linear, so the code wants
// a curve through 0 at both ends of the octave: t + 2.5 (f / 64 - 1/2)^2 - 0.63. The constant is left out, as the code
// is cut instead of rounded, and the rest of the bias is in the top. Relative error of the attention output against the
// exact form's, simulated on scores of standard deviation 1 to 8 and 4 to 2048 keys: 1.00 to 1.04.
struct DefaultProbability {
  static constexpr float kUnitsPerOctave = 8.0f;
  static constexpr uint32_t kTop = 0x5BBE5BBE;  // 247.75
  static constexpr float kTopValue = 247.75f;

  __device__ static uint32_t codes(uint32_t a, uint32_t b, uint32_t multiplier, uint32_t offset, int word) {
    const int product = word / 4;
    const uint32_t low = ptx::fma_half2(a, multiplier, offset), high = ptx::fma_half2(b, multiplier, offset);
    if (word % 4 == 2 + product % 2) return ExactProbability::convert(octaves(low), octaves(high));
    return __byte_perm(pair(low), pair(high), 0x6420);
  }

 private:
  __device__ static uint32_t octaves(uint32_t t) {
    constexpr uint32_t kEighth = 0x30003000, kShift = 0xCDBECDBE;  // 8 - 247.75 / 8
    return ptx::fma_half2(t, kEighth, kShift);
  }

  // Packed half arithmetic takes two clocks an instruction, and so do logic and shifts, on another pipe beside it: so
  // there are three of each.
  __device__ static uint32_t pair(uint32_t t) {
    constexpr uint32_t k128 = 0x58005800;
    constexpr uint32_t kNoCode = 0xFC3FFC3F;  // leaves 128 + f / 8
    constexpr uint32_t kSlope = 0x32603260;   // 1.59375 / 8
    constexpr uint32_t kShift = 0xCE93CE93;   // -132 * 1.59375 / 8
    t = ptx::max_nan_half2(t, k128);
    const uint32_t bend = ptx::fma_half2(t & kNoCode, kSlope, kShift);
    return ptx::fma_half2(bend, bend, t) >> 3;  // the code is the low byte of each half
  }
};

// The code by arithmetic, linear within the octave: the code itself plus 1024, so that it is the low byte of the half.
// The top lies 0.44 below the exact form's, which centres the error of the chord over the exponential.
struct LinearProbability {
  static constexpr float kUnitsPerOctave = 8.0f;
  static constexpr uint32_t kTop = 0x57795779;  // 119.5625
  static constexpr float kTopValue = 119.5625f;

  __device__ static uint32_t codes(uint32_t a, uint32_t b, uint32_t multiplier, uint32_t offset, int) {
    constexpr uint32_t k1024 = 0x64006400;
    return __byte_perm(ptx::add_half2(ptx::fma_relu_half2(a, multiplier, offset), k1024),
                       ptx::add_half2(ptx::fma_relu_half2(b, multiplier, offset), k1024), 0x6420);
  }
};

}  // namespace fp8attn::cuda
