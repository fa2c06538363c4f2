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
  static constexpr int kParts = 1;
  static constexpr int kScoreRegisters = Traits::kStepN / 2;
  static constexpr int kProductsPerBlock = Traits::kBlockN / 16;  // of P V
  static constexpr bool kInChunks = false;
  static constexpr int kDim = Traits::kHeadDimV;
  static constexpr bool kBF16 = Traits::Element::kDType == DType::kBF16;

  struct Query {};

  struct Output {
    float value[kDim / 2];  // register 4 j + 2 i + c: channel 8 j + 2 (lane % 4) + c of row i
  };

  __device__ static void clear(Output& output) { ptx::clear(output.value); }

  __device__ static void issue_scores(Score (&scores)[kScoreRegisters], const Query&, uint32_t query, uint32_t key,
                                      int) {
#pragma unroll
    for (int k = 0; k < Traits::kHeadDimQk / 16; ++k) {
      const uint64_t a = Traits::QueryTile::k_major_descriptor(query, 32 * k);
      const uint64_t b = Traits::KeyTile::k_major_descriptor(key, 32 * k);
      if constexpr (Traits::kStepN == 64) {
        if (k == 0) {
          kBF16 ? ptx::wgmma_bf16_f32_n64_ss_first(scores, a, b) : ptx::wgmma_f16_f32_n64_ss_first(scores, a, b);
        } else {
          kBF16 ? ptx::wgmma_bf16_f32_n64_ss_add(scores, a, b) : ptx::wgmma_f16_f32_n64_ss_add(scores, a, b);
        }
      } else {
        static_assert(Traits::kStepN == 128);
        if (k == 0) {
          kBF16 ? ptx::wgmma_bf16_f32_n128_ss_first(scores, a, b) : ptx::wgmma_f16_f32_n128_ss_first(scores, a, b);
        } else {
          kBF16 ? ptx::wgmma_bf16_f32_n128_ss_add(scores, a, b) : ptx::wgmma_f16_f32_n128_ss_add(scores, a, b);
        }
      }
    }
  }

  // A softmax scale that is not positive works on scores times its sign (-1 or 0), with a positive multiplier.
  __device__ static void adjust_scores(Score (&scores)[kScoreRegisters], float softmax_scale) {
    if (softmax_scale > 0.0f) return;
    const float sign = softmax_scale < 0.0f ? -1.0f : 0.0f;
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

  // Products of the probabilities of a block with its values.
  __device__ static void multiply(Output& output, Fresh&, const uint32_t (&operands)[kProductsPerBlock][4],
                                  uint32_t values, int block) {
#pragma unroll
    for (int k = 0; k < kProductsPerBlock; ++k) {
      const uint64_t b = Traits::ValueTile::n_major_descriptor(values, block * Traits::kBlockN + 16 * k);
      if constexpr (kDim == 64) {
        kBF16 ? ptx::wgmma_bf16_f32_n64_rs_bt_add(output.value, operands[k], b)
              : ptx::wgmma_f16_f32_n64_rs_bt_add(output.value, operands[k], b);
      } else if constexpr (kDim == 128) {
        kBF16 ? ptx::wgmma_bf16_f32_n128_rs_bt_add(output.value, operands[k], b)
              : ptx::wgmma_f16_f32_n128_rs_bt_add(output.value, operands[k], b);
      } else {
        static_assert(kDim == 256);
        kBF16 ? ptx::wgmma_bf16_f32_n256_rs_bt_add(output.value, operands[k], b)
              : ptx::wgmma_f16_f32_n256_rs_bt_add(output.value, operands[k], b);
      }
    }
  }

  __device__ static void fold(Output& output, Fresh&, const float (&)[2]) { ptx::pin(output.value); }

  __device__ static float stored_sum(const Output&, const Softmax& softmax, int i) { return softmax.sum(i); }
};

}  // namespace fp8attn::cuda
