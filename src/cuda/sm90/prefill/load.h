// The producer: tiles are announced, and TMA brings their queries, keys and values.
#pragma once

#include <cstdint>
#include <cuda/ptx>

#include "cuda/sm90/prefill/clear.h"
#include "cuda/sm90/prefill/params.h"
#include "cuda/sm90/prefill/traits.h"
#include "cuda/sm90/ptx/warpgroup.h"
#include "cuda/sm90/tile/pipeline.h"
#include "cuda/sm90/tile/scheduler.h"

namespace fp8attn::cuda {

__device__ __forceinline__ void expect_bytes(uint64_t* barrier, int bytes) {
  ::cuda::ptx::mbarrier_arrive_expect_tx(::cuda::ptx::sem_release, ::cuda::ptx::scope_cta, ::cuda::ptx::space_shared,
                                         barrier, bytes);
}

__device__ __forceinline__ void load_box(uint8_t* destination, const CUtensorMap& map, uint64_t* barrier, int c0,
                                         int c1, int c2, int c3) {
  const int32_t coordinates[4] = {c0, c1, c2, c3};
  ::cuda::ptx::cp_async_bulk_tensor(::cuda::ptx::space_cluster, ::cuda::ptx::space_global, destination, &map,
                                    coordinates, barrier);
}

// Where rows lie in a tensor of 64-row boxes: the entry of the batch or page, and the row in it.
struct Place {
  int row, entry;
};

// One thread: tells everybody which tiles the CTA has, with the query of each. Far ahead of the keys, since the queries
// come from beyond the L2 cache.
template <class Traits>
class Announcer {
 public:
  using Shared = typename Traits::Shared;
  using Plan = typename Traits::Plan;

  __device__ Announcer(Shared& shared, const PrefillMaps& maps, const PrefillParams& params)
      : shared_(shared), maps_(maps), params_(params) {}

  __device__ void run() {
    StaticSchedule schedule(params_.order, Traits::kIsPlain ? nullptr : &params_.list);
    for (;; position_.advance()) {
      if constexpr (!kPlansAhead) wait_for_stage();
      TileCoordinates tile;
      if (!schedule.next(tile)) break;
      plan_tile(tile);
      arrive_barrier(&shared_.announced[slot()]);
      if constexpr (kPlansAhead) wait_for_stage();
      load_queries(shared_.tile[slot()]);
    }
    if constexpr (kPlansAhead) wait_for_stage();
    shared_.tile[slot()].plan_end(previous());
    arrive_barrier(&shared_.announced[slot()]);
    for (auto& ring : shared_.query_ring) arrive_barrier(&ring.full[position_.stage()]);
    if (ragged_queries()) shared_.query_orders.end();
  }

 private:
  // The slot of tile i held tile i - kTileSlots, which is done with when the consumers have entered the second tile
  // behind it. They have entered tile i - 1 - kQueryStages, or its successor would not have been announced; so with few
  // stages a tile can be planned before there is a stage for its query.
  static constexpr bool kPlansAhead = Traits::kTileSlots > Traits::kQueryStages + 2;

  // Works out, in the slot of the tile, what is to be done of it.
  __device__ void plan_tile(const TileCoordinates& tile) {
    place_tile(tile, shared_.tile[slot()]);
    // In two parts, the second of which reads back what the first has written: there are 24 registers.
    Plan& plan = shared_.tile[ptx::launder(slot())];
    const Mask mask{plan.query_length, plan.key_length, params_.causal, Traits::kIsPlain ? -1 : params_.window_left};
    plan.template plan_steps<Traits::kBlocksPerStep>(mask, ragged_queries(), previous());
    if constexpr (Traits::kIsPlain) plan.template lengthen_last_steps<Traits::kGrain>();
  }

  __device__ void place_tile(const TileCoordinates& tile, Plan& plan) const {
    plan.sequence = tile.batch;
    plan.head = tile.head;
    plan.row = tile.query_tile * Traits::kTileM;
    if constexpr (Traits::kIsPlain) {
      plan.query_start = 0;
      plan.query_length = params_.batch.query_capacity;
      plan.key_length = params_.batch.key_capacity;
      plan.key_start = plan.value_start = plan.key_length == 0 ? -Traits::kBlockN : 0;
      return;
    }
    const Extent queries = params_.batch.queries(tile.batch);
    plan.query_start = queries.start;
    plan.query_length = queries.length;
    const Extent keys = params_.batch.keys(tile.batch);
    plan.key_length = keys.length;
    const int aligned_start = params_.batch.aligned_start(tile.batch, keys);
    plan.key_start = start_of(params_.keys, keys, aligned_start);
    plan.value_start = start_of(params_.values, keys, aligned_start);
  }

  __device__ int slot() const { return position_.count % Traits::kTileSlots; }
  // The tile announced last; its slot is not written before three more.
  __device__ const Plan* previous() const {
    return position_.count == 0 ? nullptr : &shared_.tile[(position_.count - 1) % Traits::kTileSlots];
  }

  // Until all consumers have released the stage of the query. The slot of the tile is free then too.
  __device__ void wait_for_stage() {
    for (auto& ring : shared_.query_ring) wait_barrier(&ring.empty[position_.stage()], position_.parity() ^ 1);
  }

  // The rows of all consumers. Where some are another sequence's, a warp clears them before the consumer may read.
  __device__ void load_queries(const Plan& plan) {
    int cleared = 0;
    if (ragged_queries()) {
      for (const WarpgroupPlan& part : plan.warpgroup) cleared += part.rows < Traits::kWarpgroupM;
    }
    uint64_t* order = nullptr;
    if (cleared > 0) {
      order = shared_.query_orders.add(slot());
      expect_bytes(order, cleared * Traits::QueryTile::kBytes);
    }
    for (int consumer = 0; consumer < Traits::kConsumers; ++consumer) {
      uint64_t* full = order;
      if (!ragged_queries() || plan.warpgroup[consumer].rows == Traits::kWarpgroupM) {
        full = &shared_.query_ring[consumer].full[position_.stage()];
        expect_bytes(full, Traits::QueryTile::kBytes);
      }
      load_query(consumer, plan, full);
    }
  }

  __device__ void load_query(int consumer, const Plan& plan, uint64_t* full) {
    using Tile = typename Traits::QueryTile;
    constexpr int kChannels = Tile::kChunkBytes / Traits::Element::kBytes;
    uint8_t* stage = shared_.query[consumer][position_.stage()];
    const int row = plan.query_start + plan.row + consumer * Traits::kWarpgroupM;
#pragma unroll
    for (int chunk = 0; chunk < Tile::kChunks; ++chunk) {
      load_box(stage + Tile::row_offset(chunk, 0), maps_.query, full, chunk * kChannels, plan.head, row,
               params_.query_entry(plan.sequence));
    }
  }

  __device__ bool ragged_queries() const { return !Traits::kIsPlain && params_.batch.ragged_queries(); }

  // A sequence without keys has one block anyway, all of it hidden: from before the tensor, which reads as 0.
  __device__ static int start_of(Placement placement, const Extent& keys, int aligned_start) {
    if (keys.length == 0) return -Traits::kBlockN;
    return placement == Placement::kRows ? keys.start : placement == Placement::kAligned ? aligned_start : 0;
  }

  Shared& shared_;
  const PrefillMaps& maps_;
  const PrefillParams& params_;
  RingPosition<Traits::kQueryStages> position_;
};

// One warp: keys and values, from the last step of a tile to the first. Lanes look pages up, the first one loads.
template <class Traits>
class Loader {
 public:
  using Shared = typename Traits::Shared;
  using Plan = typename Traits::Plan;

  __device__ Loader(Shared& shared, const PrefillMaps& maps, const PrefillParams& params)
      : shared_(shared), maps_(maps), params_(params), lane_(threadIdx.x % 32) {}

  __device__ void run() {
    // The thread that announces tiles arrives. It writes a slot again when the consumers have entered the second tile
    // behind this one, whose keys are loaded behind this one's: the wait sees one phase at most.
    for (RingPosition<Traits::kTileSlots> tile;; tile.advance()) {
      wait_barrier(&shared_.announced[tile.stage()], tile.parity());
      const Plan& plan = shared_.tile[tile.stage()];
      if (plan.is_none()) break;
      const int head = params_.kv_head(plan.head);
      for (int step = plan.steps - 1; step >= 0; --step) {
        const bool last = step == plan.steps - 1;
        const Blocks blocks = find(plan, step, last ? plan.last_blocks : Traits::kBlocksPerStep);
        load_keys(plan, head, blocks);
        load_values(plan, head, blocks, last);
      }
    }
    if (clears_values() && lane_ == 0) shared_.value_orders.end();
  }

 private:
  using KeyTile = typename Traits::KeyTile;
  using ValueTile = typename Traits::ValueTile;

  // What a step loads: `count` blocks from `first` on. In pages, box i of them lies where lane i says.
  struct Blocks {
    int first, count;
    Place page;
  };

  __device__ bool clears_values() const { return !Traits::kIsPlain && params_.clears_values; }

  __device__ Blocks find(const Plan& plan, int step, int count) const {
    const int first = (plan.first_step + step) * Traits::kBlocksPerStep;
    Blocks blocks = {first, count, {0, -1}};
    if (Traits::kIsPlain || params_.keys != Placement::kPages) return blocks;
    const int token = first * Traits::kBlockN + lane_ * params_.box_rows;
    const int index = params_.page_size.divide(token);
    blocks.page.row = token - index * params_.page_size.divisor();
    // Entries past the length may be anything, and where there is no page TMA fills in zeros.
    const bool used = token < plan.key_length && lane_ * params_.box_rows < count * Traits::kBlockN;
    if (used) blocks.page.entry = params_.batch.page(plan.sequence, index);
    return blocks;
  }

  // Calls load(row of the tile, rows, place) in the first lane for every box.
  template <class Load>
  __device__ void for_each_box(const Blocks& blocks, Placement placement, int start, int sequence, Load load) const {
    if (!Traits::kIsPlain && placement == Placement::kPages) {
      for (int row = 0, box = 0; row < blocks.count * Traits::kBlockN; row += params_.box_rows, ++box) {
        const Place place = {__shfl_sync(0xFFFFFFFFu, blocks.page.row, box),
                             __shfl_sync(0xFFFFFFFFu, blocks.page.entry, box)};
        if (lane_ == 0) load(row, place);
      }
    } else if (lane_ == 0) {
      const int entry = Traits::kIsPlain || placement == Placement::kEntries ? sequence : 0;
      for (int row = 0; row < blocks.count * Traits::kBlockN; row += Traits::kBlockN) {
        load(row, Place{start + blocks.first * Traits::kBlockN + row, entry});
      }
    }
  }

  __device__ void load_keys(const Plan& plan, int head, const Blocks& blocks) {
    auto& ring = shared_.key_ring;
    wait_barrier(&ring.empty[key_.stage()], key_.parity() ^ 1);
    uint64_t* full = &ring.full[key_.stage()];
    if (lane_ == 0) expect_bytes(full, blocks.count * Traits::kBlockN * (KeyTile::kBytes / KeyTile::kRows));
    for_each_box(blocks, params_.keys, plan.key_start, plan.sequence, [&](int row, const Place& place) {
      load_rows<KeyTile>(shared_.key[key_.stage()], maps_.key, full, head, row, place);
    });
    key_.advance();
  }

  __device__ void load_values(const Plan& plan, int head, const Blocks& blocks, bool last) {
    auto& ring = shared_.value_ring;
    wait_barrier(&ring.empty[value_.stage()], value_.parity() ^ 1);
    uint64_t* full = &ring.full[value_.stage()];
    if (lane_ == 0 && last && clears_values() && plan.last_tokens < Traits::kBlockN) {
      const typename ValueCleaner<Traits>::Order order = {value_.stage(), blocks.count - 1, plan.last_tokens};
      full = shared_.value_orders.add(order.packed());
    }
    if (lane_ == 0) expect_bytes(full, blocks.count * Traits::kBlockN * Traits::kHeadDimV * Traits::Element::kBytes);
    for_each_box(blocks, params_.values, plan.value_start, plan.sequence, [&](int row, const Place& place) {
      uint8_t* stage = shared_.value[value_.stage()];
      if constexpr (Traits::kIsE4M3) {
        load_box(stage + ValueTile::row_offset(row / Traits::kBlockN, 0), maps_.value, full, place.row, 0, head,
                 place.entry);
      } else {
        load_rows<ValueTile>(stage, maps_.value, full, head, row, place);
      }
    });
    value_.advance();
  }

  // A box of rows of channels, in as many copies as the tile has chunks.
  template <class Tile>
  __device__ static void load_rows(uint8_t* stage, const CUtensorMap& map, uint64_t* full, int head, int row,
                                   const Place& place) {
    constexpr int kChannels = Tile::kChunkBytes / Traits::Element::kBytes;
#pragma unroll
    for (int chunk = 0; chunk < Tile::kChunks; ++chunk) {
      load_box(stage + Tile::row_offset(chunk, row), map, full, chunk * kChannels, head, place.row, place.entry);
    }
  }

  Shared& shared_;
  const PrefillMaps& maps_;
  const PrefillParams& params_;
  const int lane_;
  RingPosition<Traits::kStages> key_, value_;
};

}  // namespace fp8attn::cuda
