// The prefill kernel: one producer warpgroup and two consumer warpgroups of 64 query rows each, persistent.
#pragma once

#include <cstdint>
#include <cuda/ptx>
#include <type_traits>

#include "cuda/sm90/ptx/warpgroup.h"
#include "cuda/sm90/prefill/epilogue.h"
#include "cuda/sm90/prefill/load.h"
#include "cuda/sm90/prefill/math_16bit.h"
#include "cuda/sm90/prefill/math_e4m3.h"
#include "cuda/sm90/prefill/params.h"
#include "cuda/sm90/prefill/traits.h"
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
    for (TileCoordinates tile; schedule.next(tile);) compute(tile);
    // Shared memory must outlive the last store.
    if (thread_.leads()) ::cuda::ptx::cp_async_bulk_wait_group_read(::cuda::ptx::n32_t<0>{});
  }

 private:
  __device__ void compute(const TileCoordinates& tile) {
    first_row_ = tile.query_tile * Traits::kTileM + thread_.consumer * Traits::kWarpgroupM;
    const int all = blocks_for<Traits>(params_.mask, tile.query_tile * Traits::kTileM, Traits::kTileM);
    int block = blocks_for<Traits>(params_.mask, first_row_, Traits::kWarpgroupM);
    begin(tile);
    for (int skipped = block; skipped < all; ++skipped) skip_block();
    if (Math::kBlocksPerStep == 2 && block % 2 == 1) {
      step<1>(block - 1);
      --block;
    }
#pragma unroll 1
    for (; block > 0; block -= Math::kBlocksPerStep) step<Math::kBlocksPerStep>(block - 1);
    if constexpr (!Math::kQueryInRegisters) release(shared_.query_ring[thread_.consumer].empty[0]);
    finish(tile);
  }

  // Scales, the query fragment, empty accumulators.
  __device__ void begin(const TileCoordinates& tile) {
    const int kv_head = tile.head / params_.queries_per_kv;
    const float common = params_.softmax_scale_log2 * params_.k_scale.at(tile.batch, kv_head);
    float multiplier[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int row = min(first_row_ + thread_.row(i), params_.mask.query_length - 1);
      multiplier[i] = common * params_.q_scale.at(tile.batch, tile.head, row);
    }
    wait_barrier(&shared_.query_ring[thread_.consumer].full[0], query_parity_);
    query_parity_ ^= 1;
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

  // Blocks last, last - 1, .. (kBlocks of them): scores, probabilities, P V.
  template <int kBlocks>
  __device__ __forceinline__ void step(int last) {
    typename Math::Score scores[kBlocks][Math::kScoreRegisters];
    uint32_t probabilities[kBlocks][Math::kProbabilityRegisters];
    float rescale[2];
    compute_scores(scores, last);
    softmax_.update(scores, probabilities, rescale);
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) ptx::pin(probabilities[b]);

    // All waits come before the first product: a wait inside a chain of wgmma would serialise it.
    uint32_t values[kBlocks];
    RingPosition<Traits::kStages> position = value_;
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) {
      wait_barrier(&shared_.value_ring.full[position.stage], position.parity);
      values[b] = ptx::shared_address(shared_.value[position.stage]);
      position.advance();
    }
    Math::add_values(output_, probabilities, rescale, values);
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) release_stage(shared_.value_ring, value_);
  }

  template <int kBlocks>
  __device__ __forceinline__ void compute_scores(typename Math::Score (&scores)[kBlocks][Math::kScoreRegisters],
                                                 int last) {
    uint32_t keys[kBlocks];
    RingPosition<Traits::kStages> position = key_;
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) {
      wait_barrier(&shared_.key_ring.full[position.stage], position.parity);
      keys[b] = ptx::shared_address(shared_.key[position.stage]);
      position.advance();
    }
    ptx::wgmma_fence();
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) {
      Math::issue_scores(scores[b], query_, query_address(), keys[b]);
      ptx::wgmma_commit();
    }
    if constexpr (kBlocks == 2) {
      ptx::wgmma_wait<1>();
      ptx::pin(scores[0]);
      release_stage(shared_.key_ring, key_);
    }
    ptx::wgmma_wait<0>();
    ptx::pin(scores[kBlocks - 1]);
    release_stage(shared_.key_ring, key_);
    const int keys_end = (last + 1) * Traits::kTileN;
    const bool all_visible = params_.mask.visible_end(first_row_) >= keys_end;
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) {
      Math::adjust_scores(scores[b], sign_);
      if (!all_visible) mask_block(scores[b], last - b);
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

  // Passes a block that the other warpgroup needs and this one does not.
  __device__ void skip_block() {
    wait_barrier(&shared_.key_ring.full[key_.stage], key_.parity);
    release_stage(shared_.key_ring, key_);
    wait_barrier(&shared_.value_ring.full[value_.stage], value_.parity);
    release_stage(shared_.value_ring, value_);
  }

  __device__ void finish(const TileCoordinates& tile) {
    const int kv_head = tile.head / params_.queries_per_kv;
    const bool per_channel = params_.v_scale.inner_stride != 0;
    const float v_scale = per_channel ? 1.0f : params_.v_scale.at(tile.batch, kv_head);
    float factor[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float sum = Math::stored_sum(output_, softmax_, i);
      const bool empty = sum == 0.0f;  // the row sees no key
      factor[i] = empty ? 0.0f : v_scale / sum;
      const int row = first_row_ + thread_.row(i);
      if (params_.lse != nullptr && (thread_.lane & 3) == 0 && row < params_.mask.query_length) {
        constexpr float kLn2 = 0.693147180559945f;
        params_.lse[tile.batch * params_.lse_batch_stride + tile.head * params_.lse_head_stride +
                    row * params_.lse_row_stride] = empty ? -INFINITY : softmax_.log2_sum(i, sum) * kLn2;
      }
    }
    if (per_channel) scale_channels(output_.value, params_.v_scale, tile.batch, kv_head, thread_.lane);
    store_output<Traits>(shared_, maps_, params_, tile, output_.value, factor, thread_);
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
  uint32_t query_parity_ = 0;
  int first_row_;
  float sign_ = 1.0f;
  typename Math::Query query_;
  typename Math::Output output_;
  typename Math::Softmax softmax_;
};

// Barriers, and the rows of ones that sum the probabilities. Whole CTA.
template <class Traits>
__device__ void initialise(typename Traits::Shared& shared) {
  constexpr int kTransposingWarps = 3;
  if (threadIdx.x == 0) {
    for (auto& ring : shared.query_ring) ring.init(1, 4);  // consumers: the four warps of one warpgroup
    shared.key_ring.init(1, Traits::kConsumerWarps);
    shared.value_ring.init(Traits::kTransposesV ? kTransposingWarps : 1, Traits::kConsumerWarps);
    shared.raw_ring.init(1, kTransposingWarps);
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
  __syncthreads();
}

template <class Traits>
__global__ void __launch_bounds__(Traits::kThreads, 1)
    prefill_kernel(const __grid_constant__ PrefillMaps maps, const __grid_constant__ PrefillParams params) {
  extern __shared__ uint8_t dynamic_shared[];
  const auto base = (reinterpret_cast<uintptr_t>(dynamic_shared) + 1023) & ~static_cast<uintptr_t>(1023);
  auto& shared = *reinterpret_cast<typename Traits::Shared*>(base);
  initialise<Traits>(shared);

  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  if (warp < 4) {
    ptx::release_registers_down_to<Traits::kProducerRegisters>();
    Producer<Traits> producer(shared, maps, params);
    if (warp == 0) {
      if (lane == 0) producer.load_all();
    } else if constexpr (Traits::kTransposesV) {
      producer.template transpose_all<3>(warp - 1, lane);
    }
  } else {
    ptx::acquire_registers_up_to<Traits::kConsumerRegisters>();
    Consumer<Traits>(shared, maps, params, {warp / 4 - 1, warp % 4, lane}).run();
  }
}

}  // namespace fp8attn::cuda
