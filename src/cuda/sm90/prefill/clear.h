// Two warps that clear what lies in loaded tiles but belongs to no token of the sequence, between TMA and the
// consumers.
#pragma once

#include <cstdint>
#include <cuda/ptx>

#include "cuda/sm90/prefill/traits.h"
#include "cuda/sm90/tile/pipeline.h"

namespace fp8attn::cuda {

// One warp: values behind the last token of a sequence. Their probabilities are 0, but they may be NaN.
template <class Traits>
class ValueCleaner {
 public:
  // Of `blocks` blocks of a stage the tokens from `tokens` on.
  struct Order {
    int stage, blocks, tokens;

    __device__ int packed() const { return stage << 16 | blocks << 12 | tokens; }
    __device__ static Order from(int packed) { return {packed >> 16, packed >> 12 & 0xF, packed & 0xFFF}; }
  };

  __device__ explicit ValueCleaner(typename Traits::Shared& shared) : shared_(shared), lane_(threadIdx.x % 32) {}

  __device__ void run() {
    auto& orders = shared_.value_orders;
    for (RingPosition<2 * Traits::kStages> position;; position.advance()) {
      const int packed = orders.wait(position);
      if (packed == orders.kEnd) return;
      const Order order = Order::from(packed);
      uint8_t* stage = shared_.value[order.stage];
      if constexpr (Traits::kIsE4M3) {
        clear_positions(stage, order);
      } else {
        clear_rows(stage, order);
      }
      // wgmma reads it.
      ::cuda::ptx::fence_proxy_async(::cuda::ptx::space_shared);
      __syncwarp();
      if (lane_ == 0) arrive_barrier(&shared_.value_ring.full[order.stage]);
    }
  }

 private:
  // Rows of a row-major tile.
  __device__ void clear_rows(uint8_t* stage, const Order& order) const {
    using Tile = typename Traits::RowMajorValueTile;
    constexpr int kPieces = Tile::kChunkBytes / 16;
#pragma unroll 1
    for (int chunk = 0; chunk < Tile::kChunks; ++chunk) {
      auto* rows = reinterpret_cast<uint4*>(stage + Tile::row_offset(chunk, 0));
      const int end = order.blocks * Traits::kBlockN * kPieces;
#pragma unroll 1
      for (int i = order.tokens * kPieces + lane_; i < end; i += 32) rows[i] = uint4{};
    }
  }

  // Bytes of every channel's row of a packed tile. A piece holds 16 tokens, word w of it 2 w, 2 w + 1, 2 w + 8 and
  // 2 w + 9 of them.
  __device__ void clear_positions(uint8_t* stage, const Order& order) const {
    using Tile = typename Traits::PackedValueTile;
    const int first = order.tokens / 16, end = order.blocks * Traits::kBlockN / 16;
#pragma unroll 1
    for (int piece = first; piece < end; ++piece) {
      const int tokens = piece == first ? order.tokens % 16 : 0;
#pragma unroll 1
      for (int channel = lane_; channel < Traits::kHeadDimV; channel += 32) {
        auto* words = reinterpret_cast<uint32_t*>(stage + Tile::offset(channel, piece));
#pragma unroll
        for (int w = 0; w < 4; ++w) words[w] &= kept_bytes(tokens, w);
      }
    }
  }

  // Of word `w` of a piece whose first `tokens` tokens stay.
  __device__ static uint32_t kept_bytes(int tokens, int w) {
    const auto bytes = [&](int token) { return (1u << 8 * min(max(tokens - token, 0), 2)) - 1; };  // of two tokens
    return bytes(2 * w) | bytes(2 * w + 8) << 16;
  }

  typename Traits::Shared& shared_;
  const int lane_;
};

// One warp: rows of the query that belong to the next sequence. They take part in no result, but what they are would
// decide between forms of the softmax that round differently, for a warp's rows together.
template <class Traits>
class QueryCleaner {
 public:
  // An order is the slot of a tile; its plan says the rest.
  __device__ explicit QueryCleaner(typename Traits::Shared& shared) : shared_(shared), lane_(threadIdx.x % 32) {}

  __device__ void run() {
    auto& orders = shared_.query_orders;
    for (RingPosition<2 * Traits::kQueryStages> position;; position.advance()) {
      const int slot = orders.wait(position);
      if (slot == orders.kEnd) return;
      const int stage = slot % Traits::kQueryStages;
      for (int consumer = 0; consumer < Traits::kConsumers; ++consumer) {
        const int rows = shared_.tile[slot].warpgroup[consumer].rows;
        if (rows == Traits::kWarpgroupM) continue;
        clear_rows(shared_.query[consumer][stage], rows);
        // wgmma reads it.
        ::cuda::ptx::fence_proxy_async(::cuda::ptx::space_shared);
        __syncwarp();
        if (lane_ == 0) arrive_barrier(&shared_.query_ring[consumer].full[stage]);
      }
    }
  }

 private:
  __device__ void clear_rows(uint8_t* query, int rows) const {
    using Tile = typename Traits::QueryTile;
    constexpr int kPieces = Tile::kChunkBytes / 16;
#pragma unroll 1
    for (int chunk = 0; chunk < Tile::kChunks; ++chunk) {
      auto* pieces = reinterpret_cast<uint4*>(query + Tile::row_offset(chunk, 0));
#pragma unroll 1
      for (int i = rows * kPieces + lane_; i < Tile::kRows * kPieces; i += 32) pieces[i] = uint4{};
    }
  }

  typename Traits::Shared& shared_;
  const int lane_;
};

}  // namespace fp8attn::cuda
