// From the scales of a block's tokens to what the scores need of them.
#pragma once

#include <cstdint>

#include "cuda/sm90/mla_decode/traits.h"
#include "cuda/sm90/ptx/half2.h"

namespace fp8attn::cuda {

// By warp `warp` of four of scores' warpgroup `group`: for tokens 16 warp to 16 warp + 15 of a block, a lane each. Those
// before token `tokens` exist.
template <class Traits>
__device__ __forceinline__ void prepare_factors(typename Traits::Shared& shared, int stage, int tokens, int group,
                                                int warp, int lane) {
  float* scales = shared.scales[stage][warp];
  float4 scale{};  // what lies there for tokens that do not exist may be NaN
  if (lane < 16 && 16 * warp + lane < tokens) scale = reinterpret_cast<const float4*>(scales)[lane];
  __syncwarp();
  if (lane >= 16) return;
  const int j = lane / 8, q = lane / 2 % 4, c = lane % 2;
  float largest = scale.x;
  if constexpr (Traits::kGroups == 4) largest = fmaxf(fmaxf(scale.x, scale.y), fmaxf(scale.z, scale.w));
  largest = fmaxf(largest, 0x1p-100f);  // its logarithm and reciprocal are finite
  const float inverse = ptx::reciprocal(largest);
  typename Traits::SoftmaxFactors& factors = shared.factors[group][warp];
  factors.log2_scale[q][j][c] = ptx::log2_float(largest);
  factors.inverse_scale[q][j][c] = inverse;
  float* entry = scales + 4 * q + 2 * j + c;
  if constexpr (Traits::kGroups == 1) {
    *entry = largest;
  } else {
    const float ratio[4] = {scale.x * inverse, scale.y * inverse, scale.z * inverse, scale.w * inverse};
    // The unit of the sum goes from one group's scale to the next one's. Groups that are nothing beside the largest get
    // a scale with which no step overflows.
    constexpr float kLeast = 0x1p-50f;
#pragma unroll
    for (int g = 0; g < 3; ++g) {
      entry[16 * g] = fmaxf(ratio[g], kLeast) * ptx::reciprocal(fmaxf(ratio[g + 1], kLeast));
    }
    entry[16 * 3] = fmaxf(ratio[3], kLeast) * largest;
#pragma unroll
    for (int g = 0; g < 4; ++g) {
      reinterpret_cast<uint16_t*>(&shared.ratio[stage][g][8 * q + 2 * warp + j])[c] =
          static_cast<uint16_t>(ptx::half2_from_floats(ratio[g], 0.0f));
    }
  }
}

}  // namespace fp8attn::cuda
