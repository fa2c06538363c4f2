// Hides scores of keys that a row does not see.
#pragma once

#include <cstdint>

namespace fp8attn::cuda {

// visible[i]: how many keys of this block row i of the thread sees (may be negative or beyond the block).
__device__ __forceinline__ void mask_scores(uint32_t (&scores)[32], const int (&visible)[2], int lane) {
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int end = visible[i] - 2 * (lane & 3);
#pragma unroll
    for (int j = 0; j < 16; ++j) {
      // A byte permute with minus infinity twice: both, the upper or no half replaced.
      const uint32_t selector = 8 * j >= end ? 0x7654 : (8 * j + 1 >= end ? 0x7610 : 0x3210);
      scores[2 * j + i] = __byte_perm(scores[2 * j + i], 0xFC00FC00, selector);
    }
  }
}

__device__ __forceinline__ void mask_scores(float (&scores)[64], const int (&visible)[2], int lane) {
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int end = visible[i] - 2 * (lane & 3);
#pragma unroll
    for (int j = 0; j < 16; ++j) {
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        if (8 * j + c >= end) scores[4 * j + 2 * i + c] = -INFINITY;
      }
    }
  }
}

}  // namespace fp8attn::cuda
