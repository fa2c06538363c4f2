// The producer: TMA loads.
#pragma once

#include <cstdint>
#include <cuda/ptx>

#include "cuda/sm90/prefill/params.h"
#include "cuda/sm90/prefill/traits.h"
#include "cuda/sm90/tile/pipeline.h"
#include "cuda/sm90/tile/scheduler.h"

namespace fp8attn::cuda {

// Blocks of keys that the rows [first_row, first_row + rows) of a sequence need. Rows that see no key have one anyway,
// all of it masked: so every tile is treated alike.
template <class Traits>
__device__ __forceinline__ int blocks_for(const Mask& mask, int first_row, int rows) {
  constexpr int kGrain = Traits::kGrain, kKeys = kGrain * Traits::kBlockN;
  return max((mask.visible_end(first_row + rows - 1) + kKeys - 1) / kKeys, 1) * kGrain;
}

// Steps that so many blocks take. Steps start at multiples of kStepN keys, so the last keys' step may be short.
template <class Traits>
__device__ __forceinline__ int steps_for(int blocks) {
  return (blocks + Traits::kBlocksPerStep - 1) / Traits::kBlocksPerStep;
}

// Two threads of the producer warpgroup bring everything.
template <class Traits>
class Producer {
 public:
  using Shared = typename Traits::Shared;

  __device__ Producer(Shared& shared, const PrefillMaps& maps, const PrefillParams& params)
      : shared_(shared), maps_(maps), params_(params) {}

  // One thread: tells the consumers which tiles they have, with the query of each. Far ahead of the keys, since the
  // queries come from beyond the L2 cache.
  __device__ void load_queries() {
    StaticSchedule schedule(params_.order);
    RingPosition<Traits::kQueryStages> position;
    for (TileCoordinates tile; schedule.next(tile); position.advance()) {
      announce(tile, position);
      for (int consumer = 0; consumer < Traits::kConsumers; ++consumer) {
        load_chunks<typename Traits::QueryTile>(shared_.query[consumer][position.stage()], maps_.query,
                                                &shared_.query_ring[consumer].full[position.stage()], tile.head,
                                                tile.query_tile * Traits::kTileM + consumer * Traits::kWarpgroupM, 1,
                                                tile.batch);
      }
    }
    announce(TileCoordinates::none(), position);
    for (auto& ring : shared_.query_ring) arrive_barrier(&ring.full[position.stage()]);
  }

  // One thread: keys and values, from the last step of a tile to the first.
  __device__ void load_keys_and_values() {
    StaticSchedule schedule(params_.order);
    for (TileCoordinates tile; schedule.next(tile);) {
      const int blocks = blocks_for<Traits>(params_.mask, tile.query_tile * Traits::kTileM, Traits::kTileM);
      const int kv_head = params_.queries_per_kv.divide(tile.head);
      for (int step = steps_for<Traits>(blocks) - 1; step >= 0; --step) {
        const int block = step * Traits::kBlocksPerStep;
        const int count = min(blocks - block, Traits::kBlocksPerStep);
        load_rows<typename Traits::KeyTile>(maps_.key, shared_.key_ring, shared_.key, key_, kv_head, block, count,
                                            tile.batch);
        if constexpr (Traits::kIsE4M3) {
          load_packed(kv_head, block, count, tile.batch);
        } else {
          load_rows<typename Traits::ValueTile>(maps_.value, shared_.value_ring, shared_.value, value_, kv_head, block,
                                                count, tile.batch);
        }
      }
    }
  }

 private:
  // When the stage of its query is free. The consumers read it behind the arrival of the query.
  __device__ void announce(const TileCoordinates& tile, const RingPosition<Traits::kQueryStages>& position) {
    for (auto& ring : shared_.query_ring) wait_barrier(&ring.empty[position.stage()], position.parity() ^ 1);
    shared_.tile[position.count % Traits::kTileSlots] = tile;
  }

  __device__ static void load(uint8_t* destination, const CUtensorMap& map, uint64_t* barrier, int c0, int c1, int c2,
                              int c3) {
    const int32_t coordinates[4] = {c0, c1, c2, c3};
    ::cuda::ptx::cp_async_bulk_tensor(::cuda::ptx::space_cluster, ::cuda::ptx::space_global, destination, &map,
                                      coordinates, barrier);
  }

  __device__ static void expect_bytes(uint64_t* barrier, int bytes) {
    ::cuda::ptx::mbarrier_arrive_expect_tx(::cuda::ptx::sem_release, ::cuda::ptx::scope_cta, ::cuda::ptx::space_shared,
                                           barrier, bytes);
  }

  // `count` times 64 rows of channels, in as many boxes as the tile has chunks.
  template <class Tile>
  __device__ static void load_chunks(uint8_t* destination, const CUtensorMap& map, uint64_t* barrier, int head, int row,
                                     int count, int batch) {
    constexpr int kBoxRows = 64, kChunkChannels = Tile::kChunkBytes / Traits::Element::kBytes;
    expect_bytes(barrier, count * (Tile::kBytes / Tile::kRows * kBoxRows));
    for (int box = 0; box < count; ++box) {
#pragma unroll
      for (int chunk = 0; chunk < Tile::kChunks; ++chunk) {
        load(destination + Tile::row_offset(chunk, box * kBoxRows), map, barrier, chunk * kChunkChannels, head,
             row + box * kBoxRows, batch);
      }
    }
  }

  template <class Tile, int kStages, int kBytes>
  __device__ static void load_rows(const CUtensorMap& map, RingBarriers<kStages>& ring,
                                   uint8_t (&stages)[kStages][kBytes], RingPosition<kStages>& position, int head,
                                   int block, int count, int batch) {
    wait_barrier(&ring.empty[position.stage()], position.parity() ^ 1);
    load_chunks<Tile>(stages[position.stage()], map, &ring.full[position.stage()], head, block * Traits::kBlockN, count,
                      batch);
    position.advance();
  }

  __device__ void load_packed(int head, int block, int count, int batch) {
    using Tile = typename Traits::PackedValueTile;
    wait_barrier(&shared_.value_ring.empty[value_.stage()], value_.parity() ^ 1);
    uint64_t* full = &shared_.value_ring.full[value_.stage()];
    expect_bytes(full, count * Traits::kHeadDimV * Traits::kBlockN);
    for (int box = 0; box < count; ++box) {
      load(shared_.value[value_.stage()] + Tile::row_offset(box, 0), maps_.value, full, (block + box) * Traits::kBlockN,
           0, head, batch);
    }
    value_.advance();
  }

  Shared& shared_;
  const PrefillMaps& maps_;
  const PrefillParams& params_;
  RingPosition<Traits::kStages> key_, value_;
};

}  // namespace fp8attn::cuda
