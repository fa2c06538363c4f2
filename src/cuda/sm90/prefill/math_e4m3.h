// Products and accumulators of the e4m3 kernel, one consumer warpgroup.
#pragma once

#include <cstdint>

#include "cuda/sm90/prefill/traits.h"
#include "cuda/sm90/ptx/half2.h"
#include "cuda/sm90/ptx/matrix.h"
#include "cuda/sm90/ptx/wgmma.h"
#include "cuda/sm90/ptx/wgmma_control.h"
#include "cuda/sm90/tile/softmax_half.h"

namespace fp8attn::cuda {

template <class Traits>
struct MathE4M3 {
  using Score = uint32_t;  // two halves
  using Softmax = SoftmaxHalf<typename FormOf<Traits::kPMode, Traits::kHeadDimQk>::Type>;
  static constexpr int kScoreRegisters = 32;
  static constexpr int kProducts = Traits::kTileN / 32;  // of P V, a block
  // Two blocks of 128 keys share one maximum and one fold: 256 tokens is the most that the tensor core's 13-bit
  // accumulator may sum.
  static constexpr int kBlocksPerStep = 2;
  static constexpr bool kQueryInRegisters = true;
  static constexpr int kDim = Traits::kHeadDimV;

  struct Query {
    uint32_t fragment[Traits::kHeadDimQk / 32][4];
  };

  struct Output {
    float value[kDim / 2];  // register 4 j + 2 i + c: channel 8 j + 2 (lane % 4) + c of row i
    float sum[2];
  };

  __device__ static void clear(Output& output) {
#pragma unroll
    for (float& value : output.value) value = 0.0f;
    output.sum[0] = output.sum[1] = 0.0f;
  }

  // The query fragment, scaled so that no score overflows half. multiplier[i]: from a score to octaves for row i; comes
  // with any sign, leaves positive.
  //
  // |score| <= sum |q| * 448, so q times 2^-shift with sum |q| 2^-shift <= 128 stays below 57344. e4m3 is a float: the
  // shift costs accuracy only where it makes channels subnormal, at 2^-13 of the row's sum.
  __device__ static void load_query(Query& query, uint32_t tile, int warp, int lane, float (&multiplier)[2]) {
    using Tile = typename Traits::QueryTile;
    float magnitude[2] = {0.0f, 0.0f};
#pragma unroll
    for (int k = 0; k < Traits::kHeadDimQk / 32; ++k) {
      ptx::ldmatrix_x4(query.fragment[k], tile + Tile::offset(16 * warp + (lane & 15), 2 * k + (lane >> 4)));
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      uint32_t sum = 0;
#pragma unroll
      for (int k = 0; k < Traits::kHeadDimQk / 32; ++k) {
#pragma unroll
        for (int r = i; r < 4; r += 2) {
          const uint32_t absolute = query.fragment[k][r] & 0x7F7F7F7Fu;
          sum = ptx::add_half2(sum, ptx::half2_from_e4m3x2(static_cast<uint16_t>(absolute)));
          sum = ptx::add_half2(sum, ptx::half2_from_e4m3x2(static_cast<uint16_t>(absolute >> 16)));
        }
      }
      magnitude[i] = ptx::low_half_to_float(sum) + ptx::high_half_to_float(sum);
      magnitude[i] += __shfl_xor_sync(0xFFFFFFFFu, magnitude[i], 1);
      magnitude[i] += __shfl_xor_sync(0xFFFFFFFFu, magnitude[i], 2);
    }
    const bool plain = magnitude[0] <= 128.0f && magnitude[1] <= 128.0f && multiplier[0] > 0.0f && multiplier[1] > 0.0f;
    if (!__all_sync(0xFFFFFFFFu, plain)) rescale_query(query, magnitude, multiplier);
  }

  __device__ static void issue_scores(Score (&scores)[kScoreRegisters], const Query& query, uint32_t, uint32_t key) {
    ptx::wgmma_e4m3_f16_n128_rs_first(scores, query.fragment[0], Traits::KeyTile::k_major_descriptor(key, 0));
#pragma unroll
    for (int k = 1; k < Traits::kHeadDimQk / 32; ++k) {
      ptx::wgmma_e4m3_f16_n128_rs_add(scores, query.fragment[k], Traits::KeyTile::k_major_descriptor(key, 32 * k));
    }
  }

  __device__ static void adjust_scores(Score (&)[kScoreRegisters], float) {}

  // P V is summed by the tensor core over one step in a fresh accumulator, and folded into float32: output = output *
  // rescale + fresh. The columns behind the channels are the sums of the probabilities.
  using Fresh = float[kDim / 2 + Traits::kOnesRows / 2];

  __device__ static void rescale_output(Output&, const float (&)[2]) {}

  // Product k (of kProducts) with a block of values; first: the accumulator starts here.
  __device__ static void multiply_values(Output&, Fresh& fresh, const uint32_t (&a)[4], uint32_t values, int k,
                                         bool first) {
    const uint64_t b = Traits::PackedValueTile::k_major_descriptor(values, 32 * k);
    if constexpr (kDim == 64) {
      first ? ptx::wgmma_e4m3_f32_n72_rs_first(fresh, a, b) : ptx::wgmma_e4m3_f32_n72_rs_add(fresh, a, b);
    } else {
      static_assert(kDim == 128);
      first ? ptx::wgmma_e4m3_f32_n136_rs_first(fresh, a, b) : ptx::wgmma_e4m3_f32_n136_rs_add(fresh, a, b);
    }
  }

  __device__ static void fold(Output& output, Fresh& fresh, const float (&rescale)[2]) {
    ptx::pin(fresh);
#pragma unroll
    for (int r = 0; r < kDim / 2; ++r) output.value[r] = fmaf(output.value[r], rescale[r >> 1 & 1], fresh[r]);
    output.sum[0] = fmaf(output.sum[0], rescale[0], fresh[kDim / 2]);
    output.sum[1] = fmaf(output.sum[1], rescale[1], fresh[kDim / 2 + 2]);
  }

  __device__ static float stored_sum(const Output& output, const Softmax&, int i) { return output.sum[i]; }

 private:
  // Shifts large rows down and folds the sign of the multiplier into the query. A multiplier of 0 becomes a query of 0.
  __device__ static void rescale_query(Query& query, const float (&magnitude)[2], float (&multiplier)[2]) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      // Exponent of the power of two at or above the magnitude, relative to 128 = 2^7.
      const int exponent = static_cast<int>((__float_as_uint(magnitude[i]) + 0x7FFFFFu) >> 23) - (127 + 7);
      const int shift = min(max(exponent, 0), 15);
      const float power = __uint_as_float((127 - shift) << 23);
      const float factor = multiplier[i] == 0.0f ? 0.0f : copysignf(power, multiplier[i]);
      multiplier[i] = multiplier[i] == 0.0f ? 1.0f : fabsf(multiplier[i]) / power;
      const uint32_t factors = ptx::half2_from_floats(factor, factor);
#pragma unroll
      for (int k = 0; k < Traits::kHeadDimQk / 32; ++k) {
#pragma unroll
        for (int r = i; r < 4; r += 2) {
          uint32_t& codes = query.fragment[k][r];
          const uint32_t low = ptx::half2_from_e4m3x2(static_cast<uint16_t>(codes));
          const uint32_t high = ptx::half2_from_e4m3x2(static_cast<uint16_t>(codes >> 16));
          codes = ptx::e4m3x2_from_half2(ptx::mul_half2(low, factors)) |
                  static_cast<uint32_t>(ptx::e4m3x2_from_half2(ptx::mul_half2(high, factors))) << 16;
        }
      }
    }
  }
};

}  // namespace fp8attn::cuda
