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

template <class Traits>
class Consumer {
 public:
  using Shared = typename Traits::Shared;
  using Math = std::conditional_t<Traits::kIsE4M3, MathE4M3<Traits>, Math16Bit<Traits>>;

  __device__ Consumer(Shared& shared, const PrefillMaps& maps, const PrefillParams& params, ConsumerThread thread)
      : shared_(shared), maps_(maps), params_(params), thread_(thread) {}

  __device__ void run() {
    StaticSchedule schedule(params_.order);
    uint32_t parity = 0;  // of the query ring
    for (TileCoordinates tile; schedule.next(tile); parity ^= 1) compute(tile, parity);
    // Shared memory must outlive the last store.
    if (thread_.leads()) ::cuda::ptx::cp_async_bulk_wait_group_read(::cuda::ptx::n32_t<0>{});
  }

 private:
  using Scores = typename Math::Score[Math::kBlocksPerStep][Math::kScoreRegisters];
  static constexpr int kBlocks = Math::kBlocksPerStep;
  // The producer loads key and value blocks in turn. Keys that are waited for while the values before them still hold
  // their stages must not stand behind values without one.
  static_assert(Traits::kStages >= (Traits::kOverlapsSteps ? 3 : 2) * kBlocks - 1, "the rings would deadlock");

  // Walks the blocks of keys from the last, where masks apply, to the first.
  __device__ void compute(const TileCoordinates& tile, uint32_t query_parity) {
    first_row_ = tile.query_tile * Traits::kTileM + thread_.consumer * Traits::kWarpgroupM;
    visible_to_all_ = params_.mask.visible_end(first_row_);
    const int all = blocks_for<Traits>(params_.mask, tile.query_tile * Traits::kTileM, Traits::kTileM);
    block_ = blocks_for<Traits>(params_.mask, first_row_, Traits::kWarpgroupM);
    begin(tile, query_parity);
    for (int skipped = block_; skipped < all; ++skipped) skip_block();
    Scores scores;
    if (kBlocks == 2 && block_ % 2 == 1) {
      wait_stages<1>(shared_.key_ring, key_);
      first_scores<1, true>(scores);
      step<1, false>(scores);
    } else if (block_ > 0) {
      wait_stages<kBlocks>(shared_.key_ring, key_);
    }
#pragma unroll 1
    while (block_ > 0 && block_ * Traits::kTileN > visible_to_all_) {
      first_scores<kBlocks, true>(scores);
      step<kBlocks, false>(scores);
    }
    if constexpr (Traits::kOverlapsSteps) {
      if (block_ > 0) {
        first_scores<kBlocks, false>(scores);
#pragma unroll 1
        while (block_ > 0) step<kBlocks, true>(scores);
        step<kBlocks, false>(scores);
      }
    } else {
#pragma unroll 1
      while (block_ > 0) {
        first_scores<kBlocks, false>(scores);
        step<kBlocks, false>(scores);
      }
    }
    if constexpr (!Math::kQueryInRegisters) release(shared_.query_ring[thread_.consumer].empty[0]);
    finish(tile);
  }

  // From a score to octaves, for the rows of this thread.
  __device__ void load_multipliers(const TileCoordinates& tile, float (&multiplier)[2]) const {
    const float common =
        params_.softmax_scale_log2 * params_.k_scale.at(tile.batch, params_.queries_per_kv.divide(tile.head));
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int row = min(first_row_ + thread_.row(i), params_.mask.query_length - 1);
      multiplier[i] = common * params_.q_scale.at(tile.batch, tile.head, row);
    }
  }

  // Scales, the query fragment, empty accumulators.
  __device__ void begin(const TileCoordinates& tile, uint32_t query_parity) {
    float multiplier[2];
    load_multipliers(tile, multiplier);
    wait_barrier(&shared_.query_ring[thread_.consumer].full[0], query_parity);
    if constexpr (Math::kQueryInRegisters) {
      // The rescaling decision waits for every load, so the tile is free behind it.
      Math::load_query(query_, query_address(), thread_.warp, thread_.lane, multiplier);
      release(shared_.query_ring[thread_.consumer].empty[0]);
    } else {
      sign_ = multiplier[0] > 0.0f ? 1.0f : (multiplier[0] < 0.0f ? -1.0f : 0.0f);
      multiplier[0] = multiplier[1] = sign_ == 0.0f ? 1.0f : fabsf(multiplier[0]);
    }
    softmax_.reset(multiplier);
    Math::clear(output_);
  }

  // The three rules of waiting, which keep the latency of a barrier behind products in flight: keys have arrived before
  // their scores are issued; the values of a block are waited for right behind the issue of its scores; the keys of the
  // next step are waited for last, before the wait for the products.

  // Issues the products of the query with the next kCount blocks of keys, a group each.
  template <int kCount>
  __device__ __forceinline__ void issue_scores(Scores& scores) {
    RingPosition<Traits::kStages> position = key_;
#pragma unroll
    for (int b = 0; b < kCount; ++b) {
      Math::issue_scores(scores[b], query_, query_address(), ptx::shared_address(shared_.key[position.stage]));
      ptx::wgmma_commit();
      position.advance();
    }
  }

  // Behind the wait for that product: the stage goes back, mask, maxima.
  template <bool kMasked>
  __device__ __forceinline__ void receive_scores(typename Math::Score (&scores)[Math::kScoreRegisters]) {
    ptx::pin(scores);
    release_stage(shared_.key_ring, key_);
    --block_;
    Math::adjust_scores(scores, sign_);
    if (kMasked && (block_ + 1) * Traits::kTileN > visible_to_all_) mask_block(scores, block_);
    softmax_.raise_maxima(scores);
  }

  // The wait for the kCount products issued last.
  template <int kCount, bool kMasked>
  __device__ __forceinline__ void receive_all(Scores& scores) {
    if constexpr (kCount == 2) {
      ptx::wgmma_wait<1>();
      receive_scores<kMasked>(scores[0]);
    }
    ptx::wgmma_wait<0>();
    receive_scores<kMasked>(scores[kCount - 1]);
    softmax_.template prepare<kCount>(scores, rescale_);
  }

  // The scores of the next kCount blocks, with no other product in flight.
  template <int kCount, bool kMasked>
  __device__ __forceinline__ void first_scores(Scores& scores) {
    ptx::wgmma_fence();
    issue_scores<kCount>(scores);
    wait_stages<kCount>(shared_.value_ring, value_);
    if (Traits::kOverlapsSteps && block_ > kCount) {
      wait_stages<kBlocks>(shared_.key_ring, key_.template ahead<kCount>());
    }
    receive_all<kCount, kMasked>(scores);
  }

  // Probabilities and P V of the kCount blocks whose scores are there. kMore: brings in the scores of the next step,
  // whose products are queued behind P V so that the tensor core works through the fold and the maxima.
  template <int kCount, bool kMore>
  __device__ __forceinline__ void step(Scores& scores) {
    Math::rescale_output(output_, rescale_);
    typename Math::Fresh fresh;
    RingPosition<Traits::kStages> position = value_;
#pragma unroll
    for (int b = 0; b < kCount; ++b) {
      const uint32_t values = ptx::shared_address(shared_.value[position.stage]);
      position.advance();
#pragma unroll
      for (int first = 0; first < Math::kProducts; first += Traits::kProductsPerGroup) {
        // The tensor core starts with these operands while the next ones are made.
        uint32_t a[Traits::kProductsPerGroup][4];
#pragma unroll
        for (int k = 0; k < Traits::kProductsPerGroup; ++k) {
          softmax_.operand(scores[b], first + k, a[k]);
          ptx::pin(a[k]);
        }
        ptx::wgmma_fence();
#pragma unroll
        for (int k = 0; k < Traits::kProductsPerGroup; ++k) {
          Math::multiply_values(output_, fresh, a[k], values, first + k, b == 0 && first + k == 0);
        }
      }
    }
    ptx::wgmma_commit();
    if constexpr (kMore) {
      issue_scores<kBlocks>(scores);
      wait_stages<kBlocks>(shared_.value_ring, value_.template ahead<kCount>());
      if (block_ > kBlocks) wait_stages<kBlocks>(shared_.key_ring, key_.template ahead<kBlocks>());
    } else {
      if (block_ > 0) wait_stages<kBlocks>(shared_.key_ring, key_);
    }
    ptx::wgmma_wait<kMore ? kBlocks : 0>();
    Math::fold(output_, fresh, rescale_);
#pragma unroll
    for (int b = 0; b < kCount; ++b) release_stage(shared_.value_ring, value_);
    if constexpr (kMore) receive_all<kBlocks, false>(scores);
  }

  template <int kCount>
  __device__ __forceinline__ static void wait_stages(RingBarriers<Traits::kStages>& ring,
                                                     RingPosition<Traits::kStages> position) {
#pragma unroll
    for (int b = 0; b < kCount; ++b) {
      wait_barrier(&ring.full[position.stage], position.parity);
      position.advance();
    }
  }

  __device__ __forceinline__ void mask_block(typename Math::Score (&scores)[Math::kScoreRegisters], int block) {
    int visible[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      visible[i] = params_.mask.visible_end(first_row_ + thread_.row(i)) - block * Traits::kTileN;
    }
    mask_scores(scores, visible, thread_.lane);
  }

  // Passes a block that another warpgroup needs and this one does not.
  __device__ void skip_block() {
    wait_barrier(&shared_.key_ring.full[key_.stage], key_.parity);
    release_stage(shared_.key_ring, key_);
    wait_barrier(&shared_.value_ring.full[value_.stage], value_.parity);
    release_stage(shared_.value_ring, value_);
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
      finish_channels(output_.value, factor, sum, params_, tile.batch, kv_head, thread_.lane);
    }
    store_output<Traits>(shared_, maps_, params_, tile, output_.value, factor, thread_);
  }

  __device__ void store_lse(const TileCoordinates& tile, const float (&sum)[2]) const {
    float multiplier[2];
    load_multipliers(tile, multiplier);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int row = first_row_ + thread_.row(i);
      if ((thread_.lane & 3) != 0 || row >= params_.mask.query_length) continue;
      constexpr float kLn2 = 0.693147180559945f;
      params_.lse[tile.batch * params_.lse_batch_stride + tile.head * params_.lse_head_stride +
                  row * params_.lse_row_stride] = sum[i] == 0.0f
                                                      ? -INFINITY
                                                      : softmax_.log2_sum(i, sum[i], multiplier[i]) * kLn2 +
                                                            params_.lse_bias.at(tile.batch, tile.head, row, 0.0f);
    }
  }

  __device__ uint32_t query_address() const { return ptx::shared_address(shared_.query[thread_.consumer]); }

  // One arrival a warp.
  __device__ void release(uint64_t& empty) const {
    __syncwarp();
    if (thread_.lane == 0) arrive_barrier(&empty);
  }
  __device__ void release_stage(RingBarriers<Traits::kStages>& ring, RingPosition<Traits::kStages>& position) const {
    release(ring.empty[position.stage]);
    position.advance();
  }

  Shared& shared_;
  const PrefillMaps& maps_;
  const PrefillParams& params_;
  const ConsumerThread thread_;
  RingPosition<Traits::kStages> key_, value_;
  int first_row_;
  int visible_to_all_;  // every row of the warpgroup sees the keys before this one
  int block_;           // blocks whose scores have not been received yet
  float rescale_[2];    // of the output, before the received scores' P V is added
  float sign_ = 1.0f;
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
    constexpr int kWords = Traits::kOnesRows * Traits::kTileN / 4;
    for (auto& stage : shared.value) {
      auto* ones = reinterpret_cast<uint32_t*>(stage + Traits::kHeadDimV * Traits::kTileN);
      for (int i = threadIdx.x; i < kWords; i += Traits::kThreads) ones[i] = 0x38383838;  // 1.0 four times
    }
  }
  ::cuda::ptx::fence_proxy_async(::cuda::ptx::space_shared);
  cudaGridDependencySynchronize();
  __syncthreads();
}

template <class Traits>
__global__ void __launch_bounds__(Traits::kThreads, 1)
    prefill_kernel(const __grid_constant__ PrefillMaps maps, const __grid_constant__ PrefillParams params) {
  extern __shared__ uint8_t dynamic_shared[];
  const auto base = (reinterpret_cast<uintptr_t>(dynamic_shared) + 1023) & ~static_cast<uintptr_t>(1023);
  auto& shared = *reinterpret_cast<typename Traits::Shared*>(base);
  initialise<Traits>(shared);

  // The shuffle tells the compiler that the warp index is the same for all lanes.
  const int warp = __shfl_sync(0xFFFFFFFFu, threadIdx.x / 32, 0), lane = threadIdx.x % 32;
  if (warp < 4) {
    ptx::release_registers_down_to<Traits::kProducerRegisters>();
    if (warp == 0 && lane == 0) Producer<Traits>(shared, maps, params).load_all();
  } else {
    ptx::acquire_registers_up_to<Traits::kConsumerRegisters>();
    Consumer<Traits>(shared, maps, params, {warp / 4 - 1, warp % 4, lane}).run();
  }
}

}  // namespace fp8attn::cuda
