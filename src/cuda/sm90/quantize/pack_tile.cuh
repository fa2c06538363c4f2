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

// Where the tokens of a tile lie: rows a fixed distance apart. Another type may say otherwise.
template <class Storage>
struct StridedRows {
  const Storage* first;
  std::int64_t stride;
  int count;  // tokens from here on are not there

  __device__ bool has_all(int tokens) const { return count >= tokens; }
  __device__ bool has(int token) const { return token < count; }
  __device__ const Storage* row(int token) const { return first + token * stride; }
};

// Four tokens of one vector of channels; zeros where there is no token.
template <class Access>
struct Quad {
  typename Access::Values rows[4];

  // Of the group of 16 tokens from `first` on. kWhole: all of them exist.
  template <bool kWhole, class Rows>
  __device__ void load(const Rows& source, int first, int channel, int quarter) {
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const int token = first + token_of_byte(quarter, k);
      if (kWhole || source.has(token)) {
        // Codes are read this once; values were read before, and what the L2 cache still has of them is welcome.
        if constexpr (sizeof(typename Access::Storage) == 1) {
          rows[k].load_last(source.row(token) + channel);
        } else {
          rows[k].load(source.row(token) + channel);
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

  // Two branches, so that all loads are under way before the first is used (see RowBatch).
  template <class Rows>
  __device__ void load(const Rows& rows, int channel) {
    if (rows.has_all(Shape::kTokens)) {
#pragma unroll
      for (int g = 0; g < Shape::kGroupsPerWarp; ++g) {
        quads[g].template load<true>(rows, 16 * Shape::group(g), channel, Shape::quarter());
      }
    } else {
#pragma unroll
      for (int g = 0; g < Shape::kGroupsPerWarp; ++g) {
        quads[g].template load<false>(rows, 16 * Shape::group(g), channel, Shape::quarter());
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

// Fills the tile in shared memory from `rows`, whose first channel is the tile's; `channels`: how many there are from
// there on. words_of(quad, channel, group, words) gives the words of a quad's channels. Channels past the end are left
// as they are.
template <class Shape, class Rows, class WordsOf>
__device__ void fill_tile(const Rows& rows, int channels, std::uint32_t* tile_words, WordsOf words_of) {
  constexpr int kStep = Shape::kLaneVectors * Shape::kCount;
  for (int channel = Shape::vector() * Shape::kCount; channel < Shape::kChannels; channel += kStep) {
    if (channel >= channels) break;
    LaneQuads<Shape> lane;
    lane.load(rows, channel);
#pragma unroll
    for (int g = 0; g < Shape::kGroupsPerWarp; ++g) {
      std::uint32_t words[Shape::kCount];
      words_of(lane.quads[g], channel, Shape::group(g), words);
      store_words<Shape>(words, channel, g, tile_words);
    }
  }
}

// Writes the tile, neighbouring lanes the chunks of a channel. output: its first channel and position in the packed
// tensor, whose channels are `length` positions apart; channels, positions: how many there are from there on.
template <class Shape>
__device__ void write_tile(const std::uint32_t* tile_words, std::uint8_t* __restrict__ output, std::int64_t length,
                           int channels, std::int64_t positions, bool wide_stores) {
  constexpr int kStep = kPackThreads / Shape::kChunks;  // channels that are written at once
  static_assert(kPackThreads % Shape::kChunks == 0 && Shape::kChannels % kStep == 0);
  const int part = threadIdx.x % Shape::kChunks, first = threadIdx.x / Shape::kChunks;
  if (part * 16 >= positions) return;
  std::uint8_t* target = output + first * length + part * 16;
#pragma unroll
  for (int i = 0; i < Shape::kChannels / kStep; ++i, target += kStep * length) {
    const int channel = first + i * kStep;
    if (channel >= channels) return;
    Vector<1, 16> codes;
    codes.load(tile_words + channel * Shape::kWords + (4 * part ^ Shape::swizzle(channel)));
    if (wide_stores) {
      codes.store(target);
    } else {
      for (int c = 0; c < 16; ++c) target[c] = static_cast<std::uint8_t>(codes.bits(c));
    }
  }
}

}  // namespace fp8attn::cuda
