// Hides scores of keys that a row does not see.
#pragma once

#include <cuda_fp16.h>

#include <cstdint>

namespace fp8attn::cuda {

// Keys from column end[i] on, for row i of the thread (an end may be negative or beyond the columns).
template <int kRegisters>
__device__ __forceinline__ void hide_from(uint32_t (&scores)[kRegisters], const int (&ends)[2], int lane) {
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    // Columns of a step and this end are exact in half, so that one comparison serves two elements.
    const int end = min(max(ends[i] - 2 * (lane & 3), -1), 4 * kRegisters);
    const __half2 limit = __half2half2(__int2half_rn(end));
#pragma unroll
    for (int j = 0; j < kRegisters / 2; ++j) {
      const uint32_t keep = __hlt2_mask(__floats2half2_rn(8.0f * j, 8.0f * j + 1.0f), limit);
      scores[2 * j + i] = (scores[2 * j + i] & keep) | (0xFC00FC00u & ~keep);  // else minus infinity
    }
  }
}

template <int kRegisters>
__device__ __forceinline__ void hide_from(float (&scores)[kRegisters], const int (&ends)[2], int lane) {
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int end = ends[i] - 2 * (lane & 3);
#pragma unroll
    for (int j = 0; j < kRegisters / 4; ++j) {
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        if (8 * j + c >= end) scores[4 * j + 2 * i + c] = -INFINITY;
      }
    }
  }
}

// Keys before column begin[i].
template <int kRegisters>
__device__ __forceinline__ void hide_before(uint32_t (&scores)[kRegisters], const int (&begins)[2], int lane) {
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int begin = min(max(begins[i] - 2 * (lane & 3), -8), 4 * kRegisters);
    const __half2 limit = __half2half2(__int2half_rn(begin));
#pragma unroll
    for (int j = 0; j < kRegisters / 2; ++j) {
      const uint32_t keep = __hge2_mask(__floats2half2_rn(8.0f * j, 8.0f * j + 1.0f), limit);
      scores[2 * j + i] = (scores[2 * j + i] & keep) | (0xFC00FC00u & ~keep);
    }
  }
}

template <int kRegisters>
__device__ __forceinline__ void hide_before(float (&scores)[kRegisters], const int (&begins)[2], int lane) {
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int begin = begins[i] - 2 * (lane & 3);
#pragma unroll
    for (int j = 0; j < kRegisters / 4; ++j) {
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        if (8 * j + c < begin) scores[4 * j + 2 * i + c] = -INFINITY;
      }
    }
  }
}

}  // namespace fp8attn::cuda
