// Products and accumulators of the bf16 and fp16 kernels, one consumer warpgroup.
#pragma once

#include <cstdint>

#include "cuda/sm90/prefill/traits.h"
#include "cuda/sm90/ptx/wgmma.h"
#include "cuda/sm90/ptx/wgmma_control.h"
#include "cuda/sm90/tile/softmax_float.h"

namespace fp8attn::cuda {

template <class Traits>
struct Math16Bit {
  using Score = float;
  using Softmax = SoftmaxFloat<typename Traits::Element>;
  static constexpr int kScoreRegisters = 64;
  static constexpr int kProducts = Traits::kTileN / 16;  // of P V, a block
  static constexpr int kBlocksPerStep = 1;
  static constexpr bool kQueryInRegisters = false;
  static constexpr int kDim = Traits::kHeadDimV;
  static constexpr bool kBF16 = Traits::Element::kDType == DType::kBF16;

  struct Query {};

  struct Output {
    float value[kDim / 2];  // register 4 j + 2 i + c: channel 8 j + 2 (lane % 4) + c of row i
  };

  __device__ static void clear(Output& output) {
#pragma unroll
    for (float& value : output.value) value = 0.0f;
  }

  __device__ static void issue_scores(Score (&scores)[kScoreRegisters], const Query&, uint32_t query, uint32_t key) {
#pragma unroll
    for (int k = 0; k < Traits::kHeadDimQk / 16; ++k) {
      const uint64_t a_k = Traits::QueryTile::k_major_descriptor(query, 32 * k);
      const uint64_t b_k = Traits::KeyTile::k_major_descriptor(key, 32 * k);
      if (k == 0) {
        kBF16 ? ptx::wgmma_bf16_f32_n128_ss_first(scores, a_k, b_k)
              : ptx::wgmma_f16_f32_n128_ss_first(scores, a_k, b_k);
      } else {
        kBF16 ? ptx::wgmma_bf16_f32_n128_ss_add(scores, a_k, b_k) : ptx::wgmma_f16_f32_n128_ss_add(scores, a_k, b_k);
      }
    }
  }

  // A softmax scale that is not positive works on scores times sign (-1 or 0), with a positive multiplier.
  __device__ static void adjust_scores(Score (&scores)[kScoreRegisters], float sign) {
    if (sign == 1.0f) return;
#pragma unroll
    for (float& score : scores) score *= sign;
  }

  // P V goes into the output's own accumulator, rescaled before: float32 is exact enough for 16-bit inputs.
  struct Fresh {};

  __device__ static void rescale_output(Output& output, const float (&rescale)[2]) {
#pragma unroll
    for (int j = 0; j < kDim / 8; ++j) {
#pragma unroll
      for (int r = 0; r < 4; ++r) output.value[4 * j + r] *= rescale[r >> 1];
    }
    ptx::pin(output.value);
  }

  // Product k (of kProducts) with a block of values.
  __device__ static void multiply_values(Output& output, Fresh&, const uint32_t (&a)[4], uint32_t values, int k, bool) {
    const uint64_t b = Traits::ValueTile::n_major_descriptor(values, 16 * k);
    if constexpr (kDim == 64) {
      kBF16 ? ptx::wgmma_bf16_f32_n64_rs_bt_add(output.value, a, b)
            : ptx::wgmma_f16_f32_n64_rs_bt_add(output.value, a, b);
    } else {
      static_assert(kDim == 128);
      kBF16 ? ptx::wgmma_bf16_f32_n128_rs_bt_add(output.value, a, b)
            : ptx::wgmma_f16_f32_n128_rs_bt_add(output.value, a, b);
    }
  }

  __device__ static void fold(Output& output, Fresh&, const float (&)[2]) { ptx::pin(output.value); }

  __device__ static float stored_sum(const Output&, const Softmax& softmax, int i) { return softmax.sum(i); }
};

}  // namespace fp8attn::cuda
