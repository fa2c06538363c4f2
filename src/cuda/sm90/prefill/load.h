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

__device__ __forceinline__ void expect_without_arriving(uint64_t* barrier, int bytes) {
  ::cuda::ptx::mbarrier_expect_tx(::cuda::ptx::sem_relaxed, ::cuda::ptx::scope_cta, ::cuda::ptx::space_shared, barrier,
                                  bytes);
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

// One warp: tells everybody which tiles the CTA has, with the query of each and what its scores are to be multiplied
// with. Far ahead of the keys, since these come from beyond the L2 cache.
template <class Traits>
class Announcer {
 public:
  using Shared = typename Traits::Shared;
  using Plan = typename Traits::Plan;

  __device__ Announcer(Shared& shared, const PrefillMaps& maps, const PrefillParams& params)
      : shared_(shared), maps_(maps), params_(params), lane_(threadIdx.x % 32) {}

  __device__ void run() {
    StaticSchedule schedule(params_.order, Traits::kIsPlain ? nullptr : &params_.list);
    if constexpr (!Traits::kIsPlain) cudaGridDependencySynchronize();
    for (;; position_.advance()) {
      if constexpr (!kPlansAhead) wait_for_stage();
      TileCoordinates tile;
      if (!schedule.next(tile)) break;
      if (lane_ == 0) {
        plan_tile(tile);
        arrive_barrier(&shared_.announced[slot()]);
      }
      if constexpr (kPlansAhead) wait_for_stage();
      // A plan of numbers that the host knows is made before.
      if constexpr (Traits::kIsPlain) cudaGridDependencySynchronize();
      if (lane_ == 0) load_queries(shared_.tile[slot()]);
      __syncwarp();  // the plan is there
      note_factors(shared_.tile[slot()]);
      if (ragged_queries()) clear_rows(shared_.tile[slot()]);
      release_queries();
    }
    end();
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
  }

  __device__ void place_tile(const TileCoordinates& tile, Plan& plan) const {
    plan.sequence = tile.batch;
    plan.number = static_cast<int>(position_.count);
    plan.head = tile.head;
    plan.kv_head = params_.kv_head(tile.head);
    plan.row = tile.query_tile * Traits::kTileM;
    if constexpr (Traits::kIsPlain) {
      plan.query_start = 0;
      plan.query_length = params_.batch.query_capacity;
      plan.key_length = params_.batch.key_capacity;
      plan.key_start = plan.value_start = plan.key_length == 0 ? kBeforeTheTensor : 0;
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

  __device__ void end() {
    if constexpr (kPlansAhead) wait_for_stage();
    if (lane_ == 0) {
      shared_.tile[slot()].plan_end(previous());
      arrive_barrier(&shared_.announced[slot()]);
    }
    release_queries();
  }

  // Whether rows of a consumer are another sequence's. They take part in no result, but what they are would decide
  // between forms of the softmax that round differently, for a warp's rows together: they are cleared.
  __device__ bool clears_rows(const Plan& plan, int consumer) const {
    return ragged_queries() && plan.warpgroup[consumer].rows < Traits::kWarpgroupM;
  }

  // The rows of all consumers. What their barriers want besides the bytes is release_queries(); rows to be cleared
  // come with a barrier of their own.
  __device__ void load_queries(const Plan& plan) {
    int cleared = 0;
    for (int consumer = 0; consumer < Traits::kConsumers; ++consumer) cleared += clears_rows(plan, consumer);
    if (cleared > 0) expect_bytes(&shared_.query_to_clear.full, cleared * Traits::QueryTile::kBytes);
    for (int consumer = 0; consumer < Traits::kConsumers; ++consumer) {
      uint64_t* full = &shared_.query_to_clear.full;
      if (!clears_rows(plan, consumer)) {
        full = &shared_.query_ring[consumer].full[position_.stage()];
        expect_without_arriving(full, Traits::QueryTile::kBytes);
      }
      load_query(consumer, plan, full);
    }
  }

  // All lanes.
  __device__ void clear_rows(const Plan& plan) {
    bool waited = false;
    for (int consumer = 0; consumer < Traits::kConsumers; ++consumer) {
      if (!clears_rows(plan, consumer)) continue;
      if (!waited) shared_.query_to_clear.wait();
      waited = true;
      clear_query<Traits>(shared_.query[consumer][position_.stage()], plan.warpgroup[consumer].rows, lane_);
    }
  }

  // All lanes arrive, as all have written what the consumers will read.
  __device__ void release_queries() {
    for (auto& ring : shared_.query_ring) arrive_barrier(&ring.full[position_.stage()]);
  }

  // All lanes. The consumers would wait for these loads, once a tile.
  __device__ void note_factors(const Plan& plan) const {
    float score = params_.softmax_scale_log2 * params_.k_scale.at(plan.sequence, plan.kv_head);
    if (params_.q_scale.inner_stride == 0) {
      score *= params_.q_scale.at(plan.sequence, plan.head);
    } else if constexpr (Traits::kNotesRows) {
#pragma unroll 2
      for (int row = lane_; row < Traits::kTileM; row += 32) {
        const int token = plan.query_start + min(plan.row + row, plan.query_length - 1);
        shared_.row_factor[slot()][row] = params_.q_scale.at(plan.sequence, plan.head, token);
      }
    }
    if (lane_ > 0) return;
    auto& factors = shared_.factors[slot()];
    factors.score = score;
    factors.lse = plan.sequence * params_.lse_batch_stride + plan.head * params_.lse_head_stride +
                  (plan.query_start + plan.row) * params_.lse_row_stride;
    if (Traits::kIsE4M3 && params_.v_scale.inner_stride == 0)
      factors.output = params_.v_scale.at(plan.sequence, plan.kv_head);
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

  // A sequence without keys has a short step anyway, all of it hidden: from before the tensor, which reads as 0.
  static constexpr int kBeforeTheTensor = -Traits::kStepN;
  __device__ static int start_of(Placement placement, const Extent& keys, int aligned_start) {
    if (keys.length == 0) return kBeforeTheTensor;
    return placement == Placement::kRows ? keys.start : placement == Placement::kAligned ? aligned_start : 0;
  }

  Shared& shared_;
  const PrefillMaps& maps_;
  const PrefillParams& params_;
  const int lane_;
  RingPosition<Traits::kQueryStages> position_;
};

// What the warps that load keys and values have in common. They go from the last step of a tile to the first. Lanes
// look pages up, the first one loads.
template <class Traits>
class Loader {
 public:
  using Shared = typename Traits::Shared;
  using Plan = typename Traits::Plan;

  __device__ Loader(Shared& shared, const PrefillMaps& maps, const PrefillParams& params)
      : shared_(shared), maps_(maps), params_(params), lane_(threadIdx.x % 32) {}

 protected:
  // What a step loads: `count` blocks from `first` on. In pages, lane i has that of the i-th box.
  struct Blocks {
    int first, count;
    int page;
  };

  // Calls load(plan, blocks, whether it is the step with the last keys) for the steps of all tiles.
  //
  // The thread that announces tiles arrives. It writes a slot again when the consumers have entered the second tile
  // behind this one, for which they have done with this one's values: the wait sees one phase at most.
  template <class Load>
  __device__ void for_each_step(Placement placement, Load load) {
    RingPosition<Traits::kTileSlots> tile;
    cudaGridDependencySynchronize();
    while (true) {
      wait_barrier(&shared_.announced[tile.stage()], tile.parity());
      const Plan& plan = shared_.tile[tile.stage()];
      if (plan.is_none()) return;
      for (int step = plan.steps - 1; step >= 0; --step) {
        const bool last = step == plan.steps - 1;
        load(plan, find(plan, placement, step, last ? plan.last_blocks : Traits::kBlocksPerStep), last);
      }
      tile.count = plan.number + 1;  // a register kept for it is one too many
    }
  }

  __device__ Blocks find(const Plan& plan, Placement placement, int step, int count) const {
    const int first = plan.first_block + step * Traits::kBlocksPerStep;
    Blocks blocks = {first, count, -1};
    if (Traits::kIsPlain || placement != Placement::kPages) return blocks;
    const int token = (first + lane_ * box_blocks()) * Traits::kBlockN;
    // Entries past the length may be anything, and where there is no page TMA fills in zeros.
    const bool used = token < plan.key_length && lane_ * box_blocks() < count;
    if (used) blocks.page = params_.batch.page(plan.sequence, params_.page_size.divide(token));
    return blocks;
  }

  // Of a row-major tensor.
  __device__ int box_blocks() const { return Traits::kIsPlain ? Traits::kShortStep : params_.box_blocks; }

  // Calls load(first row of the tile, place) in the first lane for every `length` blocks, a box or one.
  template <class Load>
  __device__ void for_each_box(const Blocks& blocks, int length, Placement placement, int start, int sequence,
                               Load load) const {
    int row = start + blocks.first * Traits::kBlockN;
#pragma unroll 1
    for (int block = 0; block < blocks.count; block += length) {
      Place place = {row, Traits::kIsPlain || placement == Placement::kEntries ? sequence : 0};
      if (!Traits::kIsPlain && placement == Placement::kPages) {
        const int box = box_blocks() == 1 ? block : block / Traits::kShortStep;
        place.entry = __shfl_sync(0xFFFFFFFFu, blocks.page, box);
        place.row -= params_.page_size.divide(row) * params_.page_size.divisor();
      }
      if (lane_ == 0) load(block * Traits::kBlockN, place);
      row += length * Traits::kBlockN;
    }
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
  RingPosition<Traits::kStages> position_;
};

// One warp.
template <class Traits>
class KeyLoader : Loader<Traits> {
  using Base = Loader<Traits>;
  using Base::lane_, Base::maps_, Base::params_, Base::position_, Base::shared_;

 public:
  using Base::Base;

  __device__ void run() {
    this->for_each_step(params_.keys, [&](const typename Base::Plan& plan, const typename Base::Blocks& blocks, bool) {
      using Tile = typename Traits::KeyTile;
      auto& ring = shared_.key_ring;
      wait_barrier(&ring.empty[position_.stage()], position_.parity() ^ 1);
      uint64_t* full = &ring.full[position_.stage()];
      if (lane_ == 0) expect_bytes(full, blocks.count * Traits::kBlockN * (Tile::kBytes / Tile::kRows));
      this->for_each_box(
          blocks, this->box_blocks(), params_.keys, plan.key_start, plan.sequence, [&](int row, const Place& place) {
            this->template load_rows<Tile>(shared_.key[position_.stage()], maps_.key, full, plan.kv_head, row, place);
          });
      position_.advance();
    });
  }
};

// One warp. It also clears what it has loaded from behind the end of a sequence: the probabilities there are 0, but the
// values may be NaN.
template <class Traits>
class ValueLoader : Loader<Traits> {
  using Base = Loader<Traits>;
  using Base::lane_, Base::maps_, Base::params_, Base::position_, Base::shared_;
  using Tile = typename Traits::ValueTile;

 public:
  using Base::Base;

  __device__ void run() {
    this->for_each_step(
        params_.values, [&](const typename Base::Plan& plan, const typename Base::Blocks& blocks, bool last) {
          auto& ring = shared_.value_ring;
          wait_barrier(&ring.empty[position_.stage()], position_.parity() ^ 1);
          const bool clears =
              !Traits::kIsPlain && last && params_.clears_values && plan.last_tokens < blocks.count * Traits::kBlockN;
          load(plan, blocks, clears ? &shared_.values_to_clear.full : &ring.full[position_.stage()]);
          if (clears) clear(plan);
          position_.advance();
        });
  }

 private:
  __device__ void load(const typename Base::Plan& plan, const typename Base::Blocks& blocks, uint64_t* full) {
    if (lane_ == 0) expect_bytes(full, blocks.count * Traits::kBlockN * Traits::kHeadDimV * Traits::Element::kBytes);
    // Packed values lie in a tile of its own for each block.
    const int length = Traits::kIsE4M3 ? 1 : this->box_blocks();
    this->for_each_box(blocks, length, params_.values, plan.value_start, plan.sequence,
                       [&](int row, const Place& place) {
                         uint8_t* stage = shared_.value[position_.stage()];
                         if constexpr (Traits::kIsE4M3) {
                           load_box(stage + Tile::row_offset(row / Traits::kBlockN, 0), maps_.value, full, place.row, 0,
                                    plan.kv_head, place.entry);
                         } else {
                           this->template load_rows<Tile>(stage, maps_.value, full, plan.kv_head, row, place);
                         }
                       });
  }

  // The tokens behind the last one, when they have come; then the consumers may read.
  __device__ void clear(const typename Base::Plan& plan) {
    shared_.values_to_clear.wait();
    clear_values<Traits>(shared_.value[position_.stage()], plan.last_tokens, plan.last_blocks, lane_);
    __syncwarp();
    if (lane_ == 0) arrive_barrier(&shared_.value_ring.full[position_.stage()]);
  }
};

}  // namespace fp8attn::cuda
