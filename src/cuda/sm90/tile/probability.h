// From scores to the e4m3 codes of probabilities, two elements at a time in packed half arithmetic.
//
// A form is given x * multiplier + offset with the row's largest score at kTop, in units of 1 / kUnitsPerOctave
// octaves, and makes a code whose value is about 2^((that - kTop) / kUnitsPerOctave + 8): the largest probability of a
// row is stored as 256. The constant cancels in the division by the sum of the stored probabilities.
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

// The code by arithmetic. With t in 1/8 octaves below the top, n = 16 (t + 120) is the code of 2^(t/8 + 8) in fixed
// point with 4 fractional bits if the mantissa were logarithmic; a quadratic in the fraction f of the octave
// (128 steps) makes it so. Integers live in subnormal halves, whose bits are the integer: n * 2^-24.
struct QuadraticProbability {
  static constexpr float kUnitsPerOctave = 8.0f;
  static constexpr uint32_t kTop = 0;
  static constexpr float kTopValue = 0.0f;

  __device__ static uint32_t codes(uint32_t a, uint32_t b, uint32_t multiplier, uint32_t offset, int) {
    return __byte_perm(pair(ptx::fma_half2(a, multiplier, offset)), pair(ptx::fma_half2(b, multiplier, offset)),
                       0x6420);
  }

 private:
  __device__ static uint32_t pair(uint32_t t) {
    constexpr uint32_t k16 = 0x00100010;    // 16 * 2^-24
    constexpr uint32_t k1920 = 0x07800780;  // 16 * 120 * 2^-24
    constexpr uint32_t kFraction = 0x007F007F;
    constexpr uint32_t kSlope = 0x797F797F;  // 0.3435 / 128 * 2^24
    constexpr uint32_t kCurve = 0xB57FB57F;  // -0.3435
    constexpr uint32_t kSixteenth = 0x2C002C00;
    const uint32_t n = ptx::fma_relu_half2(t, k16, k1920);
    const uint32_t f = n & kFraction;
    // n - 0.3435 f (1 - f / 128): least error of 2^(f / 128) on [0, 1) as a relative root mean square.
    return ptx::mul_half2(ptx::fma_half2(ptx::fma_half2(f, kSlope, kCurve), f, n), kSixteenth);
  }
};

// The quadratic form, but for every fourth word, of either row in turn, which is made as the exact form does: where the
// tensor core has much to do for a probability, the special-function unit would idle and the half-precision pipe is
// what the loop waits for (docs/kernels/prefill.md).
struct MixedProbability : QuadraticProbability {
  __device__ static uint32_t codes(uint32_t a, uint32_t b, uint32_t multiplier, uint32_t offset, int word) {
    const int product = word / 4;
    if (word % 4 != 2 + product % 2) return QuadraticProbability::codes(a, b, multiplier, offset, word);
    constexpr uint32_t kEighth = 0x30003000;
    return ExactProbability::convert(
        ptx::fma_half2(ptx::fma_half2(a, multiplier, offset), kEighth, ExactProbability::kTop),
        ptx::fma_half2(ptx::fma_half2(b, multiplier, offset), kEighth, ExactProbability::kTop));
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
