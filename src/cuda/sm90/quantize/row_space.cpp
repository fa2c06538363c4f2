#include "cuda/sm90/quantize/row_space.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstdlib>

namespace fp8attn::cuda {
namespace {

constexpr int kBatch = 0, kToken = 1, kHead = 2;
constexpr int kMaxStepsPerRow = 8;  // tiles of at most 8 * kRowsInFlight rows a thread

std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

// The dims in the order of the walk: first those that tell the groups apart, in the order of the scale tensor.
struct WalkOrder {
  std::array<int, 3> dims;
  int group_dims;
};

WalkOrder grouped_order(ScaleGranularity granularity) {
  switch (granularity) {
    case ScaleGranularity::kTensor: return {{kBatch, kToken, kHead}, 0};
    case ScaleGranularity::kHead: return {{kHead, kBatch, kToken}, 1};
    case ScaleGranularity::kBatchHead:
    case ScaleGranularity::kChannel: return {{kBatch, kHead, kToken}, 2};
    case ScaleGranularity::kTokenHead: return {{kBatch, kToken, kHead}, 3};
  }
  return {{kBatch, kToken, kHead}, 0};
}

WalkOrder walk_order(const QuantizeProblem& problem, Grouping grouping) {
  WalkOrder order{{kBatch, kToken, kHead}, 0};
  if (grouping == Grouping::kSharedScale) order = grouped_order(problem.granularity);
  // Within a group: in the order of the memory, so that neighbouring lanes read neighbouring rows.
  std::stable_sort(order.dims.begin() + order.group_dims, order.dims.end(), [&](int left, int right) {
    return std::abs(problem.input.strides[left]) > std::abs(problem.input.strides[right]);
  });
  return order;
}

void set_tiles(RowSpace& space, std::int64_t tiles_wanted) {
  const std::int64_t unit = static_cast<std::int64_t>(space.rows_per_step) * kRowsInFlight;
  for (int steps = kMaxStepsPerRow; steps >= 1; steps /= 2) {
    space.tile_rows = unit * steps;
    space.tiles = space.groups * ceil_div(space.group_rows, space.tile_rows);
    if (space.tiles >= tiles_wanted) return;
  }
}

}  // namespace

ScaleStrides scale_strides(const QuantizeProblem& problem) {
  const std::int64_t tokens = problem.input.shape[1], heads = problem.input.shape[2], channels = problem.input.shape[3];
  switch (problem.granularity) {
    case ScaleGranularity::kTensor: return {};
    case ScaleGranularity::kHead: return {.head = 1};
    case ScaleGranularity::kBatchHead: return {.batch = heads, .head = 1};
    case ScaleGranularity::kTokenHead: return {.batch = tokens * heads, .token = heads, .head = 1};
    case ScaleGranularity::kChannel: return {.batch = heads * channels, .head = channels};
  }
  return {};
}

RowSpace make_row_space(const QuantizeProblem& problem, Grouping grouping, int elements_per_vector,
                        std::int64_t tiles_wanted) {
  const WalkOrder order = walk_order(problem, grouping);
  const ScaleStrides scale = scale_strides(problem);
  const std::array<std::int64_t, 3> scale_of_dim{scale.batch, scale.token, scale.head};
  RowSpace space{};
  space.groups = 1;
  space.group_rows = 1;
  for (int i = 0; i < 3; ++i) {
    const int dim = order.dims[i];
    space.extent[i] = static_cast<int>(problem.input.shape[dim]);
    space.input[i] = problem.input.strides[dim];
    space.output[i] = problem.output.strides[dim];
    space.scale[i] = scale_of_dim[dim];
    (i < order.group_dims ? space.groups : space.group_rows) *= problem.input.shape[dim];
  }
  space.vectors = static_cast<int>(problem.input.shape[3] / elements_per_vector);
  const auto wanted_lanes = static_cast<unsigned>(ceil_div(space.vectors, kVectorsInFlight));
  space.lanes_log2 = std::countr_zero(std::min(32u, std::bit_ceil(wanted_lanes)));
  space.rows_per_step = kRowThreads >> space.lanes_log2;
  space.step[2] = space.rows_per_step % space.extent[2];
  space.step[1] = space.rows_per_step / space.extent[2] % space.extent[1];
  space.step[0] = space.rows_per_step / space.extent[2] / space.extent[1];
  set_tiles(space, tiles_wanted);
  return space;
}

bool rows_aligned(const TensorView& view, std::int64_t bytes) {
  if (reinterpret_cast<std::uintptr_t>(view.data) % bytes != 0) return false;
  for (int i = 0; i + 1 < view.rank; ++i) {
    if (view.shape[i] > 1 && view.strides[i] * size_of(view.dtype) % bytes != 0) return false;
  }
  return true;
}

}  // namespace fp8attn::cuda
