#include "cpu/quantize.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstdint>
#include <cstring>

#include "cpu/float16.h"
#include "fp8attn/e4m3.h"

namespace fp8attn::cpu {
namespace {

constexpr float kMinScale = 0x1p-100f;

// A tile is all tokens [token, token_end) and channels [channel, channel_end) of one batch entry and head. Its buffers
// fit on the stack and in the first-level cache.
constexpr std::int64_t kTileTokens = 64;  // a multiple of the 16 tokens of a packed group
constexpr std::int64_t kTileChannels = 64;

struct Tile {
  std::int64_t b, h, token, token_end, channel, channel_end;

  std::int64_t channels() const { return channel_end - channel; }
};

using Row = std::array<float, kTileChannels>;
using PackedTile = std::array<std::array<std::uint8_t, kTileTokens>, kTileChannels>;

std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

// Calls work(tile) for every tile of a [b, s, h, d] tensor, in parallel.
template <class Work>
void for_each_tile(const TensorView& input, Work work) {
  const std::int64_t tokens = input.shape[1], heads = input.shape[2], channels = input.shape[3];
  const std::int64_t token_tiles = ceil_div(tokens, kTileTokens);
  const std::int64_t channel_tiles = ceil_div(channels, kTileChannels);
#pragma omp parallel for schedule(static)
  for (std::int64_t i = 0; i < input.shape[0] * heads * token_tiles * channel_tiles; ++i) {
    const std::int64_t channel = i % channel_tiles * kTileChannels;
    const std::int64_t token = i / channel_tiles % token_tiles * kTileTokens;
    const std::int64_t head = i / channel_tiles / token_tiles;
    work(Tile{head / heads, head % heads, token, std::min(token + kTileTokens, tokens), channel,
              std::min(channel + kTileChannels, channels)});
  }
}

std::int64_t element_offset(const TensorView& view, std::int64_t b, std::int64_t t, std::int64_t h, std::int64_t c) {
  return b * view.strides[0] + t * view.strides[1] + h * view.strides[2] + c;
}

void load_row(const TensorView& input, const Tile& tile, std::int64_t token, Row& row) {
  const std::int64_t offset = element_offset(input, tile.b, token, tile.h, tile.channel);
  if (input.dtype == DType::kF32) {
    std::memcpy(row.data(), static_cast<const float*>(input.data) + offset, tile.channels() * sizeof(float));
    return;
  }
  const auto* codes = static_cast<const std::uint16_t*>(input.data) + offset;
  const auto to_float = input.dtype == DType::kBF16 ? bf16_to_float : fp16_to_float;
  for (std::int64_t c = 0; c < tile.channels(); ++c) row[c] = to_float(codes[c]);
}

// Index, in the contiguous scale tensor, of the scale of one element.
struct ScaleIndex {
  ScaleGranularity granularity;
  std::int64_t tokens, heads, channels;

  std::int64_t operator()(std::int64_t b, std::int64_t t, std::int64_t h, std::int64_t c) const {
    switch (granularity) {
      case ScaleGranularity::kTensor: return 0;
      case ScaleGranularity::kHead: return h;
      case ScaleGranularity::kBatchHead: return b * heads + h;
      case ScaleGranularity::kTokenHead: return (b * tokens + t) * heads + h;
      case ScaleGranularity::kChannel: return (b * heads + h) * channels + c;
    }
    return 0;
  }
};

// Tiles of several threads share a scale. A maximum comes out the same in any order.
void raise(float& shared, float value) {
  std::atomic_ref<float> target(shared);
  float current = target.load(std::memory_order_relaxed);
  while (value > current && !target.compare_exchange_weak(current, value, std::memory_order_relaxed)) {
  }
}

float finite_magnitude(float value) {
  const std::uint32_t magnitude = std::bit_cast<std::uint32_t>(value) & 0x7FFFFFFFu;
  return std::bit_cast<float>(magnitude < 0x7F800000u ? magnitude : 0u);
}

void raise_amax(const QuantizeProblem& problem, const ScaleIndex& index, const Tile& tile, float* amax) {
  Row row, tile_amax{};
  const bool per_token = problem.granularity == ScaleGranularity::kTokenHead;
  for (std::int64_t t = tile.token; t < tile.token_end; ++t) {
    load_row(problem.input, tile, t, row);
    if (per_token) tile_amax = {};
    for (std::int64_t c = 0; c < tile.channels(); ++c) tile_amax[c] = std::max(tile_amax[c], finite_magnitude(row[c]));
    if (per_token) raise(amax[index(tile.b, t, tile.h, 0)], *std::ranges::max_element(tile_amax));
  }
  if (per_token) return;
  if (problem.granularity == ScaleGranularity::kChannel) {
    for (std::int64_t c = 0; c < tile.channels(); ++c) {
      raise(amax[index(tile.b, 0, tile.h, tile.channel + c)], tile_amax[c]);
    }
  } else {
    raise(amax[index(tile.b, 0, tile.h, 0)], *std::ranges::max_element(tile_amax));
  }
}

void write_packed(const PackedTile& codes, const Tile& tile, const MutableTensorView& output) {
  const std::int64_t heads = output.shape[1], channels = output.shape[2], positions = output.shape[3];
  const std::int64_t count = std::min(kTileTokens, positions - tile.token);
  auto* data = static_cast<std::uint8_t*>(output.data);
  for (std::int64_t c = 0; c < tile.channels(); ++c) {
    const std::int64_t line = (tile.b * heads + tile.h) * channels + tile.channel + c;
    std::memcpy(data + line * positions + tile.token, codes[c].data(), count);
  }
}

// One row of codes to where the layout wants it: into the output, or into the tile that write_packed() writes.
void store_row(const std::uint8_t* codes, const Tile& tile, std::int64_t token, const QuantizeProblem& problem,
               PackedTile& packed) {
  if (problem.layout == VLayout::kPacked) {
    const std::int64_t position = packed_position(token - tile.token);
    for (std::int64_t c = 0; c < tile.channels(); ++c) packed[c][position] = codes[c];
  } else {
    auto* data = static_cast<std::uint8_t*>(problem.output.data);
    std::memcpy(data + element_offset(problem.output, tile.b, token, tile.h, tile.channel), codes, tile.channels());
  }
}

void store_tile(const QuantizeProblem& problem, const ScaleIndex& index, const Tile& tile) {
  const auto* scale = static_cast<const float*>(problem.scale.data);
  Row row, inverse;
  std::array<std::uint8_t, kTileChannels> codes;
  PackedTile packed{};  // positions without a token hold 0
  const bool per_token = problem.granularity == ScaleGranularity::kTokenHead;
  for (std::int64_t t = tile.token; t < tile.token_end; ++t) {
    load_row(problem.input, tile, t, row);
    if (per_token || t == tile.token) {
      for (std::int64_t c = 0; c < tile.channels(); ++c) {
        inverse[c] = 1.0f / scale[index(tile.b, t, tile.h, tile.channel + c)];
      }
    }
    for (std::int64_t c = 0; c < tile.channels(); ++c) codes[c] = e4m3_from_float(row[c] * inverse[c]);
    store_row(codes.data(), tile, t, problem, packed);
  }
  if (problem.layout == VLayout::kPacked) write_packed(packed, tile, problem.output);
}

}  // namespace

void quantize(const QuantizeProblem& problem, Workspace, Stream) {
  const ScaleIndex index{problem.granularity, problem.input.shape[1], problem.input.shape[2], problem.input.shape[3]};
  auto* scale = static_cast<float*>(problem.scale.data);
  const std::int64_t scales = problem.scale.count();
  // The scale tensor holds the running amax first.
  std::fill_n(scale, scales, 0.0f);
  for_each_tile(problem.input, [&](const Tile& tile) { raise_amax(problem, index, tile, scale); });
  for (std::int64_t i = 0; i < scales; ++i) {
    scale[i] = scale[i] > 0.0f ? std::max(scale[i] / kE4M3Max, kMinScale) : 1.0f;
  }
  for_each_tile(problem.input, [&](const Tile& tile) { store_tile(problem, index, tile); });
}

void pack_v(const TensorView& input, const MutableTensorView& output, Stream) {
  for_each_tile(input, [&](const Tile& tile) {
    PackedTile packed{};
    for (std::int64_t t = tile.token; t < tile.token_end; ++t) {
      const auto* row =
          static_cast<const std::uint8_t*>(input.data) + element_offset(input, tile.b, t, tile.h, tile.channel);
      const std::int64_t position = packed_position(t - tile.token);
      for (std::int64_t c = 0; c < tile.channels(); ++c) packed[c][position] = row[c];
    }
    write_packed(packed, tile, output);
  });
}

std::size_t quantize_workspace_size(const QuantizeProblem&) { return 0; }

}  // namespace fp8attn::cpu
