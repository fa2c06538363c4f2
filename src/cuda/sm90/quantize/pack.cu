// Into the packed layout of V: [b, s, h, d] to [b, h, d, packed_length(s)], converted on the way or as it is.
#include <cstdint>
#include <type_traits>

#include "cuda/sm90/quantize/kernels.h"
#include "cuda/sm90/quantize/launch.h"
#include "cuda/sm90/quantize/pack_tile.cuh"
#include "cuda/sm90/quantize/scale_policy.cuh"

namespace fp8attn::cuda {
namespace {

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

template <class Shape>
struct PackTile {
  std::int64_t batch;
  int head, token, channel;  // the first of the tile

  // Tiles that run at the same time lie side by side in a [b, s, h, d] input.
  __device__ PackTile(const PackSpace& space, std::int64_t tile) {
    channel = static_cast<int>(tile % space.channel_tiles) * Shape::kChannels;
    tile /= space.channel_tiles;
    head = static_cast<int>(tile % space.heads);
    tile /= space.heads;
    token = static_cast<int>(tile % space.token_tiles) * Shape::kTokens;
    batch = tile / space.token_tiles;
  }
};

// The words of a quad's channels, by the scales that they need. scale: that of the group's first token and the vector's
// first channel.
template <class Access, class Scale>
__device__ void words_of(const Quad<Access>& quad, const float* __restrict__ scale, std::int64_t token_stride,
                         int quarter, int tokens, std::uint32_t (&words)[Access::kCount]) {
  constexpr int kCount = Access::kCount;
  if constexpr (std::is_same_v<Scale, NoScale>) {
    quad.move(words);
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

// Tiles from the last to the first: the end of the input is what the amax pass has left in the L2 cache.
template <class Shape, class Scale>
__global__ void __launch_bounds__(kPackThreads, 2)
    pack_tiles(const typename Shape::Access::Storage* __restrict__ input, std::uint8_t* __restrict__ output,
               const float* __restrict__ scale, const __grid_constant__ PackSpace space) {
  __shared__ __align__(16) std::uint32_t tile_words[Shape::kChannels * Shape::kWords];
  cudaTriggerProgrammaticLaunchCompletion();  // a prefill that waits for this kernel may begin its prologue
  cudaGridDependencySynchronize();
  for (std::int64_t index = blockIdx.x; index < space.tiles; index += gridDim.x) {
    const PackTile<Shape> tile(space, space.tiles - 1 - index);
    const std::int64_t first_input =
        tile.batch * space.input_batch + tile.token * space.input_token + tile.head * space.input_head + tile.channel;
    const std::int64_t first_scale = tile.batch * space.scale.batch + tile.token * space.scale.token +
                                     tile.head * space.scale.head + (Scale::kPerColumn ? tile.channel : 0);
    const StridedRows<typename Shape::Access::Storage> rows{input + first_input, space.input_token,
                                                            space.tokens - tile.token};
    fill_tile<Shape>(rows, space.channels - tile.channel, tile_words,
                     [&](const auto& quad, int channel, int group, auto& words) {
                       words_of<typename Shape::Access, Scale>(
                           quad, scale + first_scale + (Scale::kPerColumn ? channel : group * 16 * space.scale.token),
                           space.scale.token, Shape::quarter(), rows.count - 16 * group, words);
                     });
    __syncthreads();
    const std::int64_t line = (tile.batch * space.heads + tile.head) * space.channels + tile.channel;
    write_tile<Shape>(tile_words, output + line * space.length + tile.token, space.length,
                      space.channels - tile.channel, space.length - tile.token, space.wide_stores);
    __syncthreads();
  }
}

template <class Shape>
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
  space.token_tiles = tiles_of(space.length, Shape::kTokens);
  space.channel_tiles = tiles_of(space.channels, Shape::kChannels);
  space.tiles = input.shape[0] * space.heads * space.token_tiles * space.channel_tiles;
  space.wide_stores = reinterpret_cast<std::uintptr_t>(output.data) % 16 == 0;
  return space;
}

}  // namespace

void launch_pack(const QuantizeProblem& problem, Stream stream) {
  with_access(problem.input.dtype, use_vectors(problem.input, nullptr), [&]<class Access>(Access) {
    using Shape = PackTileShape<Access>;
    PackSpace space = make_pack_space<Shape>(problem.input, problem.output);
    space.scale = scale_strides(problem);
    const auto kernel = problem.granularity == ScaleGranularity::kChannel ? pack_tiles<Shape, ScalePerColumn>
                                                                          : pack_tiles<Shape, ScalePerRow>;
    launch_tiles(kernel, space.tiles, kPackThreads, stream, input_data<typename Access::Storage>(problem.input),
                 static_cast<std::uint8_t*>(problem.output.data), static_cast<const float*>(problem.scale.data), space);
  });
}

template <class Shape>
void launch_move(const TensorView& input, const MutableTensorView& output, Stream stream) {
  const PackSpace space = make_pack_space<Shape>(input, output);
  launch_blocks(pack_tiles<Shape, NoScale>, Grid{std::min<std::int64_t>(space.tiles, 0x7FFFFFFF), kPackThreads},
                Start::kEarly, stream, input_data<std::uint8_t>(input), static_cast<std::uint8_t*>(output.data),
                static_cast<const float*>(nullptr), space);
}

void launch_pack_v(const TensorView& input, const MutableTensorView& output, Stream stream) {
  // 32 KB a block where rows can be read by 16 bytes; the vectors of 8 are for rows that cannot.
  const std::int64_t channels = input.shape[3];
  const bool wide = rows_aligned(input, 16);
  if (wide && channels % 128 == 0) return launch_move<PackTileShape<Access<E4M3, 16>, 256, 128>>(input, output, stream);
  if (wide && channels % 64 == 0) return launch_move<PackTileShape<Access<E4M3, 16>, 512, 64>>(input, output, stream);
  if (channels % 8 == 0 && rows_aligned(input, 8)) {
    return launch_move<PackTileShape<Access<E4M3, 8>>>(input, output, stream);
  }
  launch_move<PackTileShape<Access<E4M3, 1>>>(input, output, stream);
}

}  // namespace fp8attn::cuda
