// First pass: the largest finite magnitude of the elements that share a scale, as the bits of a float.
#include "cuda/launch/device.h"
#include "cuda/sm90/quantize/kernels.h"
#include "cuda/sm90/quantize/launch.h"
#include "cuda/sm90/quantize/row_walk.cuh"

namespace fp8attn::cuda {
namespace {

// One amax a group: a warp reduction, a maximum in shared memory, one atomic maximum in global memory a tile.
template <class Access>
__global__ void __launch_bounds__(kRowThreads, kRowBlocks)
    amax_of_groups(const typename Access::Storage* __restrict__ input, std::uint32_t* amax,
                   const __grid_constant__ RowSpace space) {
  __shared__ std::uint32_t tile_amax;
  for (std::int64_t index = blockIdx.x; index < space.tiles; index += gridDim.x) {
    const RowTile tile(space, index);
    if (threadIdx.x == 0) tile_amax = 0;
    __syncthreads();
    std::uint32_t largest = 0;
    std::int64_t row = tile.begin + row_of_step(space);
    RowCursor cursor(space, row);
    while (row < tile.end) {
      const NextRows rows(space, cursor, row, tile.end);
      for (int vector = lane_of_row(space); vector < space.vectors; vector += vectors_at_once(space)) {
        const RowBatch<Access> batch(input, rows.offset, rows.count, vector, space);
#pragma unroll
        for (int i = 0; i < RowBatch<Access>::kElements; ++i) largest = max(largest, finite_magnitude(batch.real(i)));
      }
    }
    largest = __reduce_max_sync(0xFFFFFFFFu, largest);
    if (threadIdx.x % 32 == 0) atomicMax(&tile_amax, largest);
    __syncthreads();
    if (threadIdx.x == 0) atomicMax(amax + tile.group, tile_amax);
  }
}

// One amax a channel of a group. Lane l of a row holds channels (v * lanes + l) * kCount + c; in shared memory they lie
// as [v][c][l], so that the lanes of a warp meet no bank conflict.
template <class Access>
__global__ void __launch_bounds__(kRowThreads, kRowBlocks)
    amax_of_channels(const typename Access::Storage* __restrict__ input, std::uint32_t* amax,
                     const __grid_constant__ RowSpace space) {
  constexpr int kCount = Access::kCount;
  constexpr int kColumns = kVectorsInFlight * kCount * 32;
  __shared__ std::uint32_t column_amax[kColumns];
  const int lanes = 1 << space.lanes_log2;
  for (std::int64_t index = blockIdx.x; index < space.tiles; index += gridDim.x) {
    const RowTile tile(space, index);
    for (int base = 0; base < space.vectors; base += vectors_at_once(space)) {
      for (int i = threadIdx.x; i < kColumns; i += kRowThreads) column_amax[i] = 0;
      __syncthreads();
      std::uint32_t largest[kVectorsInFlight][kCount] = {};
      std::int64_t row = tile.begin + row_of_step(space);
      RowCursor cursor(space, row);
      while (row < tile.end) {
        const NextRows rows(space, cursor, row, tile.end);
        const RowBatch<Access> batch(input, rows.offset, rows.count, base + lane_of_row(space), space);
#pragma unroll
        for (int i = 0; i < RowBatch<Access>::kElements; ++i) {
          std::uint32_t& column = largest[i / kCount % kVectorsInFlight][i % kCount];
          column = max(column, finite_magnitude(batch.real(i)));
        }
      }
#pragma unroll
      for (int i = 0; i < kVectorsInFlight * kCount; ++i) {
        atomicMax(&column_amax[i * 32 + lane_of_row(space)], largest[i / kCount][i % kCount]);
      }
      __syncthreads();
      const std::int64_t first_channel = tile.group * space.vectors * kCount + static_cast<std::int64_t>(base) * kCount;
      const int channels = min(vectors_at_once(space), space.vectors - base) * kCount;
      for (int i = threadIdx.x; i < channels; i += kRowThreads) {
        const int vector = i / kCount;
        const int slot = (vector / lanes * kCount + i % kCount) * 32 + vector % lanes;
        atomicMax(amax + first_channel + i, column_amax[slot]);
      }
      __syncthreads();
    }
  }
}

__global__ void __launch_bounds__(kRowThreads) finish_scales(float* scale, std::int64_t count) {
  const std::int64_t stride = static_cast<std::int64_t>(gridDim.x) * kRowThreads;
  for (std::int64_t i = blockIdx.x * static_cast<std::int64_t>(kRowThreads) + threadIdx.x; i < count; i += stride) {
    scale[i] = scale_from_amax(__float_as_uint(scale[i]));
  }
}

}  // namespace

void launch_amax(const QuantizeProblem& problem, Stream stream) {
  // Longer tiles mean fewer atomics; 4 blocks of 32 KB in flight keep a multiprocessor's share of the bandwidth.
  const std::int64_t tiles_wanted = 4 * multiprocessor_count(problem.input.device.index);
  auto* amax = static_cast<std::uint32_t*>(problem.scale.data);
  with_access(problem.input.dtype, use_vectors(problem.input, nullptr), [&]<class Access>(Access) {
    const RowSpace space = make_row_space(problem, Grouping::kSharedScale, Access::kCount, tiles_wanted);
    const auto* input = input_data<typename Access::Storage>(problem.input);
    const auto kernel =
        problem.granularity == ScaleGranularity::kChannel ? amax_of_channels<Access> : amax_of_groups<Access>;
    launch_tiles(kernel, space.tiles, kRowThreads, stream, input, amax, space);
  });
}

void launch_finish_scales(const MutableTensorView& scale, Stream stream) {
  const std::int64_t count = scale.count();
  launch_tiles(finish_scales, (count + kRowThreads - 1) / kRowThreads, kRowThreads, stream,
               static_cast<float*>(scale.data), count);
}

}  // namespace fp8attn::cuda
