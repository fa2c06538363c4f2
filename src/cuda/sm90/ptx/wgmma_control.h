// Ordering of wgmma groups, and the shared-memory operand descriptor.
#pragma once

#include <cstdint>

namespace fp8attn::cuda::ptx {

// Before the first wgmma of a chain whose accumulators or A registers were written by ordinary instructions.
__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }

__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

// Until at most kPending committed groups are in flight.
template <int kPending>
__device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

// Keeps the compiler from moving uses of the registers across this point (no instruction is emitted): it does not know
// that wgmma reads and writes them asynchronously.
template <int kCount>
__device__ __forceinline__ void pin(float (&registers)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(registers[i])::"memory");
}
template <int kCount>
__device__ __forceinline__ void pin(uint32_t (&registers)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+r"(registers[i])::"memory");
}

// Sets registers to 0. Not by assignment: the compiler makes that a memset, and then keeps a large array in memory.
template <int kCount>
__device__ __forceinline__ void clear(float (&registers)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("mov.f32 %0, 0f00000000;" : "=f"(registers[i]));
}

}  // namespace fp8attn::cuda::ptx
