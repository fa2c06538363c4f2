// Sums over the threads of a block.
#pragma once

#include <cstdint>

namespace fp8attn::cuda {

// The values of a warp's lanes up to this one, this one included.
template <class T>
__device__ __forceinline__ T inclusive_scan_of_warp(T value) {
#pragma unroll
  for (int d = 1; d < 32; d *= 2) {
    const T below = __shfl_up_sync(0xFFFFFFFFu, value, d);
    if (static_cast<int>(threadIdx.x % 32) >= d) value += below;
  }
  return value;
}

// The values of the threads before this one, and of all of them. Whole block; scratch: one number a warp, in shared
// memory, which may be used again behind the next barrier.
template <int kThreads, class T>
__device__ __forceinline__ T exclusive_scan_of_block(T value, T (&scratch)[kThreads / 32], T& total) {
  constexpr int kWarps = kThreads / 32;
  static_assert(kWarps <= 32);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const T inclusive = inclusive_scan_of_warp(value);
  if (lane == 31) scratch[warp] = inclusive;
  __syncthreads();
  const T of_warp = lane < kWarps ? scratch[lane] : T{0};
  const T past = inclusive_scan_of_warp(of_warp);
  total = __shfl_sync(0xFFFFFFFFu, past, 31);
  return __shfl_sync(0xFFFFFFFFu, past - of_warp, warp) + inclusive - value;
}

}  // namespace fp8attn::cuda
