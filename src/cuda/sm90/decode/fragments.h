// From keys and values as they lie in shared memory to operands of mma.sync, by element type of the cache.
//
// A warp takes 32 tokens at a time, and lane l addresses the row of token l: ldmatrix gives 16 bytes of all 32 tokens,
// for keys as they lie, for values transposed.
#pragma once

#include <cstdint>

#include "cuda/sm90/ptx/half2.h"
#include "cuda/sm90/ptx/matrix.h"
#include "cuda/sm90/ptx/mma.h"
#include "fp8attn/tensor.h"

namespace fp8attn::cuda {

// One token's row of a SharedTile.
template <class Tile>
struct TileRow {
  uint32_t first;  // address of its first piece of 16 bytes

  __device__ TileRow(const uint8_t* tile, int row) : first(ptx::shared_address(tile) + Tile::offset(row, 0)) {}

  // The swizzle is an exclusive or with bits that only the row decides.
  __device__ uint32_t piece(int index) const {
    constexpr int kPieces = Tile::kChunkBytes / 16;
    return (first ^ (index % kPieces * 16)) + Tile::row_offset(index / kPieces, 0);
  }
};

// e4m3: halves hold its codes exactly, and half products are summed in full. Operands of k16 step k are made of the 16
// bytes of piece k: 2 q and 2 q + 1 of the first eight are channels 4 q and 4 q + 1, of the last eight 4 q + 2 and
// 4 q + 3. Queries follow the same order.
struct DecodeE4M3 {
  static constexpr DType kDType = DType::kE4M3;
  static constexpr int kBytes = 1;
  static constexpr int kTilesOfPiece = 2;  // a piece of a value is two column tiles, even and odd channels

  __device__ static void mma(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    ptx::mma_f16(d, a, b0, b1);
  }
  __device__ static uint32_t pack(float low, float high) { return ptx::half2_from_floats(low, high); }

  // b[j]: of tokens 8 j to 8 j + 7.
  template <class Tile>
  __device__ static void load_keys(uint32_t (&b)[4][2], const TileRow<Tile>& row, int k) {
    uint32_t codes[4];
    ptx::ldmatrix_x4(codes, row.piece(k));
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      b[j][0] = ptx::half2_from_e4m3x2(static_cast<uint16_t>(codes[j]));
      b[j][1] = ptx::half2_from_e4m3x2(static_cast<uint16_t>(codes[j] >> 16));
    }
  }

  // b[t][i]: of column tile t of the piece and tokens 8 i to 8 i + 7, from ldmatrix's pairs of tokens with pairs of
  // channels.
  __device__ static void take_values(uint32_t (&b)[kTilesOfPiece][4], const uint32_t (&raw)[4]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint32_t codes = __byte_perm(raw[i], 0, 0x3120);
      b[0][i] = ptx::half2_from_e4m3x2(static_cast<uint16_t>(codes));
      b[1][i] = ptx::half2_from_e4m3x2(static_cast<uint16_t>(codes >> 16));
    }
  }

  // What a lane holds of a piece and of row lane / 4 + 8 i, times `factor`, to where the piece begins in `row`.
  template <int kTiles>
  __device__ static void store_piece(float* row, const float (&output)[kTiles][4], int piece, int i, int q,
                                     float factor) {
    const auto &even = output[2 * piece], &odd = output[2 * piece + 1];
    *reinterpret_cast<float4*>(row + 4 * q) =
        make_float4(even[2 * i] * factor, odd[2 * i] * factor, even[2 * i + 1] * factor, odd[2 * i + 1] * factor);
  }
};

// 16 bits: operands as they lie.
template <DType kDType_, void (*kMma)(float (&)[4], const uint32_t (&)[4], uint32_t, uint32_t),
          uint32_t (*kPack)(float, float)>
struct Decode16Bit {
  static constexpr DType kDType = kDType_;
  static constexpr int kBytes = 2;
  static constexpr int kTilesOfPiece = 1;

  __device__ static void mma(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) { kMma(d, a, b0, b1); }
  __device__ static uint32_t pack(float low, float high) { return kPack(low, high); }

  template <class Tile>
  __device__ static void load_keys(uint32_t (&b)[4][2], const TileRow<Tile>& row, int k) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      uint32_t pairs[4];
      ptx::ldmatrix_x4(pairs, row.piece(2 * k + half));
#pragma unroll
      for (int j = 0; j < 4; ++j) b[j][half] = pairs[j];
    }
  }

  __device__ static void take_values(uint32_t (&b)[kTilesOfPiece][4], const uint32_t (&raw)[4]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) b[0][i] = raw[i];
  }

  template <int kTiles>
  __device__ static void store_piece(float* row, const float (&output)[kTiles][4], int piece, int i, int q,
                                     float factor) {
    *reinterpret_cast<float2*>(row + 2 * q) =
        make_float2(output[piece][2 * i] * factor, output[piece][2 * i + 1] * factor);
  }
};

using DecodeBF16 = Decode16Bit<DType::kBF16, ptx::mma_bf16, ptx::bfloat162_from_floats>;
using DecodeFP16 = Decode16Bit<DType::kFP16, ptx::mma_f16, ptx::half2_from_floats>;

}  // namespace fp8attn::cuda
