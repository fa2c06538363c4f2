// bfloat16 and IEEE half from and to float32, bit by bit.
#pragma once

#include <bit>
#include <cstdint>

namespace fp8attn::cpu {

constexpr float bf16_to_float(std::uint16_t code) { return std::bit_cast<float>(std::uint32_t{code} << 16); }

// Nearest bfloat16, ties to even; NaN stays NaN.
constexpr std::uint16_t bf16_from_float(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if ((bits & 0x7FFFFFFFu) > 0x7F800000u) return 0x7FFF;
  return static_cast<std::uint16_t>((bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16);
}

constexpr float fp16_to_float(std::uint16_t code) {
  const std::uint32_t sign = static_cast<std::uint32_t>(code & 0x8000u) << 16;
  const std::uint32_t magnitude = code & 0x7FFFu;
  if (magnitude < 0x400u) {  // subnormal: magnitude * 2^-24
    return std::bit_cast<float>(std::bit_cast<std::uint32_t>(static_cast<float>(magnitude) * 0x1p-24f) | sign);
  }
  const std::uint32_t bias = magnitude >= 0x7C00u ? 224u : 112u;  // infinity and NaN keep an exponent of all ones
  return std::bit_cast<float>(sign | ((magnitude << 13) + (bias << 23)));
}

// Nearest half, ties to even; beyond 65504 infinity, NaN stays NaN.
constexpr std::uint16_t fp16_from_float(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t magnitude = bits & 0x7FFFFFFFu;
  const auto sign = static_cast<std::uint16_t>((bits >> 16) & 0x8000u);
  if (magnitude > 0x7F800000u) return 0x7FFF;
  if (magnitude >= 0x477FF000u) return sign | 0x7C00;  // >= 65520
  if (magnitude < 0x38800000u) {                       // below 2^-14: a multiple of 2^-24, the last place of 0.5
    const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
    return sign | static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(shifted) - 0x3F000000u);
  }
  const std::uint32_t rounded = magnitude + 0xFFFu + ((magnitude >> 13) & 1u);
  return sign | static_cast<std::uint16_t>((rounded >> 13) - (112u << 10));
}

}  // namespace fp8attn::cpu
