// A tile in shared memory as TMA writes it and wgmma reads it: rows of kRowBytes, cut into chunks of 64 or 128 bytes
// that lie one behind the other, each chunk swizzled with its own width (PTX ISA, "Shared memory matrix layout").
#pragma once

#include <cstdint>

namespace fp8attn::cuda {

template <int kRows_, int kRowBytes, int kChunkBytes_ = kRowBytes % 128 == 0 ? 128 : 64>
struct SharedTile {
  static constexpr int kRows = kRows_;
  static constexpr int kChunkBytes = kChunkBytes_;
  static constexpr int kChunks = kRowBytes / kChunkBytes;
  static constexpr int kBytes = kRows * kRowBytes;
  static_assert(kChunkBytes == 128 || kChunkBytes == 64, "the swizzles in use");
  static_assert(kRowBytes % kChunkBytes == 0);

  // Byte offset of row `row` of chunk `chunk`. A multiple of 8 rows keeps the swizzle's pattern.
  __device__ static constexpr int row_offset(int chunk, int row) { return (chunk * kRows + row) * kChunkBytes; }

  // Byte offset of 16-byte piece `piece` of row `row`. The swizzle xors the piece with the row, so that eight rows of
  // one column of pieces lie in eight different bank groups.
  __device__ static constexpr int offset(int row, int piece) {
    constexpr int kPieces = kChunkBytes / 16;
    const int mixed = (piece % kPieces) ^ ((row * kChunkBytes / 128) % kPieces);
    return row_offset(piece / kPieces, row) + mixed * 16;
  }

  // wgmma descriptor of the tile at `address` as a K-major operand, from byte `k_byte` of its rows (the bytes of a row
  // are the reduction) and from row `row`, a multiple of 8.
  __device__ static uint64_t k_major_descriptor(uint32_t address, int k_byte, int row = 0) {
    return descriptor(address, row_offset(k_byte / kChunkBytes, row) + k_byte % kChunkBytes, 1);
  }

  // The same tile as an N-major operand from row `row`: the rows are the reduction. Chunks follow each other along N.
  __device__ static uint64_t n_major_descriptor(uint32_t address, int row) {
    return descriptor(address, row * kChunkBytes, kRows * kChunkBytes / 16);
  }

 private:
  // Arithmetic on the low word only: the compiler does not know that an offset never carries into the high one.
  __device__ static uint64_t descriptor(uint32_t address, uint32_t offset, uint32_t leading_offset) {
    constexpr uint32_t kGroupOfRows = 8 * kChunkBytes / 16;
    constexpr uint32_t kSwizzle = kChunkBytes == 128 ? 1 : 2;
    const uint32_t low = ((address & 0x3FFFF) >> 4 | leading_offset << 16) + offset / 16;
    return static_cast<uint64_t>(kGroupOfRows | kSwizzle << 30) << 32 | low;
  }
};

}  // namespace fp8attn::cuda
