// Register budgets and named barriers of warpgroups.
#pragma once

#include <cstdint>

namespace fp8attn::cuda::ptx {

template <int kRegisters>
__device__ __forceinline__ void release_registers_down_to() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

template <int kRegisters>
__device__ __forceinline__ void acquire_registers_up_to() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

// Index of the warp in the CTA. The shuffle tells the compiler that it is the same for all lanes.
__device__ __forceinline__ int uniform_warp() { return __shfl_sync(0xFFFFFFFFu, threadIdx.x / 32, 0); }

// The same value, but the compiler cannot know: what is computed from it is computed here, not kept in registers from
// before a loop.
__device__ __forceinline__ int launder(int value) {
  asm volatile("" : "+r"(value));
  return value;
}

__device__ __forceinline__ void prefetch_tensor_map(const void* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

// Waits until kThreads threads have arrived at named barrier `id` (0 is __syncthreads).
template <int kThreads>
__device__ __forceinline__ void named_barrier_sync(int id) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "n"(kThreads) : "memory");
}

}  // namespace fp8attn::cuda::ptx
