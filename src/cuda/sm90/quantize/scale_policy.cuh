// Which elements of a tile share a scale.
#pragma once

#include "cuda/sm90/quantize/elements.h"

namespace fp8attn::cuda {

// Each row of channels has one scale.
struct ScalePerRow {
  static constexpr bool kPerColumn = false;
};

// Each channel has one scale, the same in all rows of a tile.
struct ScalePerColumn {
  static constexpr bool kPerColumn = true;
};

// The inverses of kCount neighbouring scales. Scale tensors promise the alignment of a float only.
template <int kCount>
__device__ void load_inverses(const float* __restrict__ scale, float (&inverse)[kCount]) {
#pragma unroll
  for (int c = 0; c < kCount; ++c) inverse[c] = inverse_of(scale[c]);
}

}  // namespace fp8attn::cuda
