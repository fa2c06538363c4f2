// The query rows of a unit into shared memory, quantised on the way where the cache is e4m3.
#pragma once

#include <cstdint>
#include <cuda/ptx>

#include "cuda/sm90/mla_decode/params.h"
#include "cuda/sm90/mla_decode/traits.h"
#include "cuda/sm90/ptx/half2.h"
#include "cuda/sm90/ptx/matrix.h"

namespace fp8attn::cuda {

// One row as a warp holds it: lane l has latent channels 16 l to 16 l + 15 and RoPE channels 2 l and 2 l + 1, as bf16
// pairs, or as e4m3 codes.
template <class Traits>
class MlaQueryRow {
 public:
  __device__ void load(const MlaParams& params, int sequence, int row, int lane) {
    exists_ = row < params.rows;
#pragma unroll
    for (uint32_t& pairs : latent_) pairs = 0;  // or the compiler keeps what was there before
    rope_ = 0;
    if (!exists_) return;
    const uint8_t* source = params.query_row(sequence, row);
    if (Traits::kIsE4M3 && params.query_is_e4m3) {
      const uint4 codes = __ldg(reinterpret_cast<const uint4*>(source) + lane);
      latent_[0] = codes.x, latent_[1] = codes.y, latent_[2] = codes.z, latent_[3] = codes.w;
      rope_ = __ldg(reinterpret_cast<const uint16_t*>(source + Traits::kLatent) + lane);
    } else {
      const auto* pairs = reinterpret_cast<const uint4*>(source) + 2 * lane;
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const uint4 four = __ldg(pairs + i);
        latent_[4 * i] = four.x, latent_[4 * i + 1] = four.y, latent_[4 * i + 2] = four.z, latent_[4 * i + 3] = four.w;
      }
      rope_ = __ldg(reinterpret_cast<const uint32_t*>(source + 2 * Traits::kLatent) + lane);
    }
  }

  // Writes the row and gives what its scores are to be multiplied with: not 0, which would make NaN of hidden scores.
  __device__ float store(const MlaParams& params, int sequence, int row, int lane, uint32_t latent, uint32_t rope) {
    using Latent = typename Traits::LatentTile;
    using Rope = typename Traits::RopeTile;
    const int tile_row = row % Traits::kTileM;
    if constexpr (!Traits::kIsE4M3) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        store_16(latent + Latent::offset(tile_row, 2 * lane + i), exists_, latent_[4 * i], latent_[4 * i + 1],
                 latent_[4 * i + 2], latent_[4 * i + 3]);
      }
      store_4(rope + Rope::offset(tile_row, lane / 4) + lane % 4 * 4, exists_ ? rope_ : 0);
      return not_zero(params.softmax_scale_log2);
    } else {
      float value[16], rope_value[2];
      unpack(params.query_is_e4m3, value, rope_value);
      float divisor = 1.0f;
      if (!Traits::kRopeIsBF16 && !params.query_is_e4m3) divisor = divide_by_scale(value, rope_value);
      const float factor = power_for(value, rope_value);
      uint32_t codes[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const uint32_t low = ptx::e4m3x2_from_floats(value[4 * i] * factor, value[4 * i + 1] * factor);
        const uint32_t high = ptx::e4m3x2_from_floats(value[4 * i + 2] * factor, value[4 * i + 3] * factor);
        codes[i] = low | high << 16;
      }
      store_16(latent + Latent::offset(tile_row, lane), exists_, codes[0], codes[1], codes[2], codes[3]);
      rope_value[0] *= factor;
      rope_value[1] *= factor;
      if constexpr (Traits::kRopeIsBF16) {
        store_4(rope + Rope::offset(tile_row, lane / 4) + lane % 4 * 4,
                exists_ ? ptx::bfloat162_from_floats(rope_value[0], rope_value[1]) : 0);
      } else {
        const uint16_t pair = exists_ ? ptx::e4m3x2_from_floats(rope_value[0], rope_value[1]) : 0;
        asm volatile("st.shared.b16 [%0], %1;" ::"r"(rope + Rope::offset(tile_row, lane / 8) + lane % 8 * 2), "h"(pair)
                     : "memory");
      }
      float scale = params.softmax_scale_log2 * divisor / factor;
      if (Traits::kFormat == CacheFormat::kTensor && params.cache_scale != nullptr) scale *= __ldg(params.cache_scale);
      if (exists_ && params.query_is_e4m3) {
        const auto [batch, token, head] = params.place(sequence, row);
        scale *= params.query_scale.at(batch, head, token);
      }
      return not_zero(scale);
    }
  }

 private:
  __device__ static float not_zero(float scale) { return fabsf(scale) < 0x1p-126f ? 0x1p-126f : scale; }

  __device__ void unpack(bool from_e4m3, float (&value)[16], float (&rope)[2]) const {
    if (!exists_) {
#pragma unroll
      for (float& v : value) v = 0.0f;
      rope[0] = rope[1] = 0.0f;
    } else if (from_e4m3) {
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const uint32_t pair = ptx::half2_from_e4m3x2(static_cast<uint16_t>(latent_[i / 2] >> (i % 2 * 16)));
        value[2 * i] = ptx::low_half_to_float(pair);
        value[2 * i + 1] = ptx::high_half_to_float(pair);
      }
      const uint32_t pair = ptx::half2_from_e4m3x2(static_cast<uint16_t>(rope_));
      rope[0] = ptx::low_half_to_float(pair);
      rope[1] = ptx::high_half_to_float(pair);
    } else {
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        value[2 * i] = __uint_as_float(latent_[i] << 16);
        value[2 * i + 1] = __uint_as_float(latent_[i] & 0xFFFF0000u);
      }
      rope[0] = __uint_as_float(rope_ << 16);
      rope[1] = __uint_as_float(rope_ & 0xFFFF0000u);
    }
  }

  // The magnitude, 0 of what is not finite.
  __device__ static float finite(float v) { return isfinite(v) ? fabsf(v) : 0.0f; }

  // kTensor: by amax / 448, the scale that quantize() would take. With RoPE channels in bf16 a power of two alone is
  // better, because it leaves these exact.
  __device__ static float divide_by_scale(float (&value)[16], float (&rope)[2]) {
    float amax = fmaxf(finite(rope[0]), finite(rope[1]));
#pragma unroll
    for (float v : value) amax = fmaxf(amax, finite(v));
#pragma unroll
    for (int d = 16; d > 0; d /= 2) amax = fmaxf(amax, __shfl_xor_sync(0xFFFFFFFFu, amax, d));
    if (amax == 0.0f) return 1.0f;
    const float scale = fmaxf(amax / 448.0f, 0x1p-100f);
#pragma unroll
    for (float& v : value) v /= scale;
    rope[0] /= scale;
    rope[1] /= scale;
    return scale;
  }

  // The power of two that brings the sum of the magnitudes to between 64 and 128, so that no score overflows half:
  // |score| <= 128 * 448 = 57344. e4m3 is a float: where its range is used costs no accuracy.
  __device__ static float power_for(const float (&value)[16], const float (&rope)[2]) {
    float sum = Traits::kRopeIsBF16 ? 0.0f : fabsf(rope[0]) + fabsf(rope[1]);
#pragma unroll
    for (float v : value) sum += fabsf(v);
#pragma unroll
    for (int d = 16; d > 0; d /= 2) sum += __shfl_xor_sync(0xFFFFFFFFu, sum, d);
    if (sum == 0.0f) return 1.0f;
    // Exponent of the power of two at or above the sum, relative to 128 = 2^7.
    const int exponent = static_cast<int>((__float_as_uint(sum) + 0x7FFFFFu) >> 23) - (127 + 7);
    return __uint_as_float(static_cast<uint32_t>(127 - min(max(exponent, -100), 100)) << 23);
  }

  __device__ static void store_16(uint32_t address, bool keep, uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
    asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(keep ? a : 0), "r"(keep ? b : 0),
                 "r"(keep ? c : 0), "r"(keep ? d : 0)
                 : "memory");
  }
  __device__ static void store_4(uint32_t address, uint32_t a) {
    asm volatile("st.shared.b32 [%0], %1;" ::"r"(address), "r"(a) : "memory");
  }

  bool exists_;
  uint32_t latent_[8];
  uint32_t rope_;
};

// One of kWarps warps: its rows of a tile, kAtOnce of them in flight. The caller has all warps meet afterwards.
template <class Traits, int kWarps, int kAtOnce>
__device__ __forceinline__ void load_query_rows(typename Traits::Shared& shared, const MlaParams& params, int sequence,
                                                int tile, int warp, int lane) {
  const uint32_t latent = ptx::shared_address(shared.query), rope = ptx::shared_address(shared.query_rope);
  constexpr int kRows = Traits::kRows / kWarps;
#pragma unroll 1
  for (int first = kRows * warp; first < kRows * warp + kRows; first += kAtOnce) {
    MlaQueryRow<Traits> rows[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) rows[i].load(params, sequence, tile * Traits::kTileM + first + i, lane);
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const float scale = rows[i].store(params, sequence, tile * Traits::kTileM + first + i, lane, latent, rope);
      if (lane == 0) shared.query_scale[first + i] = scale;
    }
  }
  ::cuda::ptx::fence_proxy_async(::cuda::ptx::space_shared);  // wgmma reads what was written
}

}  // namespace fp8attn::cuda
