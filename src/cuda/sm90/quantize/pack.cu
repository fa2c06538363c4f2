// Into the packed layout of V: [b, s, h, d] to [b, h, d, packed_length(s)], converted on the way or as it is.
//
// A block transposes a tile of kTileTokens x kTileChannels through shared memory. A lane reads the four tokens of one
// aligned group of four packed positions, so that each of its channels makes one 32-bit word without a shuffle.
#include <cstdint>
#include <type_traits>

#include "cuda/sm90/quantize/kernels.h"
#include "cuda/sm90/quantize/launch.h"
#include "cuda/sm90/quantize/scale_policy.cuh"

namespace fp8attn::cuda {
namespace {

constexpr int kPackThreads = 256;
constexpr int kWarps = kPackThreads / 32;
constexpr int kTileTokens = 256;  // 256 contiguous bytes of output a channel
constexpr int kTileChannels = 64;
constexpr int kTileGroups = kTileTokens / 16;
constexpr int kGroupsPerWarp = kTileGroups / kWarps;  // read at once: 8 loads of 16 bytes a thread
constexpr int kTileWords = kTileTokens / 4;           // words of a channel in shared memory
constexpr int kTileChunks = kTileTokens / 16;         // 16-byte chunks of a channel

struct PackSpace {
  std::int64_t input_batch, input_token, input_head;
  ScaleStrides scale;
  std::int64_t length;  // positions of a channel
  std::int64_t tiles;
  int tokens, heads, channels;
  int token_tiles, channel_tiles;
  bool wide_stores;  // the output is 16-byte aligned
};

// No scale: the codes move as they are.
struct NoScale {
  static constexpr bool kPerColumn = false;
};

struct PackTile {
  std::int64_t batch;
  int head, token, channel;  // the first of the tile

  // Tiles that run at the same time lie side by side in a [b, s, h, d] input.
  __device__ PackTile(const PackSpace& space, std::int64_t tile) {
    channel = static_cast<int>(tile % space.channel_tiles) * kTileChannels;
    tile /= space.channel_tiles;
    head = static_cast<int>(tile % space.heads);
    tile /= space.heads;
    token = static_cast<int>(tile % space.token_tiles) * kTileTokens;
    batch = tile / space.token_tiles;
  }
};

// Shared memory: word w of channel c, positions 4w..4w+3 of the tile, at [c][w ^ swizzle(c)]. Lanes that read
// neighbouring vectors write channels kCount apart; the swizzle sends them to different banks and leaves the four words
// of a 16-byte chunk together.
template <class Access>
__device__ int swizzle(int channel) {
  return (channel / Access::kCount & 7) << 2;
}

// The token at byte k of a lane's word: position 4i + k of a group of 16 holds token 8(k / 2) + 2i + k % 2, where i is
// the quarter of the warp that the lane is in.
__device__ int token_of_byte(int quarter, int k) { return 8 * (k >> 1) + 2 * quarter + (k & 1); }

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
      if (kWhole || token < tokens) rows[k].load(source + token * token_stride);
    }
  }

  __device__ std::uint32_t moved_word(int c) const {
    return rows[0].bits(c) | rows[1].bits(c) << 8 | rows[2].bits(c) << 16 | rows[3].bits(c) << 24;
  }

  __device__ std::uint32_t converted_word(int c, const float (&inverse)[4]) const {
    const auto real = [&](int k) { return scaled(Access::real(rows[k], c), inverse[k]); };
    return e4m3_pair(real(0), real(1)) | e4m3_pair(real(2), real(3)) << 16;
  }
};

// The words of a quad's channels, by the scales that they need. scale: that of the group's first token and the vector's
// first channel.
template <class Access, class Scale>
__device__ void words_of(const Quad<Access>& quad, const float* __restrict__ scale, std::int64_t token_stride,
                         int quarter, int tokens, std::uint32_t (&words)[Access::kCount]) {
  constexpr int kCount = Access::kCount;
  if constexpr (std::is_same_v<Scale, NoScale>) {
#pragma unroll
    for (int c = 0; c < kCount; ++c) words[c] = quad.moved_word(c);
  } else if constexpr (Scale::kPerColumn) {
    float inverse[kCount];
    load_inverses(scale, inverse);
#pragma unroll
    for (int c = 0; c < kCount; ++c) {
      words[c] = quad.converted_word(c, {inverse[c], inverse[c], inverse[c], inverse[c]});
    }
  } else {
    float inverse[4];
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const int token = token_of_byte(quarter, k);
      inverse[k] = token < tokens ? scale[token * token_stride] : 1.0f;
    }
#pragma unroll
    for (float& value : inverse) value = inverse_of(value);
#pragma unroll
    for (int c = 0; c < kCount; ++c) words[c] = quad.converted_word(c, inverse);
  }
}

// Fills the tile in shared memory. A warp takes groups of 16 tokens; its lanes take 8 neighbouring vectors of the four
// quarters of the group, which meet 32 different banks. Channels and groups past the end are left as they are.
template <class Access, class Scale>
__device__ void fill_tile(const typename Access::Storage* __restrict__ input, const float* __restrict__ scale,
                          const PackSpace& space, const PackTile& tile, std::uint32_t* tile_words) {
  constexpr int kCount = Access::kCount;
  const int warp = threadIdx.x / 32, quarter = threadIdx.x % 32 / 8, lane = threadIdx.x % 8;
  const std::int64_t group_stride = 16 * space.input_token, scale_stride = 16 * space.scale.token;
  const int tokens = space.tokens - tile.token;
  for (int channel = lane * kCount; channel < kTileChannels; channel += 8 * kCount) {
    if (tile.channel + channel >= space.channels) break;
    Quad<Access> quads[kGroupsPerWarp];
    // Two branches, so that all loads are under way before the first is used (see RowBatch).
    if (tokens >= kTileTokens) {
#pragma unroll
      for (int g = 0; g < kGroupsPerWarp; ++g) {
        const int group = warp + g * kWarps;
        quads[g].template load<true>(input + channel + group * group_stride, space.input_token, quarter, 16);
      }
    } else {
#pragma unroll
      for (int g = 0; g < kGroupsPerWarp; ++g) {
        const int group = warp + g * kWarps;
        quads[g].template load<false>(input + channel + group * group_stride, space.input_token, quarter,
                                      tokens - 16 * group);
      }
    }
#pragma unroll
    for (int g = 0; g < kGroupsPerWarp; ++g) {
      const int group = warp + g * kWarps;
      std::uint32_t words[kCount];
      words_of<Access, Scale>(quads[g], scale + (Scale::kPerColumn ? channel : group * scale_stride), space.scale.token,
                              quarter, tokens - 16 * group, words);
#pragma unroll
      for (int c = 0; c < kCount; ++c) {
        tile_words[(channel + c) * kTileWords + ((4 * group + quarter) ^ swizzle<Access>(channel))] = words[c];
      }
    }
  }
}

// Writes the tile: 16 lanes a channel.
template <class Access>
__device__ void write_tile(const std::uint32_t* tile_words, std::uint8_t* __restrict__ output, const PackSpace& space,
                           const PackTile& tile) {
  const std::int64_t line = (tile.batch * space.heads + tile.head) * space.channels + tile.channel;
  for (int chunk = threadIdx.x; chunk < kTileChannels * kTileChunks; chunk += kPackThreads) {
    const int channel = chunk / kTileChunks, part = chunk % kTileChunks;
    const std::int64_t position = tile.token + static_cast<std::int64_t>(part) * 16;
    if (tile.channel + channel >= space.channels || position >= space.length) continue;
    Vector<1, 16> codes;
    codes.load(tile_words + channel * kTileWords + (4 * part ^ swizzle<Access>(channel)));
    std::uint8_t* target = output + (line + channel) * space.length + position;
    if (space.wide_stores) {
      codes.store(target);
    } else {
      for (int i = 0; i < 16; ++i) target[i] = static_cast<std::uint8_t>(codes.bits(i));
    }
  }
}

// Tiles from the last to the first: the end of the input is what the amax pass has left in the L2 cache.
template <class Access, class Scale>
__global__ void __launch_bounds__(kPackThreads, 2)
    pack_tiles(const typename Access::Storage* __restrict__ input, std::uint8_t* __restrict__ output,
               const float* __restrict__ scale, const __grid_constant__ PackSpace space) {
  __shared__ __align__(16) std::uint32_t tile_words[kTileChannels * kTileWords];
  cudaTriggerProgrammaticLaunchCompletion();  // a prefill that waits for this kernel may begin its prologue
  for (std::int64_t index = blockIdx.x; index < space.tiles; index += gridDim.x) {
    const PackTile tile(space, space.tiles - 1 - index);
    const std::int64_t first_input =
        tile.batch * space.input_batch + tile.token * space.input_token + tile.head * space.input_head + tile.channel;
    const std::int64_t first_scale = tile.batch * space.scale.batch + tile.token * space.scale.token +
                                     tile.head * space.scale.head + (Scale::kPerColumn ? tile.channel : 0);
    fill_tile<Access, Scale>(input + first_input, scale + first_scale, space, tile, tile_words);
    __syncthreads();
    write_tile<Access>(tile_words, output, space, tile);
    __syncthreads();
  }
}

PackSpace make_pack_space(const TensorView& input, const MutableTensorView& output) {
  const auto tiles_of = [](std::int64_t size, int tile) { return static_cast<int>((size + tile - 1) / tile); };
  PackSpace space{};
  space.input_batch = input.strides[0];
  space.input_token = input.strides[1];
  space.input_head = input.strides[2];
  space.length = packed_length(input.shape[1]);
  space.tokens = static_cast<int>(input.shape[1]);
  space.heads = static_cast<int>(input.shape[2]);
  space.channels = static_cast<int>(input.shape[3]);
  space.token_tiles = tiles_of(space.length, kTileTokens);
  space.channel_tiles = tiles_of(space.channels, kTileChannels);
  space.tiles = input.shape[0] * space.heads * space.token_tiles * space.channel_tiles;
  space.wide_stores = reinterpret_cast<std::uintptr_t>(output.data) % 16 == 0;
  return space;
}

}  // namespace

void launch_pack(const QuantizeProblem& problem, Stream stream) {
  PackSpace space = make_pack_space(problem.input, problem.output);
  space.scale = scale_strides(problem);
  with_access(problem.input.dtype, use_vectors(problem.input, nullptr), [&]<class Access>(Access) {
    const auto kernel = problem.granularity == ScaleGranularity::kChannel ? pack_tiles<Access, ScalePerColumn>
                                                                          : pack_tiles<Access, ScalePerRow>;
    launch_tiles(kernel, space.tiles, kPackThreads, stream, input_data<typename Access::Storage>(problem.input),
                 static_cast<std::uint8_t*>(problem.output.data), static_cast<const float*>(problem.scale.data), space);
  });
}

void launch_pack_v(const TensorView& input, const MutableTensorView& output, Stream stream) {
  // 8 bytes at a time fill the lanes of a tile of 64 channels.
  const bool vectors = input.shape[3] % 8 == 0 && rows_aligned(input, 8);
  const auto kernel = vectors ? pack_tiles<Access<E4M3, 8>, NoScale> : pack_tiles<Access<E4M3, 1>, NoScale>;
  const PackSpace space = make_pack_space(input, output);
  launch_tiles(kernel, space.tiles, kPackThreads, stream, input_data<std::uint8_t>(input),
               static_cast<std::uint8_t*>(output.data), static_cast<const float*>(nullptr), space);
}

}  // namespace fp8attn::cuda
