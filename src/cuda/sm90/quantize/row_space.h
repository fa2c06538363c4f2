// How the row kernels cut a [b, s, h, d] tensor into work: rows of d contiguous elements, each read by a power of two
// of lanes, walked in an order that the host chooses.
#pragma once

#include <cstdint>

#include "fp8attn/quantize.h"

namespace fp8attn::cuda {

inline constexpr int kRowThreads = 256;
inline constexpr int kRowBlocks = 2;  // of a multiprocessor at least: up to 128 registers a thread
// Per thread: 4 rows x 2 vectors of 16 bytes requested before the first is used, 32 KB a block.
inline constexpr int kRowsInFlight = 4;
inline constexpr int kVectorsInFlight = 2;

// The walk over the rows. Dims 0..2 are b, s and h, outermost of the walk first; strides count elements. Rows come in
// `groups` of `group_rows` neighbours in that order; a tile is `tile_rows` neighbours of one group. Dims fit in 32 bits
// (validated), offsets do not.
struct RowSpace {
  int extent[3];
  int step[3];  // rows_per_step as digits of the walk
  std::int64_t input[3];
  std::int64_t output[3];
  std::int64_t scale[3];
  std::int64_t groups;
  std::int64_t group_rows;
  std::int64_t tile_rows;  // a multiple of rows_per_step * kRowsInFlight
  std::int64_t tiles;
  int rows_per_step;  // rows that a block reads at once
  int lanes_log2;     // lanes of a row
  int vectors;        // of a row
};

// Which rows of the walk form a group.
enum class Grouping : std::uint8_t {
  kSharedScale,  // those that share a scale (kChannel: those of a batch entry and head)
  kNone,         // all: one group
};

// The walk of a problem whose rows are read `elements_per_vector` at a time. Tiles of more than kRowsInFlight rows a
// thread are taken only while at least `tiles_wanted` of them remain.
RowSpace make_row_space(const QuantizeProblem& problem, Grouping grouping, int elements_per_vector,
                        std::int64_t tiles_wanted);

// Strides of the scale over b, s and h. The channels of kChannel are contiguous.
struct ScaleStrides {
  std::int64_t batch = 0;
  std::int64_t token = 0;
  std::int64_t head = 0;
};
ScaleStrides scale_strides(const QuantizeProblem& problem);

// Whether every row of `view` begins at a multiple of `bytes`.
bool rows_aligned(const TensorView& view, std::int64_t bytes);

}  // namespace fp8attn::cuda
