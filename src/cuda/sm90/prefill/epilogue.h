// From accumulators to global memory: division by the sum, V scale, conversion, TMA store, lse.
#pragma once

#include <cstdint>
#include <cuda/ptx>

#include "cuda/sm90/prefill/params.h"
#include "cuda/sm90/prefill/traits.h"
#include "cuda/sm90/ptx/half2.h"
#include "cuda/sm90/ptx/matrix.h"
#include "cuda/sm90/ptx/warpgroup.h"

namespace fp8attn::cuda {

// Where one thread of a consumer warpgroup stands. One register: the rest is cheap to compute again.
struct ConsumerThread {
  int cta_warp;  // consumers begin with warp 4

  __device__ int consumer() const { return cta_warp / 4 - 1; }  // which warpgroup
  __device__ int warp() const { return cta_warp % 4; }          // within the warpgroup
  __device__ int lane() const { return threadIdx.x % 32; }
  // Row of the warpgroup's 64 that fragment row i (0 or 1) of this thread is.
  __device__ int row(int i) const { return 16 * warp() + (lane() >> 2) + 8 * i; }
};

// Scales accumulator row i by factor[i] and puts 64 channels into a staging buffer of the warp. kPack makes one
// register of two floats.
template <class Tile, uint32_t (*kPack)(float, float)>
__device__ __forceinline__ void stage_output(const float* value, const float (&factor)[2], uint32_t tile, int lane) {
#pragma unroll
  for (int j = 0; j < 8; j += 2) {
    uint32_t tiles[4];  // rows 0..7 and 8..15 of channels 8 j, then of channels 8 j + 8
#pragma unroll
    for (int x = 0; x < 4; ++x) {
      const int r = 4 * (j + (x >> 1)) + 2 * (x & 1);
      tiles[x] = kPack(value[r] * factor[x & 1], value[r + 1] * factor[x & 1]);
    }
    ptx::stmatrix_x4(tile + Tile::offset(lane & 15, j + (lane >> 4)), tiles);
  }
}

// Stores 16-bit rows, 64 channels at a time; rows and channels beyond the tensor are clipped by TMA.
template <class Traits, int kRegisters>
__device__ __forceinline__ void store_by_tma(typename Traits::Shared& shared, const PrefillMaps& maps,
                                             const PrefillParams& params, const typename Traits::Plan& plan,
                                             const float (&value)[kRegisters], const float (&factor)[2],
                                             const ConsumerThread& thread) {
  using Tile = typename Traits::OutTile;
  constexpr int kChannels = 64, kBuffers = Traits::kOutBuffers, kRounds = Traits::kHeadDimV / (kChannels * kBuffers);
  // A warp stores its own rows, so that warps do not wait for each other.
  auto& buffers = shared.out[thread.cta_warp - 4];
  // Read ahead: what is waited for below keeps the compiler from that.
  const int row = plan.query_start + plan.row + thread.consumer() * Traits::kWarpgroupM + Tile::kRows * thread.warp();
  const int head = plan.head, entry = params.query_entry(plan.sequence);
#pragma unroll
  for (int round = 0; round < kRounds; ++round) {
    // The stores before have read the buffers.
    if (thread.lane() == 0) ::cuda::ptx::cp_async_bulk_wait_group_read(::cuda::ptx::n32_t<0>{});
    __syncwarp();
#pragma unroll
    for (int buffer = 0; buffer < kBuffers; ++buffer) {
      const float* values = value + (round * kBuffers + buffer) * kChannels / 2;
      const uint32_t staging = ptx::shared_address(buffers[buffer]);
      if (params.out_dtype == DType::kFP16) {
        stage_output<Tile, ElementFP16::pack>(values, factor, staging, thread.lane());
      } else {
        stage_output<Tile, ElementBF16::pack>(values, factor, staging, thread.lane());
      }
    }
    ::cuda::ptx::fence_proxy_async(::cuda::ptx::space_shared);
    __syncwarp();
    if (thread.lane() == 0) {
#pragma unroll
      for (int buffer = 0; buffer < kBuffers; ++buffer) {
        const int32_t at[4] = {(round * kBuffers + buffer) * kChannels, head, row, entry};
        ::cuda::ptx::cp_async_bulk_tensor(::cuda::ptx::space_global, ::cuda::ptx::space_shared, &maps.out, at,
                                          buffers[buffer]);
      }
      ::cuda::ptx::cp_async_bulk_commit_group();
    }
  }
}

// Stores the sequence's own rows straight from the accumulators. kPack makes what lies side by side of two channels.
template <class Traits, class Pair, Pair (*kPack)(float, float), int kRegisters>
__device__ __forceinline__ void store_directly(const PrefillParams& params, const typename Traits::Plan& plan,
                                               const float (&value)[kRegisters], const float (&factor)[2],
                                               const ConsumerThread& thread) {
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int row = plan.row + thread.consumer() * Traits::kWarpgroupM + thread.row(i);
    if (row >= plan.query_length) continue;
    auto* out = static_cast<uint8_t*>(params.out) + params.query_entry(plan.sequence) * params.out_entry_stride +
                (plan.query_start + row) * params.out_row_stride + plan.head * params.out_head_stride;
    Pair* pairs = reinterpret_cast<Pair*>(out) + (thread.lane() & 3);
#pragma unroll
    for (int j = 0; j < kRegisters / 4; ++j) {
      const int r = 4 * j + 2 * i;
      if (8 * j < params.head_dim_v) pairs[4 * j] = kPack(value[r] * factor[i], value[r + 1] * factor[i]);
    }
  }
}

// `rows`: rows of the warpgroup from there on belong to other sequences.
template <class Traits, int kRegisters>
__device__ __forceinline__ void store_output(typename Traits::Shared& shared, const PrefillMaps& maps,
                                             const PrefillParams& params, const typename Traits::Plan& plan, int rows,
                                             const float (&value)[kRegisters], float (&factor)[2],
                                             const ConsumerThread& thread) {
  if constexpr (Traits::kIsPlain) return store_by_tma<Traits>(shared, maps, params, plan, value, factor, thread);
  switch (params.out_dtype) {
    case DType::kF32: return store_directly<Traits, float2, make_float2>(params, plan, value, factor, thread);
    case DType::kE4M3: {
      const float inverse = ptx::reciprocal(params.out_scale.at(0, 0));
      factor[0] *= inverse;
      factor[1] *= inverse;
      return store_directly<Traits, uint16_t, ptx::e4m3x2_from_floats>(params, plan, value, factor, thread);
    }
    default: break;
  }
  if (rows == Traits::kWarpgroupM) return store_by_tma<Traits>(shared, maps, params, plan, value, factor, thread);
  if (params.out_dtype == DType::kFP16) {
    store_directly<Traits, uint32_t, ElementFP16::pack>(params, plan, value, factor, thread);
  } else {
    store_directly<Traits, uint32_t, ElementBF16::pack>(params, plan, value, factor, thread);
  }
}

// What differs from channel to channel: accumulator row i times factor[i] and the V scale, plus the V mean where the
// row sees a key, so that sum[i] is not 0. Leaves factors of 1.
template <int kRegisters>
__device__ __forceinline__ void finish_channels(float (&value)[kRegisters], float (&factor)[2], const float (&sum)[2],
                                                const PrefillParams& params, int batch, int head, int lane) {
#pragma unroll
  for (int j = 0; j < kRegisters / 4; ++j) {
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      // Channels that the tensors lack are not stored.
      const int channel = min(8 * j + 2 * (lane & 3) + c, params.head_dim_v - 1);
      const float scale = params.v_scale.at(batch, head, channel);
      const float mean = params.v_mean.at(batch, head, channel, 0.0f);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        float& element = value[4 * j + 2 * i + c];
        element = fmaf(element, scale * factor[i], sum[i] == 0.0f ? 0.0f : mean);
      }
    }
  }
  factor[0] = factor[1] = 1.0f;
}

}  // namespace fp8attn::cuda
