// A tile in shared memory as TMA writes it and wgmma reads it: rows of kRowBytes, cut into chunks of at most 128 bytes
// that lie one behind the other, each chunk swizzled with its own width (PTX ISA, "Shared memory matrix layout").
#pragma once

#include <cstdint>

namespace fp8attn::cuda {

template <int kRows_, int kRowBytes>
struct SharedTile {
  static constexpr int kRows = kRows_;
  static constexpr int kChunkBytes = kRowBytes < 128 ? kRowBytes : 128;
  static constexpr int kChunks = kRowBytes / kChunkBytes;
  static constexpr int kBytes = kRows * kRowBytes;
  static_assert(kChunkBytes == 128 || kChunkBytes == 64, "the swizzles in use");
  static_assert(kRowBytes % kChunkBytes == 0);

  // Byte offset of 16-byte piece `piece` of row `row`. The swizzle xors the piece with the row, so that eight rows of
  // one column of pieces lie in eight different bank groups.
  __device__ static constexpr int offset(int row, int piece) {
    constexpr int kPieces = kChunkBytes / 16;
    const int chunk = piece / kPieces;
    const int mixed = (piece % kPieces) ^ ((row * kChunkBytes / 128) % kPieces);
    return chunk * kRows * kChunkBytes + row * kChunkBytes + mixed * 16;
  }

  // wgmma descriptor of the tile at `address` as a K-major operand: the bytes of a row are the reduction.
  __device__ static uint64_t k_major_descriptor(uint32_t address) { return descriptor(address, 1); }

  // Distance, in descriptor units, from the operand at byte 0 to the one at byte `k_byte` of the rows.
  __device__ static constexpr uint64_t k_major_step(int k_byte) {
    return (k_byte / kChunkBytes * kRows * kChunkBytes + k_byte % kChunkBytes) / 16;
  }

  // The same tile as an N-major operand: the rows are the reduction. Chunks follow each other along N.
  __device__ static uint64_t n_major_descriptor(uint32_t address) {
    return descriptor(address, kRows * kChunkBytes / 16);
  }
  __device__ static constexpr uint64_t n_major_step(int row) { return row * kChunkBytes / 16; }

 private:
  __device__ static uint64_t descriptor(uint32_t address, uint64_t leading_offset) {
    constexpr uint64_t kGroupOfRows = 8 * kChunkBytes / 16;
    constexpr uint64_t kSwizzle = kChunkBytes == 128 ? 1 : 2;
    return (address & 0x3FFFF) >> 4 | leading_offset << 16 | kGroupOfRows << 32 | kSwizzle << 62;
  }
};

}  // namespace fp8attn::cuda
