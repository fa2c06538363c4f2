// The query rows of a unit into shared memory, quantised on the way where the cache is e4m3.
#pragma once

#include <cstdint>
#include <cuda/ptx>

#include "cuda/sm90/mla_decode/params.h"
#include "cuda/sm90/mla_decode/traits.h"
#include "cuda/sm90/ptx/half2.h"
#include "cuda/sm90/ptx/matrix.h"
#include "cuda/sm90/ptx/warpgroup.h"

namespace fp8attn::cuda {

// Eight rows as a warp holds them: four neighbouring lanes a row, whose 36 groups of 16 channels they take in turn, the
// last four groups RoPE. Much at once: a warp that waits for its own results takes 6 clk an instruction.
template <class Traits>
class MlaQueryRows {
 public:
  static constexpr int kRows = 8;

  __device__ MlaQueryRows(const MlaParams& params, int sequence, int row, int lane)
      : params_(params), sequence_(sequence), row_(row), lane_(lane % kLanes), exists_(row < params.rows) {}

  __device__ __forceinline__ void load() {
    const auto* source = reinterpret_cast<const uint4*>(exists_ ? params_.query_row(sequence_, row_) : params_.query);
    if (Traits::kIsE4M3 && params_.query_is_e4m3) {
      source += lane_;
      uint4 codes[kGroups];
#pragma unroll
      for (int s = 0; s < kGroups; ++s) codes[s] = exists_ ? __ldg(source + kLanes * s) : uint4{};
#pragma unroll
      for (int s = 0; s < kGroups; ++s) {
        const uint32_t words[4] = {codes[s].x, codes[s].y, codes[s].z, codes[s].w};
#pragma unroll
        for (int i = 0; i < 8; ++i) {
          const uint32_t halves = ptx::half2_from_e4m3x2(static_cast<uint16_t>(words[i / 2] >> (i % 2 * 16)));
          pairs_[s][i] = ptx::bfloat162_from_floats(ptx::low_half_to_float(halves), ptx::high_half_to_float(halves));
        }
      }
    } else {
      source += 2 * lane_;
#pragma unroll
      for (int s = 0; s < kGroups; ++s) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const uint4 pairs = exists_ ? __ldg(source + 2 * kLanes * s + i) : uint4{};
          pairs_[s][4 * i] = pairs.x, pairs_[s][4 * i + 1] = pairs.y;
          pairs_[s][4 * i + 2] = pairs.z, pairs_[s][4 * i + 3] = pairs.w;
        }
      }
    }
  }

  // Writes the row and gives what its scores are to be multiplied with: not 0, which would make NaN of hidden scores.
  __device__ __forceinline__ float store(uint32_t latent, uint32_t rope) {
    using Latent = typename Traits::LatentTile;
    using Rope = typename Traits::RopeTile;
    const int tile_row = row_ % Traits::kTileM;
    if constexpr (!Traits::kIsE4M3) {
#pragma unroll
      for (int s = 0; s < kGroups; ++s) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const int piece = 2 * (kLanes * s + lane_) + i;
          store_16(s < kRopeGroup ? latent + Latent::offset(tile_row, piece)
                                  : rope + Rope::offset(tile_row, piece - Traits::kLatent / 8),
                   pairs_[s] + 4 * i);
        }
      }
      return not_zero(params_.softmax_scale_log2);
    } else {
      float divisor = 1.0f;
      if (!Traits::kRopeIsBF16 && !params_.query_is_e4m3) divisor = scale_of_row();
      const float factor = power_for(divisor), inverse = 1.0f / divisor;
      // A power of two leaves pairs exact.
      const uint32_t factors = ptx::bfloat162_from_floats(factor, factor);
#pragma unroll
      for (int s = 0; s < kGroups; ++s) {
        if (Traits::kRopeIsBF16 && s == kRopeGroup) {
#pragma unroll
          for (uint32_t& pair : pairs_[s]) pair = ptx::mul_bfloat162(pair, factors);
          store_16(rope + Rope::offset(tile_row, 2 * lane_), pairs_[s]);
          store_16(rope + Rope::offset(tile_row, 2 * lane_ + 1), pairs_[s] + 4);
          continue;
        }
        uint32_t codes[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          codes[i] = e4m3x2(pairs_[s][2 * i], factors, factor, divisor, inverse) |
                     static_cast<uint32_t>(e4m3x2(pairs_[s][2 * i + 1], factors, factor, divisor, inverse)) << 16;
        }
        store_16(s < kRopeGroup ? latent + Latent::offset(tile_row, kLanes * s + lane_)
                                : rope + Rope::offset(tile_row, lane_),
                 codes);
      }
      // The reciprocal of a power of two.
      float scale = params_.softmax_scale_log2 * divisor * __uint_as_float(0x7F000000u - __float_as_uint(factor));
      if (Traits::kFormat == CacheFormat::kTensor && params_.cache_scale != nullptr) {
        scale *= __ldg(params_.cache_scale);
      }
      if (exists_ && params_.query_is_e4m3) {
        const auto [batch, token, head] = params_.place(sequence_, row_);
        scale *= params_.query_scale.at(batch, head, token);
      }
      return not_zero(scale);
    }
  }

 private:
  static constexpr int kLanes = 32 / kRows, kGroups = static_cast<int>(kMlaDim) / 16 / kLanes;
  static constexpr int kRopeGroup = Traits::kLatent / 16 / kLanes;  // this one and on, of a lane

  __device__ static float not_zero(float scale) { return fabsf(scale) < 0x1p-126f ? 0x1p-126f : scale; }
  __device__ static float low(uint32_t pair) { return __uint_as_float(pair << 16); }
  __device__ static float high(uint32_t pair) { return __uint_as_float(pair & 0xFFFF0000u); }

  // The magnitude, 0 of what is not finite.
  __device__ static float finite(float v) { return isfinite(v) ? fabsf(v) : 0.0f; }

  // kTensor: amax / 448, the scale that quantize() would take. With RoPE channels in bf16 a power of two alone is
  // better, because it leaves these exact.
  __device__ __forceinline__ float scale_of_row() {
    float amax = 0.0f;
#pragma unroll
    for (const auto& group : pairs_) {
#pragma unroll
      for (const uint32_t pair : group) amax = fmaxf(amax, fmaxf(finite(low(pair)), finite(high(pair))));
    }
#pragma unroll
    for (int d = kLanes / 2; d > 0; d /= 2) amax = fmaxf(amax, __shfl_xor_sync(0xFFFFFFFFu, amax, d));
    forget();
    return amax == 0.0f ? 1.0f : fmaxf(amax / 448.0f, 0x1p-100f);
  }

  // The power of two that brings the sum of the magnitudes to between 64 and 128, so that no score overflows half:
  // |score| <= 128 * 448 = 57344. e4m3 is a float: where its range is used costs no accuracy.
  __device__ __forceinline__ float power_for(float divisor) {
    float sums[4] = {};
#pragma unroll
    for (int s = 0; s < (Traits::kRopeIsBF16 ? kRopeGroup : kGroups); ++s) {
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        sums[i % 2] += fabsf(low(pairs_[s][i]));
        sums[2 + i % 2] += fabsf(high(pairs_[s][i]));
      }
    }
    float sum = (sums[0] + sums[1]) + (sums[2] + sums[3]);
#pragma unroll
    for (int d = kLanes / 2; d > 0; d /= 2) sum += __shfl_xor_sync(0xFFFFFFFFu, sum, d);
    if constexpr (!Traits::kRopeIsBF16) {
      sum /= divisor;
      forget();
    }
    if (sum == 0.0f) return 1.0f;
    // Exponent of the power of two at or above the sum, relative to 128 = 2^7.
    const int exponent = static_cast<int>((__float_as_uint(sum) + 0x7FFFFFu) >> 23) - (127 + 7);
    return __uint_as_float(static_cast<uint32_t>(127 - min(max(exponent, -100), 100)) << 23);
  }

  // Or the compiler keeps every number beside the pair that it came from.
  __device__ __forceinline__ void forget() {
#pragma unroll
    for (auto& group : pairs_) {
#pragma unroll
      for (uint32_t& pair : group) asm volatile("" : "+r"(pair));
    }
  }

  __device__ __forceinline__ static uint16_t e4m3x2(uint32_t pair, uint32_t factors, float factor, float divisor,
                                                    float inverse) {
    if constexpr (Traits::kRopeIsBF16) {
      pair = ptx::mul_bfloat162(pair, factors);
      return ptx::e4m3x2_from_floats(low(pair), high(pair));
    } else {
      return ptx::e4m3x2_from_floats(quotient(low(pair), divisor, inverse) * factor,
                                     quotient(high(pair), divisor, inverse) * factor);
    }
  }

  // value / divisor as a division rounds it.
  __device__ __forceinline__ static float quotient(float value, float divisor, float inverse) {
    const float estimate = value * inverse;
    const float corrected = fmaf(fmaf(-estimate, divisor, value), inverse, estimate);
    return isfinite(value) ? corrected : estimate;
  }

  __device__ static void store_16(uint32_t address, const uint32_t* words) {
    asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(words[0]), "r"(words[1]), "r"(words[2]),
                 "r"(words[3])
                 : "memory");
  }

  const MlaParams& params_;
  const int sequence_, row_, lane_;
  const bool exists_;
  uint32_t pairs_[kGroups][8];  // bf16
};

// One of kWarps warps: every kWarps-th eight rows of a tile. The caller has all warps meet afterwards.
template <class Traits, int kWarps>
__device__ __forceinline__ void load_query_rows(typename Traits::Shared& shared, const MlaParams& params, int sequence,
                                                int tile, int warp, int lane) {
  using Rows = MlaQueryRows<Traits>;
  const uint32_t latent = ptx::shared_address(shared.query), rope = ptx::shared_address(shared.query_rope);
#pragma unroll 1
  for (int first = Rows::kRows * warp; first < Traits::kRows; first += Rows::kRows * kWarps) {
    const int own = ptx::launder(lane);  // or addresses of pieces are kept in registers throughout
    const int row = first + own / (32 / Rows::kRows);
    Rows rows(params, sequence, tile * Traits::kTileM + row, own);
    rows.load();
    const float scale = rows.store(latent, rope);
    if (own % (32 / Rows::kRows) == 0) shared.query_scale[row] = scale;
  }
  ::cuda::ptx::fence_proxy_async(::cuda::ptx::space_shared);  // wgmma reads what was written
}

}  // namespace fp8attn::cuda
