// The producer: TMA loads.
#pragma once

#include <cstdint>
#include <cuda/ptx>

#include "cuda/sm90/prefill/params.h"
#include "cuda/sm90/prefill/traits.h"
#include "cuda/sm90/tile/pipeline.h"
#include "cuda/sm90/tile/scheduler.h"

namespace fp8attn::cuda {

// Blocks of keys that the rows [first_row, first_row + rows) of a sequence need.
template <class Traits>
__device__ __forceinline__ int blocks_for(const Mask& mask, int first_row, int rows) {
  return (mask.visible_end(first_row + rows - 1) + Traits::kTileN - 1) / Traits::kTileN;
}

template <class Traits>
class Producer {
 public:
  using Shared = typename Traits::Shared;

  __device__ Producer(Shared& shared, const PrefillMaps& maps, const PrefillParams& params)
      : shared_(shared), maps_(maps), params_(params) {}

  // One thread: everything that TMA brings, from the last block of keys to the first.
  __device__ void load_all() {
    StaticSchedule schedule(params_.order);
    for (TileCoordinates tile; schedule.next(tile);) {
      const int first_row = tile.query_tile * Traits::kTileM;
      load_query(tile, first_row);
      const int kv_head = params_.queries_per_kv.divide(tile.head);
      for (int block = blocks_for<Traits>(params_.mask, first_row, Traits::kTileM) - 1; block >= 0; --block) {
        load_rows<typename Traits::KeyTile>(maps_.key, shared_.key_ring, shared_.key, key_, kv_head, block, tile.batch);
        if constexpr (Traits::kVLayout == VLayout::kPacked) {
          load_packed(kv_head, block, tile.batch);
        } else {
          load_rows<typename Traits::ValueTile>(maps_.value, shared_.value_ring, shared_.value, value_, kv_head, block,
                                                tile.batch);
        }
      }
    }
  }

 private:
  __device__ static void load(void* destination, const CUtensorMap& map, uint64_t* barrier, int x, int y, int z,
                              int w) {
    const int32_t coordinates[4] = {x, y, z, w};
    ::cuda::ptx::cp_async_bulk_tensor(::cuda::ptx::space_cluster, ::cuda::ptx::space_global, destination, &map,
                                      coordinates, barrier);
  }

  __device__ static void expect_bytes(uint64_t* barrier, int bytes) {
    ::cuda::ptx::mbarrier_arrive_expect_tx(::cuda::ptx::sem_release, ::cuda::ptx::scope_cta, ::cuda::ptx::space_shared,
                                           barrier, bytes);
  }

  // Rows of channels in as many boxes as the tile has chunks.
  template <class Tile>
  __device__ static void load_chunks(uint8_t* destination, const CUtensorMap& map, uint64_t* barrier, int head, int row,
                                     int batch) {
    constexpr int kChunkChannels = Tile::kChunkBytes / Traits::Element::kBytes;
    expect_bytes(barrier, Tile::kBytes);
#pragma unroll
    for (int chunk = 0; chunk < Tile::kChunks; ++chunk) {
      load(destination + chunk * Tile::kRows * Tile::kChunkBytes, map, barrier, chunk * kChunkChannels, head, row,
           batch);
    }
  }

  __device__ void load_query(const TileCoordinates& tile, int first_row) {
    for (int consumer = 0; consumer < Traits::kConsumers; ++consumer) {
      RingBarriers<1>& ring = shared_.query_ring[consumer];
      wait_barrier(&ring.empty[0], query_.parity ^ 1);
      load_chunks<typename Traits::QueryTile>(shared_.query[consumer], maps_.query, &ring.full[0], tile.head,
                                              first_row + consumer * Traits::kWarpgroupM, tile.batch);
    }
    query_.advance();
  }

  template <class Tile, int kStages, int kBytes>
  __device__ static void load_rows(const CUtensorMap& map, RingBarriers<kStages>& ring,
                                   uint8_t (&stages)[kStages][kBytes], RingPosition<kStages>& position, int head,
                                   int block, int batch) {
    wait_barrier(&ring.empty[position.stage], position.parity ^ 1);
    load_chunks<Tile>(stages[position.stage], map, &ring.full[position.stage], head, block * Traits::kTileN, batch);
    position.advance();
  }

  __device__ void load_packed(int head, int block, int batch) {
    wait_barrier(&shared_.value_ring.empty[value_.stage], value_.parity ^ 1);
    uint64_t* full = &shared_.value_ring.full[value_.stage];
    expect_bytes(full, Traits::kHeadDimV * Traits::kTileN);
    load(shared_.value[value_.stage], maps_.value, full, block * Traits::kTileN, 0, head, batch);
    value_.advance();
  }

  Shared& shared_;
  const PrefillMaps& maps_;
  const PrefillParams& params_;
  RingPosition<1> query_;
  RingPosition<Traits::kStages> key_, value_;
};

}  // namespace fp8attn::cuda
