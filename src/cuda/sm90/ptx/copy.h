// cp.async: copies of 16 bytes by ordinary threads. TMA under an L2 policy. Prefetches. The end of a grid that its
// successor waits for.
#pragma once

#include <cuda.h>

#include <cstdint>

namespace fp8attn::cuda::ptx {

// Copies 16 bytes, or writes 16 zeros where `keep` is false (`source` is not read then).
__device__ __forceinline__ void copy_16_or_zero(uint32_t destination, const void* source, bool keep) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(destination), "l"(source), "r"(keep ? 16 : 0)
               : "memory");
}

// Until everything that this thread copied with cp.async has arrived.
__device__ __forceinline__ void wait_for_copies() { asm volatile("cp.async.wait_all;" ::: "memory"); }

// Ends a group of copies, and waits for all groups of this thread but the `kLater` that were ended last.
__device__ __forceinline__ void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int kLater>
__device__ __forceinline__ void wait_for_copies_but() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kLater) : "memory");
}

// Arrives on an mbarrier once everything that this thread copied with cp.async so far has arrived. Each thread counts
// as one of the arrivals that the barrier was initialised for.
__device__ __forceinline__ void arrive_after_copies(uint64_t* barrier) {
  asm volatile(
      "cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(static_cast<uint32_t>(__cvta_generic_to_shared(barrier)))
      : "memory");
}

// For memory that is read once: the L2 cache gives its lines up before others.
__device__ __forceinline__ uint64_t read_once_policy() {
  uint64_t policy;
  asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}

// TMA copies a box of a tensor of four dims, under an L2 policy; its bytes count for `barrier`.
__device__ __forceinline__ void copy_box(void* destination, const CUtensorMap& map, const int32_t (&at)[4],
                                         uint64_t* barrier, uint64_t policy) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
      "[%0], [%1, {%2, %3, %4, %5}], [%6], %7;" ::"r"(static_cast<uint32_t>(__cvta_generic_to_shared(destination))),
      "l"(&map), "r"(at[0]), "r"(at[1]), "r"(at[2]), "r"(at[3]),
      "r"(static_cast<uint32_t>(__cvta_generic_to_shared(barrier))), "l"(policy)
      : "memory");
}

// Fetches the line of `address` into the L2 cache.
__device__ __forceinline__ void prefetch(const void* address) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(address) : "memory");
}

// Programmatic dependent launch: lets the next kernel of the stream start, and waits for all of the previous one.
__device__ __forceinline__ void launch_dependents() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }
__device__ __forceinline__ void wait_for_previous_grid() { asm volatile("griddepcontrol.wait;" ::: "memory"); }

}  // namespace fp8attn::cuda::ptx
