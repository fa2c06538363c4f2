// From the output's accumulators to global memory: the output itself, or the partial result of a split unit.
#pragma once

#include <cstdint>

#include "cuda/sm90/mla_decode/params.h"
#include "cuda/sm90/mla_decode/traits.h"
#include "cuda/sm90/ptx/half2.h"
#include "cuda/sm90/ptx/matrix.h"
#include "cuda/sm90/ptx/warpgroup.h"

namespace fp8attn::cuda {

// Where one thread of the output warpgroups stands.
struct MlaOutputThread {
  int half;  // which warpgroup: channels 256 half to 256 half + 255
  int warp;  // within the warpgroup
  int lane;
  __device__ int index() const { return 32 * warp + lane; }
  // bf16: the query row of the tile that fragment row i (0 or 1) is.
  __device__ int row(int i) const { return 16 * warp + (lane >> 2) + 8 * i; }
};

__device__ __forceinline__ uint32_t pack_output(bool fp16, float low, float high) {
  return fp16 ? ptx::half2_from_floats(low, high) : ptx::bfloat162_from_floats(low, high);
}

// Channel `channel` of the output row `row` of a sequence.
__device__ __forceinline__ uint8_t* output_address(const MlaParams& params, int sequence, int row, int channel) {
  const auto [batch, token, head] = params.place(sequence, row);
  return static_cast<uint8_t*>(params.out) +
         2 * (batch * params.out_strides[0] + token * params.out_strides[1] + head * params.out_strides[2] + channel);
}

__device__ __forceinline__ void store_16_bytes(void* destination, uint4 value) {
  *static_cast<uint4*>(destination) = value;
}

template <class Traits>
__device__ __forceinline__ float* partial_row(const MlaParams& params, int slot, int row) {
  return params.partial_out + (static_cast<int64_t>(slot) * Traits::kTileM + row) * Traits::kLatent;
}

// Accumulators of channels by rows, through shared memory: 64 channels of 32 rows at a time, in whole lines of 128
// bytes.
template <class Traits>
__device__ __forceinline__ void store_transposed(uint8_t* staging, const MlaParams& params, const MlaMessage& message,
                                                 const float (&output)[4][32], const MlaOutputThread& thread) {
  const int barrier = 2 + thread.half;  // the 128 threads of this warpgroup
  const int g = thread.lane >> 2, q = thread.lane & 3;
#pragma unroll
  for (int tile = 0; tile < 4; ++tile) {
#pragma unroll
    for (int part = 0; part < (Traits::kRows + 31) / 32; ++part) {
#pragma unroll
      for (int j = 4 * part; j < min(4 * part + 4, Traits::kRows / 8); ++j) {
        const float2 factor = *reinterpret_cast<const float2*>(&message.factor[8 * j + 2 * q]);
#pragma unroll
        for (int c = 0; c < 2; ++c) {
          const float f = c == 0 ? factor.x : factor.y;
          uint8_t* row = staging + (8 * j + 2 * q + c - 32 * part) * Traits::kStagingRowBytes;
          *reinterpret_cast<uint32_t*>(row + 32 * thread.warp + 4 * g) =
              pack_output(params.out_is_fp16, output[tile][4 * j + c] * f, output[tile][4 * j + 2 + c] * f);
        }
      }
      ptx::named_barrier_sync<128>(barrier);
      const int first = ptx::launder(thread.index());
#pragma unroll 1
      for (int piece = first; piece < first + 256; piece += 128) {
        const int local = piece / 8;
        const int row = message.tile * Traits::kTileM + 32 * part + local;
        if (row < params.rows) {
          const uint4 value =
              *reinterpret_cast<const uint4*>(staging + local * Traits::kStagingRowBytes + piece % 8 * 16);
          store_16_bytes(output_address(params, message.sequence, row, 256 * thread.half + 64 * tile + piece % 8 * 8),
                         value);
        }
      }
      ptx::named_barrier_sync<128>(barrier);
    }
  }
}

template <class Traits>
__device__ __forceinline__ void store_partial_transposed(const MlaParams& params, const MlaMessage& message,
                                                         const float (&output)[4][32], const MlaOutputThread& thread) {
  const int g = thread.lane >> 2, q = thread.lane & 3;
#pragma unroll
  for (int j = 0; j < Traits::kRows / 8; ++j) {
    const float2 factor = *reinterpret_cast<const float2*>(&message.factor[8 * j + 2 * q]);
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      const float f = c == 0 ? factor.x : factor.y;
      const int row = 8 * j + 2 * q + c;
      if (message.tile * Traits::kTileM + row >= params.rows) continue;
      float* destination =
          partial_row<Traits>(params, message.slot, row) + 256 * thread.half + 16 * thread.warp + 2 * g;
#pragma unroll
      for (int tile = 0; tile < 4; ++tile) {
        *reinterpret_cast<float2*>(destination + 64 * tile) =
            make_float2(output[tile][4 * j + c] * f, output[tile][4 * j + 2 + c] * f);
      }
    }
  }
}

// Four lanes with four words each: lane q gets word q of every lane, in the order of the lanes.
__device__ __forceinline__ void transpose_quad(uint32_t (&word)[4], int q) {
  const bool odd = q & 1, high = q & 2;
  const uint32_t a = __shfl_xor_sync(0xFFFFFFFFu, odd ? word[0] : word[1], 1);
  const uint32_t b = __shfl_xor_sync(0xFFFFFFFFu, odd ? word[2] : word[3], 1);
  (odd ? word[0] : word[1]) = a;
  (odd ? word[2] : word[3]) = b;
  const uint32_t c = __shfl_xor_sync(0xFFFFFFFFu, high ? word[0] : word[2], 2);
  const uint32_t d = __shfl_xor_sync(0xFFFFFFFFu, high ? word[1] : word[3], 2);
  const uint32_t kept[2] = {high ? word[2] : word[0], high ? word[3] : word[1]};
  word[0] = high ? c : kept[0];
  word[1] = high ? d : kept[1];
  word[2] = high ? kept[0] : c;
  word[3] = high ? kept[1] : d;
}

// Accumulators of rows by channels.
template <class Traits>
__device__ __forceinline__ void store_rows(const MlaParams& params, const MlaMessage& message,
                                           const float (&output)[4][32], const MlaOutputThread& thread) {
  const int q = thread.lane & 3;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const float factor = message.factor[thread.row(i)];
    const int row = message.tile * Traits::kTileM + thread.row(i);
    const bool exists = row < params.rows;
    if (message.slot >= 0) {
      float* destination = partial_row<Traits>(params, message.slot, thread.row(i)) + 256 * thread.half + 2 * q;
#pragma unroll
      for (int j = 0; j < 32; ++j) {
        const float* value = &output[j / 8][4 * (j % 8) + 2 * i];
        if (exists) {
          *reinterpret_cast<float2*>(destination + 8 * j) = make_float2(value[0] * factor, value[1] * factor);
        }
      }
    } else {
      uint8_t* destination = output_address(params, message.sequence, exists ? row : 0, 256 * thread.half + 8 * q);
#pragma unroll
      for (int j = 0; j < 32; j += 4) {
        uint32_t word[4];
#pragma unroll
        for (int x = 0; x < 4; ++x) {
          const float* value = &output[j / 8][4 * ((j + x) % 8) + 2 * i];
          word[x] = pack_output(params.out_is_fp16, value[0] * factor, value[1] * factor);
        }
        transpose_quad(word, q);
        if (exists) store_16_bytes(destination + 16 * j, make_uint4(word[0], word[1], word[2], word[3]));
      }
    }
  }
}

// buffer: of the message, whose probabilities nobody needs.
template <class Traits>
__device__ __forceinline__ void store_output(typename Traits::Shared& shared, const MlaParams& params,
                                             const MlaMessage& message, const float (&output)[4][32], int buffer,
                                             MlaOutputThread thread) {
  thread.lane = ptx::launder(thread.lane);
  if constexpr (!Traits::kIsE4M3) {
    store_rows<Traits>(params, message, output, thread);
  } else if (message.slot >= 0) {
    store_partial_transposed<Traits>(params, message, output, thread);
  } else {
    uint8_t* staging = Traits::kSymmetric               ? shared.probability[2 * thread.half][0]
                       : Traits::kStagesInProbabilities ? shared.probability[buffer][2 * thread.half % Traits::kGroups]
                                                        : shared.staging[thread.half];
    store_transposed<Traits>(staging, params, message, output, thread);
  }
}

}  // namespace fp8attn::cuda
