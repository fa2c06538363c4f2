// The device side of RowSpace: which rows a tile has, where they lie, and the loads of one batch of them.
#pragma once

#include <cstdint>

#include "cuda/sm90/quantize/elements.h"
#include "cuda/sm90/quantize/row_space.h"

namespace fp8attn::cuda {

// Rows [begin, end) of the walk, all of one group. Tiles of different groups alternate, so that blocks that run at the
// same time read neighbouring heads of the same tokens.
struct RowTile {
  std::int64_t group, begin, end;

  __device__ RowTile(const RowSpace& space, std::int64_t tile) {
    group = tile % space.groups;
    begin = group * space.group_rows + tile / space.groups * space.tile_rows;
    end = min(begin + space.tile_rows, (group + 1) * space.group_rows);
  }
};

// The position of one row in the walk. Moving on costs three additions with carry instead of divisions.
class RowCursor {
 public:
  __device__ RowCursor(const RowSpace& space, std::int64_t row) {
    const std::int64_t outer = row / space.extent[2];
    digit_[2] = static_cast<int>(row % space.extent[2]);
    digit_[1] = static_cast<int>(outer % space.extent[1]);
    digit_[0] = static_cast<int>(outer / space.extent[1]);
  }

  // rows_per_step rows on. Past the last row the position means nothing.
  __device__ void advance(const RowSpace& space) {
    digit_[2] += space.step[2];
    const int carry2 = digit_[2] >= space.extent[2];
    digit_[2] -= carry2 ? space.extent[2] : 0;
    digit_[1] += space.step[1] + carry2;
    const int carry1 = digit_[1] >= space.extent[1];
    digit_[1] -= carry1 ? space.extent[1] : 0;
    digit_[0] += space.step[0] + carry1;
  }

  __device__ std::int64_t offset(const std::int64_t (&strides)[3]) const {
    return digit_[0] * strides[0] + digit_[1] * strides[1] + digit_[2] * strides[2];
  }

 private:
  int digit_[3];
};

// Offsets of the next kRowsInFlight rows of a thread in the input, and how many of them lie before `end`. Moves `row`
// and `cursor` past them.
struct NextRows {
  std::int64_t offset[kRowsInFlight];
  int count = 0;

  __device__ NextRows(const RowSpace& space, RowCursor& cursor, std::int64_t& row, std::int64_t end) {
#pragma unroll
    for (int r = 0; r < kRowsInFlight; ++r) {
      offset[r] = cursor.offset(space.input);
      count += row < end;
      row += space.rows_per_step;
      cursor.advance(space);
    }
  }
};

// The lanes of a row, and their rows in a step, from the thread index.
__device__ inline int lane_of_row(const RowSpace& space) { return threadIdx.x & ((1 << space.lanes_log2) - 1); }
__device__ inline int row_of_step(const RowSpace& space) { return threadIdx.x >> space.lanes_log2; }

// Vectors that the lanes of a row read at once.
__device__ inline int vectors_at_once(const RowSpace& space) { return kVectorsInFlight << space.lanes_log2; }

// kVectorsInFlight vectors of each of kRowsInFlight rows, all requested before any is used. Row r begins at offset[r];
// rows from `rows` on and vectors past the end of a row are zeros.
template <class Access>
struct RowBatch {
  static constexpr int kRowElements = kVectorsInFlight * Access::kCount;
  static constexpr int kElements = kRowsInFlight * kRowElements;

  typename Access::Values values[kRowsInFlight][kVectorsInFlight];

  // Element i of all, row after row.
  __device__ float real(int i) const {
    return Access::real(values[i / kRowElements][i % kRowElements / Access::kCount], i % Access::kCount);
  }

  // The whole batch and the ragged one are two branches: where they meet every value has to be in its register, which
  // keeps the compiler from moving a load down to its use.
  __device__ RowBatch(const typename Access::Storage* __restrict__ input, const std::int64_t (&offset)[kRowsInFlight],
                      int rows, int first_vector, const RowSpace& space) {
    const int lanes = 1 << space.lanes_log2;
    const int vectors = (space.vectors - first_vector + lanes - 1) >> space.lanes_log2;
    if (rows == kRowsInFlight && vectors >= kVectorsInFlight) {
      load(
          input, offset, [](int, int) { return true; }, first_vector, lanes);
    } else {
      load(
          input, offset, [&](int r, int v) { return r < rows && v < vectors; }, first_vector, lanes);
    }
  }

 private:
  template <class IsThere>
  __device__ void load(const typename Access::Storage* __restrict__ input, const std::int64_t (&offset)[kRowsInFlight],
                       IsThere is_there, int first_vector, int lanes) {
#pragma unroll
    for (int r = 0; r < kRowsInFlight; ++r) {
#pragma unroll
      for (int v = 0; v < kVectorsInFlight; ++v) {
        const std::int64_t element = static_cast<std::int64_t>(first_vector + v * lanes) * Access::kCount;
        if (is_there(r, v)) values[r][v].load(input + offset[r] + element);
      }
    }
  }
};

}  // namespace fp8attn::cuda
