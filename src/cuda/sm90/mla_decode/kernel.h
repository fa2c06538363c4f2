// The MLA decode kernel: persistent CTAs of two warpgroups for the scores and two for the output.
#pragma once

#include <cstdint>
#include <cuda/ptx>

#include "cuda/sm90/mla_decode/load.h"
#include "cuda/sm90/mla_decode/output.h"
#include "cuda/sm90/mla_decode/params.h"
#include "cuda/sm90/mla_decode/schedule.h"
#include "cuda/sm90/mla_decode/scores.h"
#include "cuda/sm90/mla_decode/traits.h"
#include "cuda/sm90/ptx/copy.h"
#include "cuda/sm90/ptx/warpgroup.h"

namespace fp8attn::cuda {

template <class Traits>
__global__ void __launch_bounds__(Traits::kThreads, 1)
    mla_decode_kernel(const __grid_constant__ MlaMaps maps, const __grid_constant__ MlaParams params) {
  // Dynamic shared memory begins where the CTA's does, at a multiple of 1024: there is no static shared memory.
  extern __shared__ __align__(1024) uint8_t dynamic_shared[];
  auto& shared = *reinterpret_cast<typename Traits::Shared*>(dynamic_shared);
  ptx::launch_dependents();
  if (threadIdx.x == 0) {
    shared.cache_ring.init(params.gathers() ? 128 : 1, 8);
    shared.probability_ring.init(4, 8);
    for (auto& group : shared.turn) {
      for (uint64_t& turn : group) ::cuda::ptx::mbarrier_init(&turn, 1);
    }
    ::cuda::ptx::fence_mbarrier_init(::cuda::ptx::sem_release, ::cuda::ptx::scope_cluster);
  }
  ptx::wait_for_previous_grid();  // nothing from global memory before this
  make_plan<Traits::kThreads>(params, shared.plan, reinterpret_cast<int64_t*>(shared.sum));  // all threads meet in it

  // Every role asks for its warp again: a register kept from here on is one too many.
  if (ptx::uniform_warp() < 8) {
    ptx::release_registers_down_to<Traits::kScoreRegisters>();
    const int warp = ptx::uniform_warp();
    MlaScores<Traits>(shared, maps, params, warp, static_cast<int>(threadIdx.x % 32)).run();
  } else {
    ptx::acquire_registers_up_to<Traits::kOutputRegisters>();
    const int warp = ptx::uniform_warp();
    MlaOutput<Traits>(shared, params, {warp / 4 - 2, warp % 4, static_cast<int>(threadIdx.x % 32)}).run();
  }
}

}  // namespace fp8attn::cuda
