// One token in the registers of a warp, and where its record lies.
//
// Lane l holds latent channels 8 l to 8 l + 7 and 256 + 8 l to 256 + 8 l + 7, so that lanes 0 to 15 hold scale groups 0
// and 2, the others 1 and 3, and every access of the warp is contiguous; and RoPE channels 2 l and 2 l + 1.
#pragma once

#include <cstdint>

#include "api/mask.h"
#include "cuda/sm90/quantize/elements.h"
#include "fp8attn/kv_cache.h"

namespace fp8attn::cuda {

inline constexpr int kCacheThreads = 256;
inline constexpr int kTokensPerBlock = kCacheThreads / 32;
inline constexpr int kParts = 2;         // vectors of 8 latent channels a lane
inline constexpr int kPartDim = 256;     // channels of a part over the warp
inline constexpr int kVectorDim = 8;     // channels of a vector
inline constexpr int kRecordAlign = 16;  // of every record, by validation

__device__ inline int lane() { return threadIdx.x % 32; }

// The token of this warp; at or past the number of tokens where there is none.
__device__ inline std::int64_t token_of_warp() {
  return blockIdx.x * static_cast<std::int64_t>(kTokensPerBlock) + threadIdx.x / 32;
}

// bf16 rows whose channels are contiguous. `vectors`: every row begins at a multiple of 16 bytes.
template <class Pointer>
struct Rows {
  Pointer data;
  std::int64_t stride;
  bool vectors;
};

// int32 or int64 slots.
struct Slots {
  const void* data;
  std::int64_t stride;
  bool is_64bit;

  __device__ std::int64_t at(std::int64_t token) const {
    if (is_64bit) return static_cast<const std::int64_t*>(data)[token * stride];
    return static_cast<const std::int32_t*>(data)[token * stride];
  }
};

// Strides in bytes.
template <class Byte>
struct Cache {
  Byte* data;
  std::int64_t page_stride, token_stride, pages;
  int page_size;

  // Null where the cache has no such slot.
  __device__ Byte* record(std::int64_t slot) const {
    if (!is_among(slot, pages * page_size)) return nullptr;
    return data + slot / page_size * page_stride + slot % page_size * token_stride;
  }
};

// 8 bf16 of a row, from `channel` on.
__device__ inline void load_vector(Vector<2, kVectorDim>& vector, const std::uint16_t* row, int channel, bool vectors) {
  if (vectors) {
    vector.load(row + channel);
    return;
  }
#pragma unroll
  for (int i = 0; i < kVectorDim; ++i) {
    vector.registers[i / 2] |= static_cast<std::uint32_t>(row[channel + i]) << (i % 2 * 16);
  }
}

__device__ inline void store_vector(const Vector<2, kVectorDim>& vector, std::uint16_t* row, int channel,
                                    bool vectors) {
  if (vectors) {
    vector.store(row + channel);
    return;
  }
#pragma unroll
  for (int i = 0; i < kVectorDim; ++i) row[channel + i] = static_cast<std::uint16_t>(vector.bits(i));
}

// This lane's two RoPE channels.
__device__ inline void load_pair(Vector<2, 2>& pair, const std::uint16_t* row, bool vectors) {
  if (vectors) {
    pair.load(row + 2 * lane());
  } else {
    pair.registers[0] = row[2 * lane()] | static_cast<std::uint32_t>(row[2 * lane() + 1]) << 16;
  }
}

__device__ inline void store_pair(const Vector<2, 2>& pair, std::uint16_t* row, bool vectors) {
  if (vectors) {
    pair.store(row + 2 * lane());
  } else {
    row[2 * lane()] = static_cast<std::uint16_t>(pair.bits(0));
    row[2 * lane() + 1] = static_cast<std::uint16_t>(pair.bits(1));
  }
}

}  // namespace fp8attn::cuda
