// A row-major e4m3 V of an uneven batch into the packed order, at the positions where the prefill kernel looks for it.
#include <algorithm>
#include <cstdint>

#include "cuda/launch/device.h"
#include "cuda/sm90/prepass/page_rows.cuh"
#include "cuda/sm90/prepass/prepass.h"
#include "cuda/sm90/prepass/sequence_walk.cuh"
#include "cuda/sm90/quantize/launch.h"
#include "cuda/sm90/quantize/pack_tile.cuh"

namespace fp8attn::cuda {
namespace {

constexpr int kBlocksPerMultiprocessor = 2;

struct PackParams {
  BatchView batch;
  const std::uint8_t* input;
  PageStrides strides;  // page: or entry of the batch; 0 of a ragged one
  Divisor page_size;
  std::uint8_t* output;
  std::int64_t positions;  // of a channel
  int heads, channels, channel_tiles;
  int team;  // of blocks, see SequenceWalk
};

// Some channels of a head of a piece.
struct PackTile {
  int head, channel;      // the first channel
  int positions;          // to be written
  std::int64_t line;      // of the output, for the first channel
  std::int64_t position;  // in it

  __device__ PackTile(const PackParams& params, const SequencePiece& piece, int channels)
      : head(piece.part / params.channel_tiles), channel((piece.part - head * params.channel_tiles) * channels) {
    constexpr int kAlignment = BatchView::kAlignment;
    positions = (piece.length - piece.token + kAlignment - 1) / kAlignment * kAlignment;
    line = static_cast<std::int64_t>(head) * params.channels + channel;
    position = params.batch.aligned_start(piece.sequence) + std::int64_t{piece.token};
  }
};

// The rows of dense and ragged values.
template <class Shape>
class RowsInOrder {
 public:
  struct Shared {};

  __device__ RowsInOrder(const PackParams& params, Shared&) : params_(params) {}

  __device__ void find(const SequencePiece& piece) { piece_ = piece; }

  // Whole block: a barrier, and the rows that have been found, from an offset on.
  __device__ StridedRows<std::uint8_t> meet(std::int64_t offset) const {
    __syncthreads();
    const std::int64_t first = params_.batch.keys(piece_.sequence).start + std::int64_t{piece_.token};
    const std::int64_t entry = params_.batch.ragged_keys() ? 0 : piece_.sequence * params_.strides.page;
    return {params_.input + entry + first * params_.strides.token + offset, params_.strides.token,
            piece_.length - piece_.token};
  }

 private:
  const PackParams& params_;
  SequencePiece piece_;
};

// The rows of paged values.
template <class Shape>
class RowsInPages {
 public:
  using Shared = PageRows<Shape::kTokens>;

  struct Source {
    const std::uint8_t* first;
    const Shared& rows;
    bool all;

    __device__ bool has_all(int) const { return all; }
    __device__ bool has(int token) const { return rows.offset[token] != Shared::kNone; }
    __device__ const std::uint8_t* row(int token) const { return first + rows.offset[token]; }
  };

  __device__ RowsInPages(const PackParams& params, Shared& shared) : params_(params), shared_(shared) {}

  __device__ void find(const SequencePiece& piece) {
    all_ = shared_.find(params_.batch, params_.page_size, params_.strides, piece);
  }

  __device__ Source meet(std::int64_t offset) const {
    return {params_.input + offset, shared_, __syncthreads_and(all_) != 0};
  }

 private:
  const PackParams& params_;
  Shared& shared_;
  bool all_ = false;
};

template <class Shape, template <class> class Rows>
__global__ void __launch_bounds__(kPackThreads, kBlocksPerMultiprocessor)
    pack_values_kernel(const __grid_constant__ PackParams params) {
  static_assert(Shape::kLaneVectors * Shape::kCount == Shape::kChannels, "a lane has one vector of a tile's channels");
  using Walk = SequenceWalk<Shape::kTokens, kPackThreads>;
  __shared__ __align__(16) std::uint32_t tile_words[Shape::kChannels * Shape::kWords];
  __shared__ typename Walk::Shared walk_shared;
  __shared__ typename Rows<Shape>::Shared rows_shared;
  cudaGridDependencySynchronize();
  cudaTriggerProgrammaticLaunchCompletion();  // in this order: plan_tiles() beside it relies on that
  Walk walk(params.batch, params.heads * params.channel_tiles, params.team, walk_shared);
  Rows<Shape> rows(params, rows_shared);
  const int lane_channel = Shape::vector() * Shape::kCount;
  LaneQuads<Shape> lane;
  // Behind a barrier: what is on its way to be stored below.
  const auto load = [&](const PackTile& tile) {
    const auto source = rows.meet(tile.head * params.strides.head + tile.channel);
    if (tile.channel + lane_channel < params.channels) lane.load(source, lane_channel);
  };
  SequencePiece piece;
  if (!walk.next(piece)) return;
  rows.find(piece);
  load(PackTile(params, piece, Shape::kChannels));
  for (bool more = true; more;) {
    const PackTile tile(params, piece, Shape::kChannels);
    more = walk.next(piece);
    if (more) rows.find(piece);
#pragma unroll
    for (int g = 0; g < Shape::kGroupsPerWarp; ++g) {
      std::uint32_t words[Shape::kCount];
      lane.quads[g].move(words);
      store_words<Shape>(words, lane_channel, g, tile_words);
    }
    // The next rows are under way while these are written.
    if (more) {
      load(PackTile(params, piece, Shape::kChannels));
    } else {
      __syncthreads();
    }
    write_tile<Shape>(tile_words, params.output + tile.line * params.positions + tile.position, params.positions,
                      params.channels - tile.channel, tile.positions, true);
    __syncthreads();
  }
}

template <class Shape>
void launch(PackParams& params, int device, Stream stream) {
  params.channel_tiles = (params.channels + Shape::kChannels - 1) / Shape::kChannels;
  const WalkGrid grid(params.batch, Shape::kTokens, params.heads * params.channel_tiles,
                      kBlocksPerMultiprocessor * multiprocessor_count(device));
  params.team = grid.team;
  const auto kernel =
      params.batch.paged() ? pack_values_kernel<Shape, RowsInPages> : pack_values_kernel<Shape, RowsInOrder>;
  launch_blocks(kernel, Grid{grid.blocks, kPackThreads}, Start::kEarly, stream, params);
}

}  // namespace

void pack_values(const BatchView& batch, const TensorView& v, std::uint8_t* output, Stream stream) {
  const bool ragged = batch.ragged_keys();
  const int token = ragged ? 0 : 1;  // dim of v
  PackParams params{.batch = batch,
                    .input = static_cast<const std::uint8_t*>(v.data),
                    .strides = {ragged ? 0 : v.strides[0], v.strides[token], v.strides[token + 1]},
                    .page_size = Divisor(std::max(batch.page_size, 1)),
                    .output = output,
                    .positions = batch.aligned_positions(),
                    .heads = static_cast<int>(v.shape[token + 1]),
                    .channels = static_cast<int>(v.shape[token + 2]),
                    .channel_tiles = 0,
                    .team = 0};
  if (params.channels <= 64) {
    launch<PackTileShape<Access<E4M3, 16>, 512, 64>>(params, v.device.index, stream);
  } else {
    launch<PackTileShape<Access<E4M3, 16>, 256, 128>>(params, v.device.index, stream);
  }
}

}  // namespace fp8attn::cuda
