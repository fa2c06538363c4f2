// The MLA decode kernel: persistent CTAs of a producer warpgroup and, kToken, two that share scores and output, else
// one for scores and two for the output.
#pragma once

#include <cstdint>
#include <cuda/ptx>

#include "cuda/sm90/mla_decode/consumer.h"
#include "cuda/sm90/mla_decode/load.h"
#include "cuda/sm90/mla_decode/output.h"
#include "cuda/sm90/mla_decode/params.h"
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
  if (threadIdx.x == 0) {
    // full: the stage's producer warp, once, and the bytes of TMA. empty: the 8 output warps; they are done with a
    // stage after the scores' warps, whose probabilities they need.
    shared.cache_ring.init(1, 8);
    for (uint64_t& ready : shared.factors_ready) ::cuda::ptx::mbarrier_init(&ready, 1);  // the stage's producer warp
    shared.probability_ring.init(Traits::kScoreWarps, 8);  // the scores' warps; the output warps
    if constexpr (Traits::kSymmetric) {
      for (auto& of_half : shared.exchange.maxima_ready) {
        for (uint64_t& ready : of_half) ::cuda::ptx::mbarrier_init(&ready, 1);
      }
    }
    ::cuda::ptx::fence_mbarrier_init(::cuda::ptx::sem_release, ::cuda::ptx::scope_cluster);
  }
  // Results of the kernel before may be read, and its inputs overwritten, from here on.
  ptx::wait_for_previous_grid();
  ptx::launch_dependents();
  if (const int warp = ptx::uniform_warp(); warp < Traits::kWalks) MlaWalk(params, shared.walk[warp]).plan();
  __syncthreads();

  // Every role asks for its warp again: a register kept from here on is one too many.
  const int role = ptx::uniform_warp() / 4;
  const int lane = threadIdx.x % 32;
  if (role == 0) {
    ptx::release_registers_down_to<Traits::kProducerRegisters>();
    const int warp = ptx::uniform_warp();
    if (warp < Traits::kStages) MlaProducer<Traits>(shared, maps, params, warp, lane).run();
  } else if constexpr (Traits::kSymmetric) {
    ptx::acquire_registers_up_to<Traits::kConsumerRegisters>();
    const int warp = ptx::uniform_warp();
    MlaConsumer<Traits>(shared, params, {warp / 4 - 1, warp % 4, lane}).run();
  } else if (role == 1) {
    // Down to these, or up: the kernel starts with 128.
    if constexpr (Traits::kScoreRegisters < 128) {
      ptx::release_registers_down_to<Traits::kScoreRegisters>();
    } else {
      ptx::acquire_registers_up_to<Traits::kScoreRegisters>();
    }
    MlaScores<Traits>(shared, params, ptx::uniform_warp() - 4, lane).run();
  } else {
    ptx::acquire_registers_up_to<Traits::kOutputRegisters>();
    const int warp = ptx::uniform_warp();
    MlaOutput<Traits>(shared, params, {warp / 4 - 2, warp % 4, lane}).run();
  }
}

}  // namespace fp8attn::cuda
