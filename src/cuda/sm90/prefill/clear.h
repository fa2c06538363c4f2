// Clears what lies in loaded tiles but belongs to no token of the sequence, between TMA and the consumers. One warp.
#pragma once

#include <cstdint>
#include <cuda/ptx>

#include "cuda/sm90/prefill/traits.h"

namespace fp8attn::cuda {

// Rows [begin, end) of a row-major tile.
template <class Tile>
__device__ __forceinline__ void clear_rows_of(uint8_t* tile, int begin, int end, int lane) {
  constexpr int kPieces = Tile::kChunkBytes / 16;
#pragma unroll 1
  for (int chunk = 0; chunk < Tile::kChunks; ++chunk) {
    auto* pieces = reinterpret_cast<uint4*>(tile + Tile::row_offset(chunk, 0));
#pragma unroll 1
    for (int i = begin * kPieces + lane; i < end * kPieces; i += 32) pieces[i] = uint4{};
  }
}

// Tokens [begin, end) of a packed tile, bytes of every channel's row; end: a multiple of 16. A piece holds 16 tokens,
// word w of it 2 w, 2 w + 1, 2 w + 8 and 2 w + 9 of them.
template <class Traits>
__device__ __forceinline__ void clear_positions(uint8_t* tile, int begin, int end, int lane) {
#pragma unroll 1
  for (int piece = begin / 16; piece < end / 16; ++piece) {
    const int kept = max(begin - 16 * piece, 0);  // tokens of the piece
#pragma unroll 1
    for (int channel = lane; channel < Traits::kHeadDimV; channel += 32) {
      auto* words = reinterpret_cast<uint32_t*>(tile + Traits::PackedValueTile::offset(channel, piece));
      const auto bytes = [&](int token) { return (1u << 8 * min(max(kept - token, 0), 2)) - 1; };  // of two tokens
#pragma unroll
      for (int w = 0; w < 4; ++w) words[w] &= bytes(2 * w) | bytes(2 * w + 8) << 16;
    }
  }
}

// Of `blocks` blocks of a stage of values the tokens from `tokens` on.
template <class Traits>
__device__ void clear_values(uint8_t* stage, int tokens, int blocks, int lane) {
  if constexpr (Traits::kIsE4M3) {
    clear_positions<Traits>(stage, tokens, blocks * Traits::kBlockN, lane);
  } else {
    clear_rows_of<typename Traits::RowMajorValueTile>(stage, tokens, blocks * Traits::kBlockN, lane);
  }
  ::cuda::ptx::fence_proxy_async(::cuda::ptx::space_shared);  // wgmma reads it
}

// Of a warpgroup's queries the rows from `rows` on.
template <class Traits>
__device__ void clear_query(uint8_t* query, int rows, int lane) {
  using Tile = typename Traits::QueryTile;
  clear_rows_of<Tile>(query, rows, Tile::kRows, lane);
  ::cuda::ptx::fence_proxy_async(::cuda::ptx::space_shared);  // wgmma reads it
}

}  // namespace fp8attn::cuda
