// Logits x become cap * tanh(x / cap): scores become tanh(score * factor), and are then multiplied with the cap in
// octaves where they would be with their own multiplier. Rows whose scores are so far below the cap that it changes
// them by less than their last place stay as they are: their factor is 0.
#pragma once

#include <cuda_fp16.h>

#include <cstdint>

#include "cuda/sm90/ptx/half2.h"

namespace fp8attn::cuda {

// How a factor is kept, by the type of the scores. In half 2^10 times, and what tanh gives is made 2^8 times as large:
// the factors that matter reach down to 2^-22, and the cap in octaves may exceed half's range.
template <class Factor>
struct CapFactor;

template <>
struct CapFactor<uint16_t> {
  static constexpr float kUnit = 0x1p10f, kResultUnit = 0x1p8f;
  static constexpr float kLeast = 0x1p-22f;  // scores are below 2^16
  __device__ static uint16_t kept(float factor) {
    return __half_as_ushort(__float2half_rn(fminf(factor * kUnit, 65504.0f)));
  }
};

template <>
struct CapFactor<float> {
  static constexpr float kResultUnit = 1.0f;
  static constexpr float kLeast = 0x1p-80f;
  __device__ static float kept(float factor) { return factor; }
};

// Scores lie as for hide_from(); `factors` as they are kept, of the thread's two rows.
template <int kRegisters>
__device__ __forceinline__ void cap_scores(uint32_t (&scores)[kRegisters], const uint16_t (&factors)[2]) {
  constexpr uint32_t kBack = 0x14001400, kResult = 0x5C005C00;  // 2^-10, 2^8
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    if (factors[i] == 0) continue;
    const uint32_t factor = factors[i] * 0x10001u;
#pragma unroll
    for (int j = 0; j < kRegisters / 2; ++j) {
      uint32_t& pair = scores[2 * j + i];
      pair = ptx::mul_half2(ptx::tanh_half2(ptx::mul_half2(ptx::mul_half2(pair, factor), kBack)), kResult);
    }
  }
}

template <int kRegisters>
__device__ __forceinline__ void cap_scores(float (&scores)[kRegisters], const float (&factors)[2]) {
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    if (factors[i] == 0.0f) continue;
#pragma unroll
    for (int j = 0; j < kRegisters / 4; ++j) {
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        float& score = scores[4 * j + 2 * i + c];
        score = ptx::tanh_float(score * factors[i]);
      }
    }
  }
}

}  // namespace fp8attn::cuda
