// Element types from and to float, without the library's own 16-bit conversions.
#pragma once

#include <cstdint>
#include <cstring>
#include <vector>

#include "fp8attn/e4m3.h"
#include "fp8attn/tensor.h"

namespace fp8attn::test {

inline void encode(DType dtype, float value, std::uint8_t* target) {
  if (dtype == DType::kE4M3) {
    *target = e4m3_from_float(value);
  } else if (dtype == DType::kBF16) {
    std::uint32_t bits;
    std::memcpy(&bits, &value, 4);
    // Round half to even; NaN keeps its upper bits, infinity stays.
    if ((bits & 0x7FFFFFFFu) <= 0x7F800000u) bits += 0x7FFFu + ((bits >> 16) & 1u);
    const auto upper = static_cast<std::uint16_t>(bits >> 16);
    std::memcpy(target, &upper, 2);
  } else if (dtype == DType::kFP16) {
    const auto half = static_cast<_Float16>(value);
    std::memcpy(target, &half, 2);
  } else {
    std::memcpy(target, &value, 4);
  }
}

inline float decode(DType dtype, const std::uint8_t* source) {
  if (dtype == DType::kE4M3) return e4m3_to_float(*source);
  if (dtype == DType::kFP16) {
    _Float16 half;
    std::memcpy(&half, source, 2);
    return static_cast<float>(half);
  }
  std::uint32_t bits = 0;
  if (dtype == DType::kBF16) {
    std::uint16_t upper;
    std::memcpy(&upper, source, 2);
    bits = std::uint32_t{upper} << 16;
  } else {
    std::memcpy(&bits, source, 4);
  }
  float value;
  std::memcpy(&value, &bits, 4);
  return value;
}

// The bytes of one NaN.
inline std::vector<std::uint8_t> nan_bytes(DType dtype) {
  switch (dtype) {
    case DType::kE4M3: return {0x7F};
    case DType::kBF16: return {0xC0, 0x7F};
    case DType::kFP16: return {0x00, 0x7E};
    default: return {0x00, 0x00, 0xC0, 0x7F};
  }
}

}  // namespace fp8attn::test
