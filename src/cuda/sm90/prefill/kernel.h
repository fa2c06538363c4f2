// The prefill kernel: one producer warpgroup and two or three consumer warpgroups of 64 query rows each, persistent.
#pragma once

#include <cstdint>
#include <cuda/ptx>
#include <type_traits>

#include "cuda/sm90/prefill/epilogue.h"
#include "cuda/sm90/prefill/load.h"
#include "cuda/sm90/prefill/math_16bit.h"
#include "cuda/sm90/prefill/math_e4m3.h"
#include "cuda/sm90/prefill/params.h"
#include "cuda/sm90/prefill/traits.h"
#include "cuda/sm90/ptx/warpgroup.h"
#include "cuda/sm90/tile/mask_scores.h"
#include "cuda/sm90/tile/pipeline.h"
#include "cuda/sm90/tile/scheduler.h"

namespace fp8attn::cuda {

// One consumer warpgroup: a pipeline over the steps of all its tiles.
//
// A step multiplies the probabilities of its keys with their values, and then the query with the keys of the next step,
// which may belong to the next tile: so the end of one tile and the beginning of the next hide behind each other.
template <class Traits>
class Consumer {
 public:
  using Shared = typename Traits::Shared;
  using Math = std::conditional_t<Traits::kIsE4M3, MathE4M3<Traits>, Math16Bit<Traits>>;

  __device__ Consumer(Shared& shared, const PrefillMaps& maps, const PrefillParams& params, ConsumerThread thread)
      : shared_(shared), maps_(maps), params_(params), thread_(thread) {}

  // Walks the steps of keys of a tile from the last, where masks apply, to the first.
  __device__ void run() {
    if (params_.mask.key_length == 0) {
      store_empty_tiles();
    } else if (enter()) {
      Scores scores;
      wait_stage(shared_.key_ring, key_);
      issue_all_scores(scores);
      ptx::wgmma_wait<0>();
      begin();
      while (true) {
        receive(scores);
        const bool last = unscored_ == 0;
        const bool more = !last || enter();
        step(scores, more);
        if (last) {
          finish(tile_back(2));  // the next one, or the end, has been entered
          if (!more) break;
          begin();
        } else {
          blocks_ = kBlocks;
        }
      }
    }
    // Shared memory must outlive the last store.
    if (thread_.leads()) ::cuda::ptx::cp_async_bulk_wait_group_read(::cuda::ptx::n32_t<0>{});
  }

 private:
  static constexpr int kBlocks = Traits::kBlocksPerStep;
  // Scores come in parts of at most 128 keys, an accumulator each.
  static constexpr int kParts = Math::kParts;
  static constexpr int kBlocksPerPart = kBlocks / kParts;
  using Part = typename Math::Score[Math::kScoreRegisters];
  using Scores = Part[kParts];
  // Whether the first scores of a step are issued before P V of the step before is folded: where the registers suffice.
  static constexpr bool kOverlaps = Traits::kOverlaps;

  __device__ int first_row(const TileCoordinates& tile) const {
    return tile.query_tile * Traits::kTileM + thread_.consumer() * Traits::kWarpgroupM;
  }
  __device__ int blocks_of(const TileCoordinates& tile) const {
    return blocks_for<Traits>(params_.mask, first_row(tile), Traits::kWarpgroupM);
  }
  // Steps before those of the warpgroup's rows, which only other warpgroups need.
  __device__ int skipped_of(const TileCoordinates& tile) const {
    const int tile_blocks = blocks_for<Traits>(params_.mask, tile.query_tile * Traits::kTileM, Traits::kTileM);
    return steps_for<Traits>(tile_blocks) - steps_for<Traits>(blocks_of(tile));
  }

  // Without any key.
  __device__ void store_empty_tiles() {
    while (next_tile()) {
      release_query();
      multiplier_[0] = multiplier_[1] = 1.0f;
      softmax_.reset(multiplier_);
      Math::clear(output_);
      finish(tile_back(1));
    }
  }

  // P V of a step, and the scores of the next one. Without more steps these are scores of whatever is there, and nobody
  // reads them.
  __device__ __forceinline__ void step(Scores& scores, bool more) {
    if (kBlocks == Traits::kGrain || blocks_ == kBlocks) return step_of<kBlocks>(scores, more);
    step_of<Traits::kGrain>(scores, more);
  }

  template <int kCount>
  __device__ __forceinline__ void step_of(Scores& scores, bool more) {
    typename Math::Fresh fresh;
    multiply<kCount>(scores, fresh);
    // Barriers are waited for while products are in flight.
    wait_stage_if(more, shared_.key_ring, key_);
    if constexpr (kOverlaps) {
      issue_scores<0>(scores);
      ptx::wgmma_wait<1>();
      fold(fresh);
      if constexpr (kParts == 2) issue_scores<1>(scores);
    } else {
      ptx::wgmma_wait<0>();
      fold(fresh);
      issue_all_scores(scores);
    }
    wait_stage_if(more, shared_.value_ring, value_);
    ptx::wgmma_wait<0>();
  }

  // P V of kCount blocks. Leaves its last group in flight.
  template <int kCount>
  __device__ __forceinline__ void multiply(Scores& scores, typename Math::Fresh& fresh) {
    Math::rescale_output(output_, rescale_);
    const uint32_t values = ptx::shared_address(shared_.value[value_.stage()]);
    if constexpr (Math::kInChunks) {
      uint32_t operands[kCount * Math::kProductsPerBlock][4];
      make_operands(scores, 0, operands);
      Math::multiply_chunks(output_, fresh, operands, values, rescale_);
    } else {
#pragma unroll
      for (int block = 0; block < kCount; ++block) {
        // The tensor core starts with the operands of one block while those of the next are made.
        uint32_t operands[Math::kProductsPerBlock][4];
        make_operands(scores, block, operands);
        ptx::wgmma_fence();
        Math::multiply(output_, fresh, operands, values, block);
      }
      ptx::wgmma_commit();
    }
  }

  // Operands of the products from the first one of `block` on.
  template <int kProducts>
  __device__ __forceinline__ void make_operands(Scores& scores, int block, uint32_t (&operands)[kProducts][4]) {
#pragma unroll
    for (int k = 0; k < kProducts; ++k) {
      constexpr int kProductsPerPart = kBlocksPerPart * Math::kProductsPerBlock;
      const int product = block * Math::kProductsPerBlock + k;
      softmax_.operand(scores[product / kProductsPerPart], product % kProductsPerPart, operands[k]);
      ptx::pin(operands[k]);
    }
  }

  template <int kPart>
  __device__ __forceinline__ void issue_scores(Scores& scores) {
    ptx::wgmma_fence();
    Math::issue_scores(scores[kPart], query_, query_address(), ptx::shared_address(shared_.key[key_.stage()]), kPart);
    ptx::wgmma_commit();
  }

  __device__ __forceinline__ void issue_all_scores(Scores& scores) {
    issue_scores<0>(scores);
    if constexpr (kParts == 2) issue_scores<1>(scores);
  }

  // Behind the wait for P V.
  __device__ __forceinline__ void fold(typename Math::Fresh& fresh) {
    Math::fold(output_, fresh, rescale_);
    release_stage(shared_.value_ring, value_);
  }

  // Behind the wait for the scores of a step: the stage goes back, mask, maxima.
  __device__ __forceinline__ void receive(Scores& scores) {
    release_stage(shared_.key_ring, key_);
    --unscored_;
    if (!Traits::kQueryInRegisters && unscored_ == 0) release_query();
#pragma unroll
    for (auto& part : scores) {
      ptx::pin(part);
      Math::adjust_scores(part, params_.softmax_scale_log2);
    }
    const int first_key = unscored_ * Traits::kStepN;
    if (first_key + Traits::kStepN > visible_to_all_) mask(scores, first_key);
    softmax_.raise_maxima(scores);
    softmax_.prepare(scores, rescale_);
  }

  __device__ __forceinline__ void mask(Scores& scores, int first_key) {
    const int row = first_row(tile_back(1));
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      int visible[2];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        visible[i] = params_.mask.visible_end(row + thread_.row(i)) - first_key - part * (Traits::kStepN / kParts);
      }
      mask_scores(scores[part], visible, thread_.lane());
    }
  }

  // From a score to octaves, for the rows of this thread.
  __device__ void load_multipliers(const TileCoordinates& tile, float (&multiplier)[2]) const {
    const float common =
        params_.softmax_scale_log2 * params_.k_scale.at(tile.batch, params_.queries_per_kv.divide(tile.head));
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int row = min(first_row(tile) + thread_.row(i), params_.mask.query_length - 1);
      multiplier[i] = common * params_.q_scale.at(tile.batch, tile.head, row);
    }
  }

  // The tile that was entered last (1), or the one before (2).
  __device__ const TileCoordinates& tile_back(int count) const {
    return shared_.tile[(entered_.count - count) % Traits::kTileSlots];
  }

  // Waits for the next tile and its query. False: there is none.
  __device__ bool next_tile() {
    wait_barrier(&shared_.query_ring[thread_.consumer()].full[entered_.stage()], entered_.parity());
    entered_.advance();
    return !tile_back(1).is_none();
  }

  // Makes the query of the next tile ready for issue_scores(), and passes over keys that only other warpgroups need.
  // False: there is no next tile.
  __device__ __forceinline__ bool enter() {
    if (!next_tile()) return false;
    const TileCoordinates tile = tile_back(1);
    load_multipliers(tile, multiplier_);
    if constexpr (Traits::kIsE4M3) {
      Math::prepare_query(query_, query_address(), thread_.warp(), thread_.lane(), multiplier_);
      if constexpr (Traits::kQueryInRegisters) {
        // The rescaling decision waits for every load, so the tile is free behind it.
        release_query();
      } else {
        // wgmma reads what any warp of the warpgroup may have rewritten. The 128 threads of the warpgroup meet.
        ptx::named_barrier_sync<128>(1 + thread_.consumer());
      }
    } else {
      // The scores carry the sign (adjust_scores()).
      multiplier_[0] = multiplier_[1] = multiplier_[0] == 0.0f ? 1.0f : fabsf(multiplier_[0]);
    }
    for (int i = skipped_of(tile); i > 0; --i) skip_stage(shared_.key_ring, key_);
    return true;
  }

  // The state of the tile that has been entered, when the tile before it is finished.
  __device__ __forceinline__ void begin() {
    const TileCoordinates tile = tile_back(1);
    visible_to_all_ = params_.mask.visible_end(first_row(tile));
    const int blocks = blocks_of(tile);
    unscored_ = steps_for<Traits>(blocks);
    blocks_ = blocks - (unscored_ - 1) * kBlocks;
    for (int i = skipped_of(tile); i > 0; --i) skip_stage(shared_.value_ring, value_);
    wait_stage(shared_.value_ring, value_);
    softmax_.reset(multiplier_);
    Math::clear(output_);
  }

  __device__ static void wait_stage(RingBarriers<Traits::kStages>& ring,
                                    const RingPosition<Traits::kStages>& position) {
    wait_barrier(&ring.full[position.stage()], position.parity());
  }

  // Without a branch. Where there is no stage to come, the phase before it has passed.
  __device__ static void wait_stage_if(bool more, RingBarriers<Traits::kStages>& ring,
                                       const RingPosition<Traits::kStages>& position) {
    wait_barrier(&ring.full[position.stage()], position.parity() ^ static_cast<uint32_t>(!more));
  }

  __device__ void skip_stage(RingBarriers<Traits::kStages>& ring, RingPosition<Traits::kStages>& position) const {
    wait_stage(ring, position);
    release_stage(ring, position);
  }

  __device__ void finish(const TileCoordinates& tile) {
    const int kv_head = params_.queries_per_kv.divide(tile.head);
    const bool per_channel = params_.v_scale.inner_stride != 0;
    const float v_scale = per_channel ? 1.0f : params_.v_scale.at(tile.batch, kv_head);
    float factor[2], sum[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      sum[i] = Math::stored_sum(output_, softmax_, i);
      factor[i] = sum[i] == 0.0f ? 0.0f : v_scale * ptx::reciprocal(sum[i]);  // 0: the row sees no key
    }
    if (params_.lse != nullptr) store_lse(tile, sum);
    if (per_channel || params_.v_mean.data != nullptr) {
      finish_channels(output_.value, factor, sum, params_, tile.batch, kv_head, thread_.lane());
    }
    store_output<Traits>(shared_, maps_, params_, tile, output_.value, factor, thread_);
  }

  __device__ void store_lse(const TileCoordinates& tile, const float (&sum)[2]) const {
    float multiplier[2];
    load_multipliers(tile, multiplier);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int row = first_row(tile) + thread_.row(i);
      if ((thread_.lane() & 3) != 0 || row >= params_.mask.query_length) continue;
      constexpr float kLn2 = 0.693147180559945f;
      params_.lse[tile.batch * params_.lse_batch_stride + tile.head * params_.lse_head_stride +
                  row * params_.lse_row_stride] = sum[i] == 0.0f
                                                      ? -INFINITY
                                                      : softmax_.log2_sum(i, sum[i], multiplier[i]) * kLn2 +
                                                            params_.lse_bias.at(tile.batch, tile.head, row, 0.0f);
    }
  }

  // The stage of the tile entered last.
  __device__ int query_stage() const { return (entered_.count - 1) % Traits::kQueryStages; }
  __device__ uint32_t query_address() const {
    return ptx::shared_address(shared_.query[thread_.consumer()][query_stage()]);
  }
  __device__ void release_query() const { release(shared_.query_ring[thread_.consumer()].empty[query_stage()]); }

  // One arrival a warp.
  __device__ void release(uint64_t& empty) const {
    __syncwarp();
    if (thread_.lane() == 0) arrive_barrier(&empty);
  }
  __device__ void release_stage(RingBarriers<Traits::kStages>& ring, RingPosition<Traits::kStages>& position) const {
    release(ring.empty[position.stage()]);
    position.advance();
  }

  Shared& shared_;
  const PrefillMaps& maps_;
  const PrefillParams& params_;
  const ConsumerThread thread_;
  RingPosition<Traits::kStages> key_, value_;
  RingPosition<Traits::kQueryStages> entered_;  // tiles, the end of them included
  int visible_to_all_;                          // every row of the warpgroup sees the keys before this one
  int blocks_;                                  // of the step whose scores have been received last
  int unscored_;                                // steps of the tile whose scores have not been received yet
  float multiplier_[2];                         // from a score to octaves, of the tile entered last
  float rescale_[2];                            // of the output, before the received scores' P V is added
  typename Math::Query query_;
  typename Math::Output output_;
  typename Math::Softmax softmax_;
};

// Barriers, and the rows of ones that sum the probabilities; then the end of the kernel before, whose results may be
// read and whose inputs overwritten from then on. Whole CTA.
template <class Traits>
__device__ void initialise(typename Traits::Shared& shared) {
  if (threadIdx.x == 0) {
    for (auto& ring : shared.query_ring) ring.init(1, 4);  // consumers: the four warps of one warpgroup
    shared.key_ring.init(1, Traits::kConsumerWarps);
    shared.value_ring.init(1, Traits::kConsumerWarps);
    ::cuda::ptx::fence_mbarrier_init(::cuda::ptx::sem_release, ::cuda::ptx::scope_cluster);
  }
  if constexpr (Traits::kIsE4M3) {
    using Tile = typename Traits::PackedValueTile;
    constexpr int kWords = Traits::kOnesRows * Tile::kChunkBytes / 4;
    for (auto& stage : shared.value) {
      for (int chunk = 0; chunk < Tile::kChunks; ++chunk) {
        auto* ones = reinterpret_cast<uint32_t*>(stage + Tile::row_offset(chunk, Traits::kHeadDimV));
        for (int i = threadIdx.x; i < kWords; i += Traits::kThreads) ones[i] = 0x38383838;  // 1.0 four times
      }
    }
  }
  ::cuda::ptx::fence_proxy_async(::cuda::ptx::space_shared);
  cudaGridDependencySynchronize();
  __syncthreads();
}

template <class Traits>
__global__ void __launch_bounds__(Traits::kThreads, 1)
    prefill_kernel(const __grid_constant__ PrefillMaps maps, const __grid_constant__ PrefillParams params) {
  extern __shared__ __align__(1024) uint8_t dynamic_shared[];
  auto& shared = *reinterpret_cast<typename Traits::Shared*>(dynamic_shared);
  initialise<Traits>(shared);

  // The shuffle tells the compiler that the warp index is the same for all lanes.
  const int warp = __shfl_sync(0xFFFFFFFFu, threadIdx.x / 32, 0), lane = threadIdx.x % 32;
  if (warp < 4) {
    ptx::release_registers_down_to<Traits::kProducerRegisters>();
    Producer<Traits> producer(shared, maps, params);
    if (warp == 0 && lane == 0 && params.mask.key_length > 0) producer.load_keys_and_values();
    if (warp == 1 && lane == 0) producer.load_queries();
  } else {
    ptx::acquire_registers_up_to<Traits::kConsumerRegisters>();
    Consumer<Traits>(shared, maps, params, {warp}).run();
  }
}

}  // namespace fp8attn::cuda
