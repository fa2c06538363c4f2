// The 8-bit float e4m3 (FN variant): 1 sign bit, 4 exponent bits (bias 7), 3 mantissa bits, no infinity.
// Largest finite value 448 (0x7E), NaN 0x7F and 0xFF, smallest normal 2^-6, subnormal step 2^-9.
// Source: Micikevicius et al., "FP8 Formats for Deep Learning" (2022), table 1.
#pragma once

#include <bit>
#include <cstdint>
#include <limits>

namespace fp8attn {

inline constexpr float kE4M3Max = 448.0f;

// Nearest e4m3 code of `value`, ties to even, saturating: magnitudes above 448 and infinities become +-448, NaN
// becomes 0x7F with the sign kept clear. The same code as CUDA's cvt.rn.satfinite.e4m3x2.f32 for every float.
constexpr std::uint8_t e4m3_from_float(float value) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t magnitude = bits & 0x7FFFFFFFu;
  const auto sign = static_cast<std::uint8_t>((bits >> 24) & 0x80u);
  if (magnitude > 0x7F800000u) return 0x7F;
  if (magnitude >= 0x43E00000u) return sign | 0x7E;  // >= 448
  if (magnitude < 0x3C800000u) {                     // below 2^-6: a multiple of 2^-9
    // Adding 2^14 leaves a float whose last place is 2^-9, so the addition itself rounds to nearest even.
    const float shifted = std::bit_cast<float>(magnitude) + 16384.0f;
    return sign | static_cast<std::uint8_t>(std::bit_cast<std::uint32_t>(shifted) & 0xFFu);
  }
  const std::uint32_t odd = (magnitude >> 20) & 1u;
  const std::uint32_t rounded = magnitude + 0x7FFFFu + odd;
  const std::uint32_t code = (rounded >> 20) - ((127u - 7u) << 3);
  return sign | static_cast<std::uint8_t>(code > 0x7Eu ? 0x7Eu : code);
}

// The value of an e4m3 code. 0x7F and 0xFF give NaN.
constexpr float e4m3_to_float(std::uint8_t code) {
  const std::uint32_t sign = static_cast<std::uint32_t>(code & 0x80u) << 24;
  const std::uint32_t magnitude = code & 0x7Fu;
  if (magnitude == 0x7Fu) return std::numeric_limits<float>::quiet_NaN();
  if (magnitude < 8u) {  // subnormal: magnitude * 2^-9
    const float value = static_cast<float>(magnitude) * 0.001953125f;
    return std::bit_cast<float>(std::bit_cast<std::uint32_t>(value) | sign);
  }
  return std::bit_cast<float>(sign | ((magnitude << 20) + ((127u - 7u) << 23)));
}

}  // namespace fp8attn
