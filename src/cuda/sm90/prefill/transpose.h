// Row-major e4m3 V to the packed order, within shared memory.
#pragma once

#include <cstdint>

#include "cuda/sm90/prefill/traits.h"
#include "cuda/sm90/ptx/matrix.h"

namespace fp8attn::cuda {

// One block of kTileN tokens by the warps that take part, each given its index among kWarps. A unit is 32 tokens by 16
// channels: ldmatrix.trans hands out pairs of tokens with pairs of channels, a byte permute separates the channels, and
// the tokens come out in the packed order (VLayout::kPacked) by themselves.
template <class Traits, int kWarps>
__device__ __forceinline__ void transpose_values(uint32_t raw, uint32_t packed, int warp, int lane) {
  using Raw = typename Traits::RowMajorValueTile;
  using Packed = typename Traits::PackedValueTile;
  constexpr int kChannelGroups = Traits::kHeadDimV / 16;
  constexpr int kUnits = kChannelGroups * (Traits::kTileN / 32);
  // stmatrix tiles: 0 and 1 the even channels of tokens 0..15 and 16..31 of the unit, 2 and 3 the odd channels.
  const int channel_in_unit = 2 * (lane & 7) + (lane >> 4);
  const int piece_in_unit = (lane >> 3) & 1;
#pragma unroll 1  // the producer has 24 registers
  for (int unit = warp; unit < kUnits; unit += kWarps) {
    const int channels = unit % kChannelGroups, tokens = unit / kChannelGroups;
    uint32_t pairs[4];
    ptx::ldmatrix_x4_trans(pairs, raw + Raw::offset(32 * tokens + lane, channels));
    const uint32_t tiles[4] = {
        __byte_perm(pairs[0], pairs[1], 0x6420),
        __byte_perm(pairs[2], pairs[3], 0x6420),
        __byte_perm(pairs[0], pairs[1], 0x7531),
        __byte_perm(pairs[2], pairs[3], 0x7531),
    };
    ptx::stmatrix_x4(packed + Packed::offset(16 * channels + channel_in_unit, 2 * tokens + piece_in_unit), tiles);
  }
}

}  // namespace fp8attn::cuda
