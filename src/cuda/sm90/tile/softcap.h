// Logits x become cap * tanh(x / cap). In two parts: scores become tanh(score * factor), and these are multiplied with
// the cap in octaves where scores would be with their own multiplier.
#pragma once

#include <cuda_fp16.h>

#include <cstdint>

#include "cuda/sm90/ptx/half2.h"

namespace fp8attn::cuda {

// In half: factors are as small as 1e-8, and a cap in octaves may exceed half's range. So a factor is kept 2^10 times,
// and the results of tanh are made 2^8 times as large.
inline constexpr float kHalfFactorUnit = 0x1p10f, kHalfResultUnit = 0x1p8f;

// How a factor of scores of a type, uint16_t (half) or float, is kept.
template <class Factor>
__device__ __forceinline__ Factor cap_factor(float factor) {
  if constexpr (sizeof(Factor) == 2) {
    return __half_as_ushort(__float2half_rn(fminf(factor * kHalfFactorUnit, 65504.0f)));
  } else {
    return factor;
  }
}

// From what tanh gives to octaves.
template <class Factor>
__device__ __forceinline__ float capped_multiplier(float cap_log2) {
  return sizeof(Factor) == 2 ? cap_log2 / kHalfResultUnit : cap_log2;
}

// Scores lie as for hide_from(); a factor a row.
template <int kRegisters>
__device__ __forceinline__ void cap_scores(uint32_t (&scores)[kRegisters], uint16_t factor0, uint16_t factor1) {
  constexpr uint32_t kBack = 0x14001400, kResult = 0x5C005C00;  // 2^-10, 2^8
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const uint32_t factors = (i == 0 ? factor0 : factor1) * 0x10001u;
#pragma unroll
    for (int j = 0; j < kRegisters / 2; ++j) {
      uint32_t& pair = scores[2 * j + i];
      pair = ptx::mul_half2(ptx::tanh_half2(ptx::mul_half2(ptx::mul_half2(pair, factors), kBack)), kResult);
    }
  }
}

template <int kRegisters>
__device__ __forceinline__ void cap_scores(float (&scores)[kRegisters], float factor0, float factor1) {
#pragma unroll
  for (int j = 0; j < kRegisters / 4; ++j) {
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      scores[4 * j + r] = ptx::tanh_float(scores[4 * j + r] * (r < 2 ? factor0 : factor1));
    }
  }
}

}  // namespace fp8attn::cuda
