// Hides tokens that a query row does not see.
#pragma once

#include <cstdint>

#include "api/mask.h"
#include "cuda/sm90/mla_decode/params.h"
#include "cuda/sm90/mla_decode/traits.h"
#include "cuda/sm90/ptx/warpgroup.h"

namespace fp8attn::cuda {

// The scores of a block. Register 4 j + 2 i + c of `rope`, half c of register 2 j + i of `latent`, is token
// 8 j + 2 (lane % 4) + c of row lane / 4 + 8 i.
struct MlaScoreFragment {
  uint32_t latent[16];
  float rope[32];  // becomes the logits, then the probabilities
};

// Row `row` of the unit's tile sees the tokens before this one.
template <class Traits>
__device__ __forceinline__ int mla_visible_end(const MlaParams& params, const MlaUnit& unit, int row) {
  const Mask mask{params.queries, unit.length, params.causal};
  return mask.visible_end(params.heads.divide(unit.tile * Traits::kTileM + row));
}

// Tokens of block `block`, in stage `stage`, that a row does not see get a score whose logit is minus infinity. row(i)
// is that of the tile which row i of the fragment is.
template <class Traits, class Row>
__device__ __forceinline__ void hide_tokens(MlaScoreFragment& scores, const typename Traits::Shared& shared,
                                            const MlaParams& params, const MlaUnit& unit, int block, int stage,
                                            int lane, Row row) {
  const int shift = 2 * (ptx::launder(lane) & 3);
  uint64_t present = ~uint64_t{0};
  if (params.sparse) {
    const auto& words = shared.present[stage];
    present = static_cast<uint64_t>(words[1]) << 32 | words[0];
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int end = mla_visible_end<Traits>(params, unit, row(i));
    const int count = min(max(end - block * Traits::kTileN, 0), Traits::kTileN);
    const uint64_t seen = count == 64 ? present : present & ((uint64_t{1} << count) - 1);
    const uint32_t low = static_cast<uint32_t>(seen) >> shift, high = static_cast<uint32_t>(seen >> 32) >> shift;
    const bool negative = shared.query_scale[row(i)] < 0.0f;  // it is never 0
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const uint32_t bits = (j < 4 ? low : high) >> (8 * j % 32);
      if constexpr (Traits::kRopeIsBF16) {
        const float hidden = negative ? INFINITY : -INFINITY;
        if ((bits & 1) == 0) scores.rope[4 * j + 2 * i] = hidden;
        if ((bits & 2) == 0) scores.rope[4 * j + 2 * i + 1] = hidden;
      } else {
        const uint32_t hidden = negative ? 0x7C007C00 : 0xFC00FC00;
        uint32_t& pair = scores.latent[2 * j + i];
        if ((bits & 1) == 0) pair = (pair & 0xFFFF0000u) | (hidden & 0xFFFFu);
        if ((bits & 2) == 0) pair = (pair & 0xFFFFu) | (hidden & 0xFFFF0000u);
      }
    }
  }
}

}  // namespace fp8attn::cuda
