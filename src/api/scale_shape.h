// The shape of a scale tensor, per granularity.
#pragma once

#include <cstdint>

#include "fp8attn/quantize.h"
#include "fp8attn/tensor.h"

namespace fp8attn {

// For a tensor [b, s, h, d]. A view without memory: only its shape means something.
constexpr TensorView scale_shape(ScaleGranularity granularity, std::int64_t b, std::int64_t s, std::int64_t h,
                                 std::int64_t d) {
  switch (granularity) {
    case ScaleGranularity::kTensor: return TensorView::contiguous(nullptr, DType::kF32, {1});
    case ScaleGranularity::kHead: return TensorView::contiguous(nullptr, DType::kF32, {h});
    case ScaleGranularity::kBatchHead: return TensorView::contiguous(nullptr, DType::kF32, {b, h});
    case ScaleGranularity::kTokenHead: return TensorView::contiguous(nullptr, DType::kF32, {b, s, h});
    case ScaleGranularity::kChannel: return TensorView::contiguous(nullptr, DType::kF32, {b, h, d});
  }
  return {};
}

}  // namespace fp8attn
