// The decode kernel: persistent CTAs of producer warps and consumer warps.
#pragma once

#include <cstdint>
#include <cuda/ptx>

#include "cuda/sm90/decode/attend.h"
#include "cuda/sm90/decode/load.h"
#include "cuda/sm90/decode/params.h"
#include "cuda/sm90/decode/traits.h"
#include "cuda/sm90/ptx/copy.h"
#include "cuda/sm90/ptx/warpgroup.h"

namespace fp8attn::cuda {

template <class Traits>
__global__ void __launch_bounds__(Traits::kThreads, 1)
    decode_kernel(const __grid_constant__ DecodeMaps maps, const __grid_constant__ DecodeParams params) {
  // Dynamic shared memory begins where the CTA's does, at a multiple of 1024: there is no static shared memory.
  extern __shared__ __align__(1024) uint8_t dynamic_shared[];
  auto& shared = *reinterpret_cast<typename Traits::Shared*>(dynamic_shared);
  if (threadIdx.x == 0) {
    // full: the stage's producer warp, once with the bytes of TMA, or each of its lanes behind its copies. empty: every
    // slice of the block, by a consumer warp for each row tile.
    shared.ring.init(params.gathers ? 32 : 1, Traits::kSlices * params.row_tiles);
    ::cuda::ptx::fence_mbarrier_init(::cuda::ptx::sem_release, ::cuda::ptx::scope_cluster);
  }
  __syncthreads();

  // Results of the kernel before may be read, and its inputs overwritten, from behind the waits on.
  const int warp = ptx::uniform_warp(), lane = threadIdx.x % 32;
  if (warp < Traits::kProducerWarps) {
    if constexpr (Traits::kMovesRegisters) ptx::release_registers_down_to<Traits::kProducerRegisters>();
    ptx::wait_for_previous_grid();
    ptx::launch_dependents();
    DecodeProducer<Traits>(shared, maps, params, warp, lane).run();
  } else {
    if constexpr (Traits::kMovesRegisters) ptx::acquire_registers_up_to<Traits::kConsumerRegisters>();
    ptx::wait_for_previous_grid();
    DecodeConsumer<Traits>(shared, params, warp - Traits::kProducerWarps, lane).run();
  }
}

}  // namespace fp8attn::cuda
