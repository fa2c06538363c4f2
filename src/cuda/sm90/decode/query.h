// The query rows of a unit: operands of products, straight from global memory.
#pragma once

#include <cstdint>

#include "cuda/sm90/decode/params.h"
#include "cuda/sm90/decode/traits.h"
#include "cuda/sm90/ptx/half2.h"
#include "cuda/sm90/quantize/elements.h"

namespace fp8attn::cuda {

// What a lane of a warp holds of its row tile: channels of rows lane / 4 and lane / 4 + 8, as the A operands of steps
// of 16 channels.
template <class Traits>
class DecodeQuery {
 public:
  static constexpr int kSteps = Traits::kHeadDimQk / 16;
  uint32_t operand[kSteps][4];

  // first_row: of the tile. multiplier: from a score to octaves.
  __device__ __forceinline__ void load(const DecodeParams& params, int sequence, int kv_head, int first_row, int lane,
                                       float (&multiplier)[2]) {
    const float common = params.call.softmax_scale_log2 * params.call.k_scale.at(sequence, kv_head);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int index = first_row + lane / 4 + 8 * i;
      const bool exists = index < params.rows;
      const DecodeParams::Row row = params.row(kv_head, exists ? index : 0);
      const uint8_t* source = params.query.at(sequence, row.token, row.head);
      multiplier[i] = common * params.call.q_scale.at(sequence, row.head, row.token);
      if constexpr (Traits::Element::kBytes == 2) {
        load_pairs(params, source, exists, i, lane % 4);
      } else if (params.query_dtype == DType::kE4M3) {
        load_codes(params, source, exists, i, lane % 4);
      } else {
        multiplier[i] *= quantise(params, source, exists, i, lane % 4);
      }
    }
  }

 private:
  __device__ static bool has(const DecodeParams& params, bool exists, int k) {
    return exists && 16 * k < params.head_dim_qk;
  }

  __device__ __forceinline__ void load_pairs(const DecodeParams& params, const uint8_t* source, bool exists, int i,
                                             int q) {
#pragma unroll
    for (int k = 0; k < kSteps; ++k) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const auto* pair = reinterpret_cast<const uint32_t*>(source + 32 * k + 16 * half) + q;
        operand[k][2 * half + i] = has(params, exists, k) ? __ldg(pair) : 0;
      }
    }
  }

  __device__ __forceinline__ void load_codes(const DecodeParams& params, const uint8_t* source, bool exists, int i,
                                             int q) {
    uint32_t codes[kSteps];
#pragma unroll
    for (int k = 0; k < kSteps; ++k) {
      codes[k] = has(params, exists, k) ? __ldg(reinterpret_cast<const uint32_t*>(source + 16 * k) + q) : 0;
    }
#pragma unroll
    for (int k = 0; k < kSteps; ++k) set_codes(k, i, codes[k]);
  }

  // Four neighbouring channels of row i, in the order of DecodeE4M3::load_keys().
  __device__ __forceinline__ void set_codes(int k, int i, uint32_t codes) {
    operand[k][i] = ptx::half2_from_e4m3x2(static_cast<uint16_t>(codes));
    operand[k][2 + i] = ptx::half2_from_e4m3x2(static_cast<uint16_t>(codes >> 16));
  }

  // A 16-bit row as quantize() makes it e4m3, with one scale for the token and head. Gives that scale.
  __device__ __forceinline__ float quantise(const DecodeParams& params, const uint8_t* source, bool exists, int i,
                                            int q) {
    uint2 values[kSteps];
    uint32_t amax = 0;
#pragma unroll
    for (int k = 0; k < kSteps; ++k) {
      const auto* four = reinterpret_cast<const uint2*>(source + 32 * k) + q;
      values[k] = has(params, exists, k) ? __ldg(four) : uint2{0, 0};
    }
#pragma unroll
    for (int k = 0; k < kSteps; ++k) {
#pragma unroll
      for (int c = 0; c < 4; ++c) amax = max(amax, finite_magnitude(real(params, values[k], c)));
    }
    // Four neighbouring lanes hold the row.
    amax = max(amax, __shfl_xor_sync(0xFFFFFFFFu, amax, 1));
    amax = max(amax, __shfl_xor_sync(0xFFFFFFFFu, amax, 2));
    const float scale = scale_from_amax(amax), inverse = inverse_of(scale);
#pragma unroll
    for (int k = 0; k < kSteps; ++k) {
      float value[4];
#pragma unroll
      for (int c = 0; c < 4; ++c) value[c] = scaled(real(params, values[k], c), inverse);
      set_codes(k, i,
                ptx::e4m3x2_from_floats(value[0], value[1]) |
                    static_cast<uint32_t>(ptx::e4m3x2_from_floats(value[2], value[3])) << 16);
    }
    return scale;
  }

  __device__ static float real(const DecodeParams& params, const uint2& four, int c) {
    const uint32_t pair = c < 2 ? four.x : four.y;
    if (params.query_dtype == DType::kBF16) return __uint_as_float(c % 2 == 0 ? pair << 16 : pair & 0xFFFF0000u);
    return c % 2 == 0 ? ptx::low_half_to_float(pair) : ptx::high_half_to_float(pair);
  }
};

}  // namespace fp8attn::cuda
