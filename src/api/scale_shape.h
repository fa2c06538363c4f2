// The shape of a scale tensor, per granularity.
#pragma once

#include <cstdint>

#include "api/view_checks.h"
#include "fp8attn/quantize.h"
#include "fp8attn/tensor.h"

namespace fp8attn {

// For a tensor [b, s, h, d].
constexpr TensorView scale_shape(ScaleGranularity granularity, std::int64_t b, std::int64_t s, std::int64_t h,
                                 std::int64_t d) {
  switch (granularity) {
    case ScaleGranularity::kTensor: return shape_only({1});
    case ScaleGranularity::kHead: return shape_only({h});
    case ScaleGranularity::kBatchHead: return shape_only({b, h});
    case ScaleGranularity::kTokenHead: return shape_only({b, s, h});
    case ScaleGranularity::kChannel: return shape_only({b, h, d});
  }
  return {};
}

}  // namespace fp8attn
