// A tile of tokens and channels on its way into the packed layout of V, through shared memory.
//
// A lane reads the four tokens of one aligned group of four packed positions, so that each of its channels makes one
// 32-bit word without a shuffle.
#pragma once

#include <algorithm>
#include <cstdint>

#include "cuda/sm90/quantize/elements.h"

namespace fp8attn::cuda {

inline constexpr int kPackThreads = 256;

// How a block cuts up its tile. A warp reads groups of 16 tokens; its lanes share out kLaneVectors neighbouring vectors
// of channels, the four quarters of a group and, where there are fewer than 8 vectors, neighbouring groups.
template <class Access_, int kTokens_ = 256, int kChannels_ = 64>
struct PackTileShape {
  using Access = Access_;
  static constexpr int kTokens = kTokens_, kChannels = kChannels_;
  static constexpr int kCount = Access::kCount;
  static constexpr int kLaneVectors = std::min(8, kChannels / kCount);
  static constexpr int kLaneGroups = 8 / kLaneVectors;
  static constexpr int kGroupsPerWarp = kTokens / 16 / (kPackThreads / 32) / kLaneGroups;  // all read at once
  static constexpr int kWords = kTokens / 4;    // of a channel in shared memory
  static constexpr int kChunks = kTokens / 16;  // of a channel, 16 bytes each
  static_assert(kGroupsPerWarp * kLaneGroups * (kPackThreads / 32) * 16 == kTokens);

  __device__ static int vector() { return threadIdx.x % kLaneVectors; }
  __device__ static int quarter() { return threadIdx.x % 32 / kLaneVectors % 4; }
  __device__ static int group(int g) {
    return (threadIdx.x / 32 + g * (kPackThreads / 32)) * kLaneGroups + threadIdx.x % 32 / kLaneVectors / 4;
  }

  // Shared memory: word w of channel c, positions 4w..4w+3 of the tile, at [c][w ^ swizzle(c)]. What the lanes of a
  // warp store at once, words of kLaneGroups groups of kLaneVectors channels kCount apart, meets 32 different banks;
  // the four words of a 16-byte chunk stay together.
  __device__ static int swizzle(int channel) {
    return (channel / kCount % kLaneVectors) << (kLaneVectors == 8 ? 2 : 3);
  }
  static_assert(kLaneVectors == 8 || kLaneVectors == 4);
};

// The token at byte k of a lane's word: position 4i + k of a group of 16 holds token 8(k / 2) + 2i + k % 2, where i is
// the lane's quarter.
__device__ inline int token_of_byte(int quarter, int k) { return 8 * (k >> 1) + 2 * quarter + (k & 1); }

// Four tokens of one vector of channels; zeros where there is no token.
template <class Access>
struct Quad {
  typename Access::Values rows[4];

  // source: the vector of the group's first token. kWhole: all 16 tokens exist, else `tokens` of them (or none).
  template <bool kWhole>
  __device__ void load(const typename Access::Storage* __restrict__ source, std::int64_t token_stride, int quarter,
                       int tokens) {
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const int token = token_of_byte(quarter, k);
      if (kWhole || token < tokens) {
        // Codes are read this once; values were read before, and what the L2 cache still has of them is welcome.
        if constexpr (sizeof(typename Access::Storage) == 1) {
          rows[k].load_last(source + token * token_stride);
        } else {
          rows[k].load(source + token * token_stride);
        }
      } else {
        rows[k] = {};  // of the tile before
      }
    }
  }

  // The words of all channels, the codes as they are: byte k of word c is channel c of token k.
  __device__ void move(std::uint32_t (&words)[Access::kCount]) const {
    if constexpr (Access::kCount == 1) {
      words[0] = rows[0].bits(0) | rows[1].bits(0) << 8 | rows[2].bits(0) << 16 | rows[3].bits(0) << 24;
    } else {
#pragma unroll
      for (int i = 0; i < Access::kCount / 4; ++i) {
        const auto pair = [&](int k, unsigned selector) {
          return __byte_perm(rows[k].registers[i], rows[k + 1].registers[i], selector);
        };
        const std::uint32_t low[2] = {pair(0, 0x5140), pair(2, 0x5140)}, high[2] = {pair(0, 0x7362), pair(2, 0x7362)};
        words[4 * i] = __byte_perm(low[0], low[1], 0x5410);
        words[4 * i + 1] = __byte_perm(low[0], low[1], 0x7632);
        words[4 * i + 2] = __byte_perm(high[0], high[1], 0x5410);
        words[4 * i + 3] = __byte_perm(high[0], high[1], 0x7632);
      }
    }
  }

  __device__ std::uint32_t converted_word(int c, const float (&inverse)[4]) const {
    const auto real = [&](int k) { return scaled(Access::real(rows[k], c), inverse[k]); };
    return e4m3_pair(real(0), real(1)) | e4m3_pair(real(2), real(3)) << 16;
  }
};

// The quads that a lane reads of one vector of channels, all requested before any is used.
template <class Shape>
struct LaneQuads {
  Quad<typename Shape::Access> quads[Shape::kGroupsPerWarp];

  // source: the vector of the tile's first token; tokens: of the tile, from there on. Two branches, so that all loads
  // are under way before the first is used (see RowBatch).
  __device__ void load(const typename Shape::Access::Storage* __restrict__ source, std::int64_t token_stride,
                       int tokens) {
    if (tokens >= Shape::kTokens) {
#pragma unroll
      for (int g = 0; g < Shape::kGroupsPerWarp; ++g) {
        quads[g].template load<true>(source + Shape::group(g) * 16 * token_stride, token_stride, Shape::quarter(), 16);
      }
    } else {
#pragma unroll
      for (int g = 0; g < Shape::kGroupsPerWarp; ++g) {
        quads[g].template load<false>(source + Shape::group(g) * 16 * token_stride, token_stride, Shape::quarter(),
                                      tokens - 16 * Shape::group(g));
      }
    }
  }
};

// Puts the words of quad g of the vector that begins at `channel` into the tile.
template <class Shape>
__device__ void store_words(const std::uint32_t (&words)[Shape::kCount], int channel, int g,
                            std::uint32_t* tile_words) {
  const int word = (4 * Shape::group(g) + Shape::quarter()) ^ Shape::swizzle(channel);
#pragma unroll
  for (int c = 0; c < Shape::kCount; ++c) tile_words[(channel + c) * Shape::kWords + word] = words[c];
}

// Writes the tile, neighbouring lanes the chunks of a channel. output: its first channel and position in the packed
// tensor, whose channels are `length` positions apart; channels, positions: how many there are from there on.
template <class Shape>
__device__ void write_tile(const std::uint32_t* tile_words, std::uint8_t* __restrict__ output, std::int64_t length,
                           int channels, std::int64_t positions, bool wide_stores) {
  for (int chunk = threadIdx.x; chunk < Shape::kChannels * Shape::kChunks; chunk += kPackThreads) {
    const int channel = chunk / Shape::kChunks, part = chunk % Shape::kChunks;
    if (channel >= channels || part * 16 >= positions) continue;
    Vector<1, 16> codes;
    codes.load(tile_words + channel * Shape::kWords + (4 * part ^ Shape::swizzle(channel)));
    std::uint8_t* target = output + channel * length + part * 16;
    if (wide_stores) {
      codes.store(target);
    } else {
      for (int i = 0; i < 16; ++i) target[i] = static_cast<std::uint8_t>(codes.bits(i));
    }
  }
}

}  // namespace fp8attn::cuda
