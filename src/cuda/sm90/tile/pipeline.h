// Rings of shared-memory stages between a producer and its consumers, on mbarriers.
#pragma once

#include <cstdint>
#include <cuda/ptx>

namespace fp8attn::cuda {

// Spins until the phase with this parity has completed.
__device__ __forceinline__ void wait_barrier(uint64_t* barrier, uint32_t parity) {
  while (!::cuda::ptx::mbarrier_try_wait_parity(barrier, parity)) {
  }
}

__device__ __forceinline__ void arrive_barrier(uint64_t* barrier) { ::cuda::ptx::mbarrier_arrive(barrier); }

// The barriers of a ring. full: the producer's expect_tx arrival and the bytes of TMA; empty:
// one arrival of every consumer warp.
template <int kStages>
struct RingBarriers {
  uint64_t full[kStages];
  uint64_t empty[kStages];

  __device__ void init(int producers, int consumers) {
    for (int i = 0; i < kStages; ++i) {
      ::cuda::ptx::mbarrier_init(&full[i], producers);
      ::cuda::ptx::mbarrier_init(&empty[i], consumers);
    }
  }
};

// Where one side stands in a ring. The consumer waits for `full` with `parity`, the producer for `empty` with
// `parity ^ 1`: a fresh barrier counts as completed for the odd parity, so the first round does not wait.
template <int kStages>
struct RingPosition {
  static_assert((kStages & (kStages - 1)) == 0, "one register holds stage and parity");
  uint32_t count = 0;  // stages passed

  __device__ int stage() const { return count % kStages; }
  __device__ uint32_t parity() const { return count / kStages & 1; }
  __device__ void advance() { ++count; }
};

// The same in one register, for a power of two of stages.
template <int kStages>
class RingCounter {
 public:
  static_assert((kStages & (kStages - 1)) == 0);
  __device__ int stage() const { return count_ % kStages; }
  __device__ uint32_t parity() const { return count_ / kStages % 2; }
  __device__ void advance() { ++count_; }

 private:
  uint32_t count_ = 0;
};

}  // namespace fp8attn::cuda
