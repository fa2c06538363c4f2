// What the tiles of prefill and MLA decode share beside their inner loops.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>

#include "cpu/float16.h"
#include "fp8attn/e4m3.h"
#include "fp8attn/tensor.h"

namespace fp8attn::cpu {

// Element `index` of an int32 or int64 tensor's memory.
inline std::int64_t integer_at(const TensorView& view, std::int64_t index) {
  if (view.dtype == DType::kI32) return static_cast<const std::int32_t*>(view.data)[index];
  return static_cast<const std::int64_t*>(view.data)[index];
}

inline float scalar_or_one(const std::optional<TensorView>& scale) {
  return scale ? *static_cast<const float*>(scale->data) : 1.0f;
}

// The scale that quantize() gives values which share one.
inline float quantized_scale(std::span<const float> values) {
  float amax = 0.0f;
  for (float value : values) {
    if (std::isfinite(value)) amax = std::max(amax, std::abs(value));
  }
  return amax > 0.0f ? std::max(amax / kE4M3Max, 0x1p-100f) : 1.0f;
}

// The nearest finite T of a finite factor: one that overflows would turn the difference of equal scores, 0, into NaN.
// Against all other differences the largest T is as good: their probabilities are 0.
template <class T>
T in_range(double factor) {
  return static_cast<T>(std::isinf(factor) ? factor : std::min(factor, double{std::numeric_limits<T>::max()}));
}

// The nearest element of the dtype of `out`; e4m3 saturates.
inline void store_value(const MutableTensorView& out, std::int64_t offset, float value) {
  switch (out.dtype) {
    case DType::kBF16: static_cast<std::uint16_t*>(out.data)[offset] = bf16_from_float(value); break;
    case DType::kFP16: static_cast<std::uint16_t*>(out.data)[offset] = fp16_from_float(value); break;
    case DType::kE4M3: static_cast<std::uint8_t*>(out.data)[offset] = e4m3_from_float(value); break;
    default: static_cast<float*>(out.data)[offset] = value;
  }
}

}  // namespace fp8attn::cpu
