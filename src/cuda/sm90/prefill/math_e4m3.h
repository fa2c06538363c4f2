// Products and accumulators of the e4m3 kernel, one consumer warpgroup.
#pragma once

#include <cstdint>
#include <cuda/ptx>

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
  using Softmax = SoftmaxHalf<typename FormOf<Traits::kPMode>::Type>;
  static constexpr int kParts = Traits::kStepN / 128;
  static constexpr int kScoreRegisters = 32;
  static constexpr int kProductsPerBlock = Traits::kBlockN / 32;  // of P V
  // One step is summed by one accumulator; 256 tokens is the most that its 13 bits may sum.
  static_assert(Traits::kStepN <= 256);
  static constexpr int kDim = Traits::kHeadDimV;
  // The columns of P V: the channels, and behind them the rows of ones, which sum the probabilities. The fresh
  // accumulator takes half as many registers; where these are too many, P V goes by chunks of equal width. (Of unequal
  // ones the compiler does not keep one after the other in the same registers.)
  static constexpr int kColumns = kDim + Traits::kOnesRows;
  static constexpr bool kInChunks = kDim > 128;
  static constexpr int kChunks = kInChunks ? 3 : 1;
  static constexpr int kChunkColumns = kColumns / kChunks;
  static_assert(kChunkColumns * kChunks == kColumns && kChunkColumns % 8 == 0);

  struct Query {
    uint32_t fragment[Traits::kQueryInRegisters ? Traits::kHeadDimQk / 32 : 1][4];
  };

  struct Output {
    float value[kDim / 2];  // register 4 j + 2 i + c: channel 8 j + 2 (lane % 4) + c of row i
    float sum[2];
  };

  __device__ static void clear(Output& output) {
    ptx::clear(output.value);
    output.sum[0] = output.sum[1] = 0.0f;
  }

  // Scales the query so that no score overflows half, in the fragment that it loads or in the tile itself.
  // multiplier[i]: from a score to octaves for row i; comes with any sign, leaves positive.
  //
  // |score| <= sum |q| * 448, so q times 2^-shift with sum |q| 2^-shift <= 128 stays below 57344. e4m3 is a float: the
  // shift costs accuracy only where it makes channels subnormal, at 2^-13 of the row's sum. The tensor core sums, with
  // the rows of ones that lie behind those of `values`: each column of the product is the sum of its row.
  __device__ static void prepare_query(Query& query, uint32_t tile, uint32_t values, int warp, int lane,
                                       float (&multiplier)[2]) {
    constexpr int kProducts = Traits::kHeadDimQk / 32;
    uint32_t magnitudes[kProducts][4];
    float sums[4];
#pragma unroll
    for (int k = 0; k < kProducts; ++k) {
      uint32_t(&fragment)[4] = query.fragment[Traits::kQueryInRegisters ? k : 0];
      ptx::ldmatrix_x4(fragment, fragment_address(tile, warp, lane, k));
#pragma unroll
      for (int r = 0; r < 4; ++r) magnitudes[k][r] = fragment[r] & 0x7F7F7F7Fu;
      ptx::pin(magnitudes[k]);
    }
    const uint64_t ones = Traits::PackedValueTile::k_major_descriptor(values, 0, kDim);
    ptx::wgmma_fence();
#pragma unroll
    for (int k = 0; k < kProducts; ++k) {
      k == 0 ? ptx::wgmma_e4m3_f32_n8_rs_first(sums, magnitudes[k], ones)
             : ptx::wgmma_e4m3_f32_n8_rs_add(sums, magnitudes[k], ones);
    }
    ptx::wgmma_commit();
    ptx::wgmma_wait<0>();
    ptx::pin(sums);
    const float magnitude[2] = {sums[0], sums[2]};
    const bool plain = magnitude[0] <= 128.0f && magnitude[1] <= 128.0f && multiplier[0] > 0.0f && multiplier[1] > 0.0f;
    if (!__all_sync(0xFFFFFFFFu, plain)) rescale_query(query, tile, warp, lane, magnitude, multiplier);
  }

  // The query with the keys of a part.
  __device__ static void issue_scores(Score (&scores)[kScoreRegisters], const Query& query, uint32_t tile, uint32_t key,
                                      int part) {
#pragma unroll
    for (int k = 0; k < Traits::kHeadDimQk / 32; ++k) {
      const uint64_t b = Traits::KeyTile::k_major_descriptor(key, 32 * k, part * 128);
      if constexpr (Traits::kQueryInRegisters) {
        const uint32_t(&a)[4] = query.fragment[k];
        k == 0 ? ptx::wgmma_e4m3_f16_n128_rs_first(scores, a, b) : ptx::wgmma_e4m3_f16_n128_rs_add(scores, a, b);
      } else {
        const uint64_t a = Traits::QueryTile::k_major_descriptor(tile, 32 * k);
        k == 0 ? ptx::wgmma_e4m3_f16_n128_ss_first(scores, a, b) : ptx::wgmma_e4m3_f16_n128_ss_add(scores, a, b);
      }
    }
  }

  __device__ static void adjust_scores(Score (&)[kScoreRegisters], float) {}

  __device__ static void rescale_output(Output&, const float (&)[2]) {}

  // P V is summed by the tensor core over one step in a fresh accumulator, and folded into float32: output = output *
  // rescale + fresh.
  using Fresh = float[kChunkColumns / 2];

  // Products of the probabilities of a block with its values.
  __device__ static void multiply(Output&, Fresh& fresh, const uint32_t (&operands)[kProductsPerBlock][4],
                                  uint32_t values, int block) {
#pragma unroll
    for (int k = 0; k < kProductsPerBlock; ++k) {
      const uint64_t b = Traits::PackedValueTile::k_major_descriptor(values, block * Traits::kBlockN + 32 * k);
      const bool first = block == 0 && k == 0;
      if constexpr (kDim == 64) {
        first ? ptx::wgmma_e4m3_f32_n72_rs_first(fresh, operands[k], b)
              : ptx::wgmma_e4m3_f32_n72_rs_add(fresh, operands[k], b);
      } else {
        static_assert(kDim == 128);
        first ? ptx::wgmma_e4m3_f32_n136_rs_first(fresh, operands[k], b)
              : ptx::wgmma_e4m3_f32_n136_rs_add(fresh, operands[k], b);
      }
    }
  }

  // The same for all blocks of a step, by chunks of columns, a group each: all but the last one are folded.
  template <int kProducts>
  __device__ static void multiply_chunks(Output& output, Fresh& fresh, const uint32_t (&operands)[kProducts][4],
                                         uint32_t values, const float (&rescale)[2]) {
#pragma unroll
    for (int chunk = 0; chunk < kChunks; ++chunk) {
      if (chunk > 0) {
        ptx::wgmma_wait<0>();
        fold_chunk(output, fresh, chunk - 1, rescale);
      }
      ptx::wgmma_fence();
#pragma unroll
      for (int k = 0; k < kProducts; ++k) {
        const uint64_t b = Traits::PackedValueTile::k_major_descriptor(values, 32 * k, chunk * kChunkColumns);
        if (k > 0) {
          ptx::wgmma_e4m3_f32_n88_rs_add(fresh, operands[k], b);
        } else {
          chunk == 0 ? ptx::wgmma_e4m3_f32_n88_rs_first(fresh, operands[k], b)
                     : ptx::wgmma_e4m3_f32_n88_rs_again(fresh, operands[k], b);
        }
      }
      ptx::wgmma_commit();
    }
  }

  // Behind the wait for those products.
  __device__ static void fold(Output& output, Fresh& fresh, const float (&rescale)[2]) {
    fold_chunk(output, fresh, kChunks - 1, rescale);
  }

  __device__ static float stored_sum(const Output& output, const Softmax&, int i) { return output.sum[i]; }

 private:
  __device__ static uint32_t fragment_address(uint32_t tile, int warp, int lane, int k) {
    return tile + Traits::QueryTile::offset(16 * warp + (lane & 15), 2 * k + (lane >> 4));
  }

  __device__ static float power_of_two(int exponent) { return __uint_as_float((127 + exponent) << 23); }

  __device__ static void scale_codes(uint32_t (&fragment)[4], const uint32_t (&factors)[2]) {
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      const uint32_t low = ptx::half2_from_e4m3x2(static_cast<uint16_t>(fragment[r]));
      const uint32_t high = ptx::half2_from_e4m3x2(static_cast<uint16_t>(fragment[r] >> 16));
      fragment[r] = ptx::e4m3x2_from_half2(ptx::mul_half2(low, factors[r % 2])) |
                    static_cast<uint32_t>(ptx::e4m3x2_from_half2(ptx::mul_half2(high, factors[r % 2]))) << 16;
    }
  }

  // Shifts large rows down and folds the sign of the multiplier into the query. A multiplier of 0 becomes a query of 0.
  __device__ static void rescale_query(Query& query, uint32_t tile, int warp, int lane, const float (&magnitude)[2],
                                       float (&multiplier)[2]) {
    uint32_t factors[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      // Exponent of the power of two at or above the magnitude, relative to 128 = 2^7.
      const int exponent = static_cast<int>((__float_as_uint(magnitude[i]) + 0x7FFFFFu) >> 23) - (127 + 7);
      const int shift = min(max(exponent, 0), 15);
      const float factor = multiplier[i] == 0.0f ? 0.0f : copysignf(power_of_two(-shift), multiplier[i]);
      multiplier[i] = multiplier[i] == 0.0f ? 1.0f : fabsf(multiplier[i]) * power_of_two(shift);
      factors[i] = ptx::half2_from_floats(factor, factor);
    }
    constexpr int kProducts = Traits::kHeadDimQk / 32;
    if constexpr (Traits::kQueryInRegisters) {
#pragma unroll
      for (int k = 0; k < kProducts; ++k) scale_codes(query.fragment[k], factors);
    } else {
#pragma unroll 1
      for (int k = 0; k < kProducts; ++k) {
        const uint32_t address = fragment_address(tile, warp, lane, k);
        ptx::ldmatrix_x4(query.fragment[0], address);
        scale_codes(query.fragment[0], factors);
        ptx::stmatrix_x4(address, query.fragment[0]);
      }
      // wgmma reads it.
      ::cuda::ptx::fence_proxy_async(::cuda::ptx::space_shared);
    }
  }

  __device__ static void fold_chunk(Output& output, Fresh& fresh, int chunk, const float (&rescale)[2]) {
    ptx::pin(fresh);
#pragma unroll
    for (int r = 0; r < kChunkColumns / 2; ++r) {
      const int i = r >> 1 & 1, column_pair = chunk * kChunkColumns / 2 + r;
      if (column_pair < kDim / 2) {
        output.value[column_pair] = fmaf(output.value[column_pair], rescale[i], fresh[r]);
      } else if (r % 2 == 0) {  // all columns of ones are alike
        output.sum[i] = fmaf(output.sum[i], rescale[i], fresh[r]);
      }
    }
  }
};

}  // namespace fp8attn::cuda
