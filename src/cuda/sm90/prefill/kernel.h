// The prefill kernel: one producer warpgroup and two or three consumer warpgroups of 64 query rows each, persistent.
#pragma once

#include <cstdint>
#include <cuda/ptx>

#include "cuda/sm90/prefill/consumer.h"
#include "cuda/sm90/prefill/load.h"
#include "cuda/sm90/prefill/params.h"
#include "cuda/sm90/prefill/traits.h"
#include "cuda/sm90/ptx/warpgroup.h"

namespace fp8attn::cuda {

// Barriers, and the rows of ones that sum the probabilities. Whole CTA.
template <class Traits>
__device__ void initialise(typename Traits::Shared& shared) {
  if (threadIdx.x == 0) {
    for (auto& ring : shared.query_ring) ring.init(32, 4);  // the warp that announces tiles; the four of a warpgroup
    shared.key_ring.init(1, Traits::kConsumerWarps);
    shared.value_ring.init(1, Traits::kConsumerWarps);
    for (auto& barrier : shared.announced) ::cuda::ptx::mbarrier_init(&barrier, 1);
    shared.values_to_clear.init();
    shared.query_to_clear.init();
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
  __syncthreads();
}

template <class Traits>
__global__ void __launch_bounds__(Traits::kThreads, 1)
    prefill_kernel(const __grid_constant__ PrefillMaps maps, const __grid_constant__ PrefillParams params) {
  extern __shared__ __align__(1024) uint8_t dynamic_shared[];
  auto& shared = *reinterpret_cast<typename Traits::Shared*>(dynamic_shared);
  if (threadIdx.x == 0) {
    for (const CUtensorMap* map : {&maps.query, &maps.key, &maps.value, &maps.out}) ptx::prefetch_tensor_map(map);
  }
  initialise<Traits>(shared);

  // The shuffle tells the compiler that the warp index is the same for all lanes.
  const int warp = __shfl_sync(0xFFFFFFFFu, threadIdx.x / 32, 0);
  // Each role waits for the end of the kernel before, whose results may be read and whose inputs overwritten from then
  // on, ahead of its first access.
  if (warp < 4) {
    ptx::release_registers_down_to<Traits::kProducerRegisters>();
    if (warp == 0) KeyLoader<Traits>(shared, maps, params).run();
    if (warp == 1) Announcer<Traits>(shared, maps, params).run();
    if (warp == 2) ValueLoader<Traits>(shared, maps, params).run();
  } else {
    ptx::acquire_registers_up_to<Traits::kConsumerRegisters>();
    cudaGridDependencySynchronize();
    Consumer<Traits>(shared, maps, params, {warp}).run();
  }
}

}  // namespace fp8attn::cuda
