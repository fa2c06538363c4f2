// Rows of q, k and v of 64, 128, 192 or 256 channels in the registers of a block, and their rotation.
#pragma once

#include <cuda_pipeline_primitives.h>

#include <cstdint>

#include "cuda/sm90/quantize/elements.h"
#include "cuda/sm90/quantize/qkv_params.h"

namespace fp8attn::cuda {

// kLanes neighbouring threads share a row; thread l of them holds channels 8 (v kLanes + l) + {0..7}, v < kVectors. A
// block holds kRows rows at once, and a batch is kBatch of these: 8 loads of 16 bytes a thread are under way together.
// Of 192 channels, the second vector of lanes 8..15 is empty.
template <int kLanes_, int kVectors_>
struct RowShape {
  static constexpr int kLanes = kLanes_, kVectors = kVectors_;
  static constexpr int kRows = kQkvThreads / kLanes;
  static constexpr int kBatch = 8 / kVectors;
  static constexpr int kBatchRows = kRows * kBatch;

  __device__ static int lane() { return threadIdx.x % kLanes; }
  __device__ static int slot() { return threadIdx.x / kLanes; }
  __device__ static int channel(int vector) { return 8 * (vector * kLanes + lane()); }
};
using Rows64 = RowShape<8, 1>;
using Rows128 = RowShape<8, 2>;
using Rows256 = RowShape<16, 2>;  // 192 channels too

// Calls body(RowShape{}) for the number of channels.
template <class Body>
__device__ __forceinline__ void with_row_shape(int channels, Body body) {
  if (channels == 64) {
    body(Rows64{});
  } else if (channels == 128) {
    body(Rows128{});
  } else {
    body(Rows256{});
  }
}

template <class Shape>
using RowValues = float[Shape::kVectors][8];

// Batches of rows on their way from global memory, kStages of them at a time. Each thread fetches what it will read
// itself, so that it waits for its own copies and for no other thread. Rows from `end` on are zeros.
template <class Element, class Shape, int kStages>
class RowStream {
 public:
  static constexpr int kStageBytes = 8 * 16 * kQkvThreads;

  // slots: kStages * kStageBytes of shared memory. head: channel 0 of token 0.
  __device__ RowStream(std::uint8_t* slots, const std::uint16_t* head, std::int64_t token_stride, int channels, int end)
      : slot_(reinterpret_cast<uint4*>(slots) + threadIdx.x),
        source_(head + Shape::channel(0)),
        token_stride_(token_stride),
        channels_(channels),
        end_(end) {}

  // Requests the batch that begins at token `first`; an empty one where there is none.
  __device__ __forceinline__ void fetch(int stage, int first) {
    if (first < end_) {
#pragma unroll
      for (int r = 0; r < Shape::kBatch; ++r) {
        const int token = first + Shape::slot() + r * Shape::kRows;
        const std::uint16_t* row = source_ + token * token_stride_;
#pragma unroll
        for (int v = 0; v < Shape::kVectors; ++v) {
          const bool there = token < end_ && Shape::channel(v) < channels_;
          __pipeline_memcpy_async(at(stage, r, v), there ? row + 8 * v * Shape::kLanes : source_, 16, there ? 0 : 16);
        }
      }
    }
    __pipeline_commit();
  }

  // Waits for all batches but the kLater that were requested last.
  template <int kLater>
  __device__ __forceinline__ void wait() {
    __pipeline_wait_prior(kLater);
  }

  __device__ __forceinline__ void values(int stage, int r, RowValues<Shape>& x) const {
#pragma unroll
    for (int v = 0; v < Shape::kVectors; ++v) {
      Vector<2, 8> raw;
      raw.load(at(stage, r, v));
#pragma unroll
      for (int e = 0; e < 8; ++e) x[v][e] = Element::to_float(raw.bits(e));
    }
  }

 private:
  __device__ uint4* at(int stage, int r, int v) const {
    return slot_ + (stage * 8 + r * Shape::kVectors + v) * kQkvThreads;
  }

  uint4* slot_;
  const std::uint16_t* source_;
  std::int64_t token_stride_;
  int channels_, end_;
};

// The signs of a thread's channels, 8 bits a vector.
template <class Shape>
struct ThreadSigns {
  std::uint32_t bits[Shape::kVectors];

  __device__ explicit ThreadSigns(const std::uint32_t (&signs)[kMostChannels / 32]) {
#pragma unroll
    for (int v = 0; v < Shape::kVectors; ++v) {
      const int channel = Shape::channel(v);
      bits[v] = signs[channel / 32] >> (channel % 32);
    }
  }
};

// One stage of butterflies between lanes: (a, b) to (a + b, a - b). The product with 1 or -1 is exact.
template <int kDistance>
__device__ __forceinline__ void cross_lanes(float (&x)[8]) {
  const float sign = threadIdx.x & kDistance ? -1.0f : 1.0f;
#pragma unroll
  for (int e = 0; e < 8; ++e) x[e] = __fmaf_rn(x[e], sign, __shfl_xor_sync(0xFFFFFFFFu, x[e], kDistance));
}

__device__ __forceinline__ void butterfly(float& a, float& b) {
  const float sum = __fadd_rn(a, b), difference = __fsub_rn(a, b);
  a = sum, b = difference;
}

// Signs and Hadamard matrix without its normalisation: butterflies of channels at distance 1, 2, 4 (one thread's), then
// those of the lanes, then those of the vectors. Whole warps. two_blocks: 128 and 64 channels.
template <class Shape>
__device__ __forceinline__ void rotate(RowValues<Shape>& x, const ThreadSigns<Shape>& signs, bool two_blocks) {
#pragma unroll
  for (int v = 0; v < Shape::kVectors; ++v) {
#pragma unroll
    for (int e = 0; e < 8; ++e) {
      const std::uint32_t sign = signs.bits[v] << (31 - e) & 0x80000000u;
      x[v][e] = __uint_as_float(__float_as_uint(x[v][e]) ^ sign);
    }
#pragma unroll
    for (int distance = 1; distance < 8; distance *= 2) {
#pragma unroll
      for (int e = 0; e < 8; ++e) {
        if ((e & distance) == 0) butterfly(x[v][e], x[v][e + distance]);
      }
    }
    cross_lanes<1>(x[v]);
    cross_lanes<2>(x[v]);
    cross_lanes<4>(x[v]);
    if (Shape::kLanes == 16 && !(v == 1 && two_blocks)) cross_lanes<8>(x[v]);
  }
  if constexpr (Shape::kVectors == 2) {
    if (two_blocks) return;
#pragma unroll
    for (int e = 0; e < 8; ++e) butterfly(x[0][e], x[1][e]);
  }
}

__device__ inline float finite_or_zero(float value) {
  return (__float_as_uint(value) & 0x7FFFFFFFu) < 0x7F800000u ? value : 0.0f;
}

}  // namespace fp8attn::cuda
