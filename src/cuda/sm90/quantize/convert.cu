// Second pass into the row-major layout, and the single pass of scales per token and head.
#include <cstdint>
#include <limits>

#include "cuda/sm90/quantize/kernels.h"
#include "cuda/sm90/quantize/launch.h"
#include "cuda/sm90/quantize/row_walk.cuh"
#include "cuda/sm90/quantize/scale_policy.cuh"

namespace fp8attn::cuda {
namespace {

constexpr int kConvertBlocks = 3;  // of a multiprocessor at least

// As many short tiles as there are: each block has one batch of rows.
constexpr std::int64_t kShortTiles = std::numeric_limits<std::int64_t>::max();

// The codes of one vector, whose elements share one inverse or have one each.
template <class Access, int kInverses>
__device__ Vector<1, Access::kCount> codes_of(const typename Access::Values& source,
                                              const float (&inverse)[kInverses]) {
  static_assert(kInverses == 1 || kInverses == Access::kCount);
  const auto real = [&](int i) {
    return i < Access::kCount ? scaled(Access::real(source, i), inverse[kInverses == 1 ? 0 : i]) : 0.0f;
  };
  Vector<1, Access::kCount> codes;
#pragma unroll
  for (int i = 0; i < Access::kCount; i += 2) {
    codes.registers[i / 4] |= e4m3_pair(real(i), real(i + 1)) << (i % 4 * 8);
  }
  return codes;
}

// Writes the codes of the rows of a batch; the rows begin at output[offset[r]] and have `inverse[r]` in common, or,
// with a scale per column, the inverses of channel_scale.
template <class Access, class Scale>
__device__ void store_batch(const RowBatch<Access>& batch, std::uint8_t* output,
                            const std::int64_t (&offset)[kRowsInFlight], int rows, int first_vector,
                            const RowSpace& space, const float (&row_inverse)[kRowsInFlight],
                            const float* channel_scale) {
#pragma unroll
  for (int v = 0; v < kVectorsInFlight; ++v) {
    const int vector = first_vector + (v << space.lanes_log2);
    if (vector >= space.vectors) break;
    const std::int64_t channel = static_cast<std::int64_t>(vector) * Access::kCount;
    float inverse[Scale::kPerColumn ? Access::kCount : 1];
    if constexpr (Scale::kPerColumn) load_inverses(channel_scale + channel, inverse);
#pragma unroll
    for (int r = 0; r < kRowsInFlight; ++r) {
      if (r >= rows) break;
      if constexpr (!Scale::kPerColumn) inverse[0] = row_inverse[r];
      codes_of<Access>(batch.values[r][v], inverse).store(output + offset[r] + channel);
    }
  }
}

// Tiles from the last to the first: the end of the input is what the amax pass has left in the L2 cache.
template <class Access, class Scale>
__global__ void __launch_bounds__(kRowThreads, kConvertBlocks)
    convert_rows(const typename Access::Storage* __restrict__ input, std::uint8_t* __restrict__ output,
                 const float* __restrict__ scale, const __grid_constant__ RowSpace space) {
  for (std::int64_t index = blockIdx.x; index < space.tiles; index += gridDim.x) {
    const RowTile tile(space, space.tiles - 1 - index);
    std::int64_t row = tile.begin + row_of_step(space);
    RowCursor output_cursor(space, row);
    RowCursor cursor = output_cursor;
    const NextRows rows(space, cursor, row, tile.end);
    std::int64_t offset[kRowsInFlight];
    float inverse[kRowsInFlight];
#pragma unroll
    for (int r = 0; r < kRowsInFlight; ++r) {
      offset[r] = output_cursor.offset(space.output);
      inverse[r] = 1.0f;
      if (!Scale::kPerColumn && r < rows.count) inverse[r] = scale[output_cursor.offset(space.scale)];
      output_cursor.advance(space);
    }
    const float* channel_scale = scale + tile.group * space.vectors * Access::kCount;
    // The first batch is requested before the scales are needed.
    int vector = lane_of_row(space);
    RowBatch<Access> batch(input, rows.offset, rows.count, vector, space);
#pragma unroll
    for (float& value : inverse) value = inverse_of(value);
    store_batch<Access, Scale>(batch, output, offset, rows.count, vector, space, inverse, channel_scale);
    for (vector += vectors_at_once(space); vector < space.vectors; vector += vectors_at_once(space)) {
      batch = RowBatch<Access>(input, rows.offset, rows.count, vector, space);
      store_batch<Access, Scale>(batch, output, offset, rows.count, vector, space, inverse, channel_scale);
    }
  }
}

// The amax of one row in each of its lanes.
__device__ std::uint32_t row_amax(std::uint32_t amax, const RowSpace& space) {
  for (int distance = (1 << space.lanes_log2) / 2; distance > 0; distance /= 2) {
    amax = max(amax, __shfl_xor_sync(0xFFFFFFFFu, amax, distance));
  }
  return amax;
}

// An element that is not finite is rare: it is looked for in the maximum, which ignores NaN, and only then in every
// element.
template <class Access>
__device__ void raise_amax(const RowBatch<Access>& batch, std::uint32_t (&amax)[kRowsInFlight]) {
  constexpr int kCount = RowBatch<Access>::kRowElements;
#pragma unroll
  for (int r = 0; r < kRowsInFlight; ++r) {
    float highest = 0.0f;
#pragma unroll
    for (int i = 0; i < kCount; ++i) highest = fmaxf(highest, fabsf(batch.real(r * kCount + i)));
    std::uint32_t bits = __float_as_uint(highest);
    if (bits >= 0x7F800000u) {
      bits = 0;
#pragma unroll
      for (int i = 0; i < kCount; ++i) bits = max(bits, finite_magnitude(batch.real(r * kCount + i)));
    }
    amax[r] = max(amax[r], bits);
  }
}

// The rows are converted from the last vectors to the first: those of the last load are still in registers, which for
// rows of up to 512 16-bit channels is all of them.
template <class Access>
__global__ void __launch_bounds__(kRowThreads, kConvertBlocks)
    convert_tokens(const typename Access::Storage* __restrict__ input, std::uint8_t* __restrict__ output,
                   float* __restrict__ scale, const __grid_constant__ RowSpace space) {
  const int at_once = vectors_at_once(space);
  const int last_base = (space.vectors - 1) / at_once * at_once;
  const int lane = lane_of_row(space);
  for (std::int64_t index = blockIdx.x; index < space.tiles; index += gridDim.x) {
    const RowTile tile(space, index);
    std::int64_t row = tile.begin + row_of_step(space);
    RowCursor output_cursor(space, row);
    RowCursor cursor = output_cursor;
    const NextRows rows(space, cursor, row, tile.end);
    std::uint32_t amax[kRowsInFlight] = {};
    for (int base = 0; base < last_base; base += at_once) {
      raise_amax(RowBatch<Access>(input, rows.offset, rows.count, base + lane, space), amax);
    }
    RowBatch<Access> batch(input, rows.offset, rows.count, last_base + lane, space);
    raise_amax(batch, amax);

    std::int64_t offset[kRowsInFlight];
    float inverse[kRowsInFlight];
#pragma unroll
    for (int r = 0; r < kRowsInFlight; ++r) {
      const float row_scale = scale_from_amax(row_amax(amax[r], space));
      inverse[r] = inverse_of(row_scale);
      offset[r] = output_cursor.offset(space.output);
      if (lane == 0 && r < rows.count) scale[output_cursor.offset(space.scale)] = row_scale;
      output_cursor.advance(space);
    }
    store_batch<Access, ScalePerRow>(batch, output, offset, rows.count, last_base + lane, space, inverse, nullptr);
    for (int base = last_base - at_once; base >= 0; base -= at_once) {
      batch = RowBatch<Access>(input, rows.offset, rows.count, base + lane, space);
      store_batch<Access, ScalePerRow>(batch, output, offset, rows.count, base + lane, space, inverse, nullptr);
    }
  }
}

}  // namespace

void launch_convert(const QuantizeProblem& problem, Stream stream) {
  const bool per_column = problem.granularity == ScaleGranularity::kChannel;
  with_access(problem.input.dtype, use_vectors(problem.input, &problem.output), [&]<class Access>(Access) {
    // Per column the rows of a tile share their channels' scales.
    const RowSpace space =
        make_row_space(problem, per_column ? Grouping::kSharedScale : Grouping::kNone, Access::kCount, kShortTiles);
    const auto kernel = per_column ? convert_rows<Access, ScalePerColumn> : convert_rows<Access, ScalePerRow>;
    launch_tiles(kernel, space.tiles, kRowThreads, stream, input_data<typename Access::Storage>(problem.input),
                 static_cast<std::uint8_t*>(problem.output.data), static_cast<const float*>(problem.scale.data), space);
  });
}

void launch_convert_tokens(const QuantizeProblem& problem, Stream stream) {
  with_access(problem.input.dtype, use_vectors(problem.input, &problem.output), [&]<class Access>(Access) {
    const RowSpace space = make_row_space(problem, Grouping::kNone, Access::kCount, kShortTiles);
    launch_tiles(convert_tokens<Access>, space.tiles, kRowThreads, stream,
                 input_data<typename Access::Storage>(problem.input), static_cast<std::uint8_t*>(problem.output.data),
                 static_cast<float*>(problem.scale.data), space);
  });
}

}  // namespace fp8attn::cuda
