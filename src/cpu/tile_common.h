// What the tiles of prefill and MLA decode share beside their inner loops.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "cpu/float16.h"
#include "fp8attn/tensor.h"

namespace fp8attn::cpu {

// The nearest finite T of a finite factor: one that overflows would turn the difference of equal scores, 0, into NaN.
// Against all other differences the largest T is as good: their probabilities are 0.
template <class T>
T in_range(double factor) {
  return static_cast<T>(std::isinf(factor) ? factor : std::min(factor, double{std::numeric_limits<T>::max()}));
}

// The nearest element of the dtype of `out`.
inline void store_value(const MutableTensorView& out, std::int64_t offset, float value) {
  switch (out.dtype) {
    case DType::kBF16: static_cast<std::uint16_t*>(out.data)[offset] = bf16_from_float(value); break;
    case DType::kFP16: static_cast<std::uint16_t*>(out.data)[offset] = fp16_from_float(value); break;
    default: static_cast<float*>(out.data)[offset] = value;
  }
}

}  // namespace fp8attn::cpu
