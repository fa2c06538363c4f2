// Rows of q, k and v of 64, 128, 192 or 256 channels in the registers of a block, and their rotation.
#pragma once

#include <cstdint>

#include "cuda/sm90/ptx/copy.h"
#include "cuda/sm90/quantize/elements.h"
#include "cuda/sm90/quantize/qkv_params.h"

namespace fp8attn::cuda {

// kLanes neighbouring threads share a row; thread l of them holds channels 8 (v kLanes + l) + {0..7}, v < kVectors. A
// block holds kRows rows at once, and a batch is kBatch of these. Of 192 channels, the last vectors are empty.
template <int kLanes_, int kVectors_, int kBatch_>
struct RowShape {
  static constexpr int kLanes = kLanes_, kVectors = kVectors_, kBatch = kBatch_;
  static constexpr int kRoom = 8 * kLanes * kVectors;
  static constexpr int kRows = kQkvThreads / kLanes;
  static constexpr int kBatchRows = kRows * kBatch;

  // How a warp reads a row of the batch from global memory and writes it: neighbouring lanes neighbouring vectors.
  static constexpr int kWarpRows = 32 / kLanes, kRowVectors = kRoom / 8, kRowsAtOnce = 32 / kRowVectors;
  // In shared memory rows lie so far apart that the 8 lanes that read together meet in no bank.
  static constexpr int kRowStride = kRowVectors + (kLanes == 4 ? 4 : 0);
  static constexpr int kWarpVectors = kBatch * kWarpRows * kRowStride;

  __device__ static int lane() { return threadIdx.x % kLanes; }
  __device__ static int slot() { return threadIdx.x / kLanes; }
  __device__ static int channel(int vector) { return 8 * (vector * kLanes + lane()); }
  // Fewer channels than the shape has room for are 192 of 256.
  __device__ static bool has(int vector, int channels) { return kRoom < 256 || channel(vector) < channels; }
  __device__ static unsigned stride(int channels) { return kRoom < 256 ? kRoom : channels; }
};

// Calls body(RowShape{}) for the number of channels.
template <class Shapes, class Body>
__device__ __forceinline__ void with_row_shape(int channels, Body body) {
  if (channels == 64) {
    body(typename Shapes::Of64{});
  } else if (channels == 128) {
    body(typename Shapes::Of128{});
  } else {
    body(typename Shapes::Of256{});
  }
}

template <class Shape>
using RowValues = float[Shape::kVectors][8];

// What flips the signs of all channels, as registers of two 16-bit elements, in shared memory. Whole block.
using SignFlips = std::uint32_t[kMostChannels / 2];
__device__ __forceinline__ void fill_flips(const std::uint32_t (&signs)[kMostChannels / 32], SignFlips& flips) {
  if (threadIdx.x < kMostChannels / 2) {
    const std::uint32_t bits = signs[threadIdx.x / 16] >> (threadIdx.x % 16 * 2);
    flips[threadIdx.x] = (bits & 1) << 15 | (bits & 2) << 30;
  }
  __syncthreads();
}

// Batches of vectors of 16 bytes on their way from global into shared memory, at most kStages of them, each with room
// for kWarpVectors a warp. A warp fetches what it will read itself, so that no other has to wait for it.
template <int kWarpVectors, int kStages>
class VectorRing {
 public:
  static constexpr int kStageBytes = kWarpVectors * 16 * (kQkvThreads / 32);

  // slots: kStages * kStageBytes of shared memory.
  __device__ explicit VectorRing(std::uint8_t* slots)
      : warp_(reinterpret_cast<uint4*>(slots) + threadIdx.x / 32 * kWarpVectors) {}

  // Requests the vector for entry i of the warp's batch at `stage`, zeros unless it is `there`.
  __device__ __forceinline__ void fetch(int stage, int i, const void* source, bool there) const {
    ptx::copy_16_or_zero(static_cast<std::uint32_t>(__cvta_generic_to_shared(at(stage, i))), source, there);
  }
  __device__ __forceinline__ void commit() const { ptx::commit_copies(); }  // a batch, empty or not

  // Waits for all batches but the kLater that were requested last. Whole warps.
  template <int kLater>
  __device__ __forceinline__ void wait() const {
    ptx::wait_for_copies_but<kLater>();
    __syncwarp();
  }

  __device__ uint4* at(int stage, int i) const { return warp_ + stage * (kStageBytes / 16) + i; }

  // The stage before, and the one behind it.
  __device__ static int before(int stage) { return stage == 0 ? kStages - 1 : stage - 1; }
  __device__ static int behind(int stage) { return stage == kStages - 1 ? 0 : stage + 1; }

 private:
  uint4* warp_;
};

// Batches of rows in a ring, and the way back of what is made of them. Rows from the end on are zeros.
//
// Codes take the place of their row, moved so that what 16 lanes leave together meets in no bank either.
template <class Element, class Shape, int kStages>
class RowStream {
 public:
  using Ring = VectorRing<Shape::kWarpVectors, kStages>;

  // head: channel 0 of token 0; begin: the first token.
  __device__ RowStream(std::uint8_t* slots, const std::uint16_t* head, const std::int64_t& token_stride, int channels,
                       int begin, int end)
      : ring_(slots), stride_(token_stride), channels_(channels) {
    const int row = threadIdx.x / 32 * Shape::kWarpRows + lane() / Shape::kRowVectors;
    row_ = head + (begin + row) * token_stride + 8 * (lane() % Shape::kRowVectors);
    left_ = end - begin - row;
#pragma unroll 1
    for (int i = 0; i < kStages - 1; ++i) fetch(i);
  }

  // Waits for the next batch, in `stage`; kStages - 1 behind it are on their way. Whole warps, as all below.
  __device__ __forceinline__ void next(int stage) {
    __syncwarp();
    fetch(Ring::before(stage));
    ring_.template wait<kStages - 1>();
  }

  // Row r of a batch, its signs flipped where there are flips.
  __device__ __forceinline__ void values(int stage, int r, const SignFlips* flips, RowValues<Shape>& x) const {
#pragma unroll
    for (int v = 0; v < Shape::kVectors; ++v) {
      Vector<2, 8> raw;
      raw.load(row(stage, r, warp_row()) + Shape::lane() + v * Shape::kLanes);
      if (flips != nullptr) {
        Vector<2, 8> flip;
        flip.load(*flips + Shape::channel(v) / 2);
#pragma unroll
        for (int i = 0; i < 4; ++i) raw.registers[i] ^= flip.registers[i];
      }
#pragma unroll
      for (int e = 0; e < 8; ++e) x[v][e] = Element::to_float(raw.bits(e));
    }
  }

  // Leaves the codes of vector v of row r in the place of its values.
  __device__ __forceinline__ void leave(int stage, int r, int v, const Vector<1, 8>& codes) const {
    codes.store(code_row(stage, r, warp_row()) + Shape::lane() + v * Shape::kLanes);
  }

  // Writes the codes of rows r of the warp. output: of the warp's first; rows: how many there are from there on.
  __device__ __forceinline__ void write(int stage, int r, std::uint8_t* output, int rows) const {
    constexpr int kUnits = Shape::kRoom / 16, kRowsOut = 32 / kUnits;
    __syncwarp();
#pragma unroll
    for (int i = 0; i < Shape::kWarpRows / kRowsOut; ++i) {
      const int from = i * kRowsOut + lane() / kUnits, unit = lane() % kUnits;
      Vector<1, 16> out;
      out.load(code_row(stage, r, from) + 2 * unit);
      if (from < rows && (Shape::kRoom < 256 || 16 * unit < channels_)) {
        out.store(output + from * Shape::stride(channels_) + 16 * unit);
      }
    }
  }

 private:
  __device__ static int lane() { return threadIdx.x % 32; }
  __device__ static int warp_row() { return lane() / Shape::kLanes; }

  __device__ uint4* row(int stage, int r, int warp_row) const {
    return ring_.at(stage, (r * Shape::kWarpRows + warp_row) * Shape::kRowStride);
  }
  __device__ uint2* code_row(int stage, int r, int warp_row) const {
    const int moved = Shape::kLanes == 4 ? warp_row / 2 % 2 : warp_row % 2;
    return reinterpret_cast<uint2*>(row(stage, r, warp_row)) + moved * Shape::kLanes;
  }

  __device__ __forceinline__ void fetch(int stage) {
#pragma unroll
    for (int r = 0; r < Shape::kBatch; ++r) {
      const std::uint16_t* source = row_ + r * Shape::kRows * stride_;
#pragma unroll
      for (int v = 0; v < Shape::kVectors; ++v, source += Shape::kRowsAtOnce * stride_) {
        const int row = v * Shape::kRowsAtOnce + lane() / Shape::kRowVectors, vector = lane() % Shape::kRowVectors;
        ring_.fetch(
            stage, (r * Shape::kWarpRows + row) * Shape::kRowStride + vector, source,
            r * Shape::kRows + v * Shape::kRowsAtOnce < left_ && (Shape::kRoom < 256 || 8 * vector < channels_));
      }
    }
    row_ += Shape::kBatchRows * stride_;
    left_ -= Shape::kBatchRows;
    ring_.commit();
  }

  Ring ring_;
  const std::uint16_t* row_;    // the lane's first of the next batch
  const std::int64_t& stride_;  // read again rather than kept in registers
  int channels_, left_;         // tokens from row_ on
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

__device__ __forceinline__ void butterflies(float (&a)[8], float (&b)[8]) {
#pragma unroll
  for (int e = 0; e < 8; ++e) butterfly(a[e], b[e]);
}

// The Hadamard matrix without its normalisation: butterflies of channels at distance 1, 2, 4 (one thread's), then those
// of the lanes, then those of the vectors. Whole warps. two_blocks: 128 and 64 channels.
template <class Shape>
__device__ __forceinline__ void rotate(RowValues<Shape>& x, bool two_blocks) {
#pragma unroll
  for (int v = 0; v < Shape::kVectors; ++v) {
#pragma unroll
    for (int distance = 1; distance < 8; distance *= 2) {
#pragma unroll
      for (int e = 0; e < 8; ++e) {
        if ((e & distance) == 0) butterfly(x[v][e], x[v][e + distance]);
      }
    }
    cross_lanes<1>(x[v]);
    cross_lanes<2>(x[v]);
    if constexpr (Shape::kLanes >= 8) cross_lanes<4>(x[v]);
    if (Shape::kLanes == 16 && !(v == 1 && two_blocks)) cross_lanes<8>(x[v]);
  }
  if constexpr (Shape::kVectors == 2) {
    if (!two_blocks) butterflies(x[0], x[1]);
  } else if constexpr (Shape::kVectors == 4) {
    butterflies(x[0], x[1]);
    if (two_blocks) return;  // 64 channels are one vector of 8 lanes
    butterflies(x[2], x[3]);
    butterflies(x[0], x[2]);
    butterflies(x[1], x[3]);
  }
}

__device__ inline float finite_or_zero(float value) {
  return (__float_as_uint(value) & 0x7FFFFFFFu) < 0x7F800000u ? value : 0.0f;
}

}  // namespace fp8attn::cuda
