#include "cuda/sm90/prefill/prepare.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <limits>

#include "api/workspace_layout.h"
#include "cuda/launch/check.h"
#include "cuda/launch/device.h"
#include "cuda/sm90/quantize/quantize.h"
#include "fp8attn/error.h"

namespace fp8attn::cuda {
namespace {

constexpr std::int64_t kMostCounted = std::numeric_limits<int>::max();

// A ragged tensor as a batch of one entry.
TensorView as_one_entry(TensorView view) {
  if (view.rank == 4) return view;
  view.rank = 4;
  view.shape = {1, view.shape[0], view.shape[1], view.shape[2]};
  view.strides = {0, view.strides[0], view.strides[1], view.strides[2]};
  return view;
}

MutableTensorView in_workspace(Carver& carver, DType dtype, std::initializer_list<std::int64_t> dims, Device device) {
  MutableTensorView view = MutableTensorView::contiguous(nullptr, dtype, dims, device);
  view.data = carver.take(view.count() * size_of(dtype));
  return view;
}

// One scale a token and head.
void quantise_query(Preparation& preparation, Carver& carver) {
  TensorView& q = preparation.problem.q;
  const TensorView input = as_one_entry(q);
  const auto& [b, s, h, d, unused] = input.shape;
  const MutableTensorView codes = in_workspace(carver, DType::kE4M3, {b, s, h, d}, q.device);
  const MutableTensorView scales = in_workspace(carver, DType::kF32, {b, s, h}, q.device);
  preparation.query = {.input = input, .output = codes, .scale = scales, .granularity = ScaleGranularity::kTokenHead};
  // Of the caller's rank.
  const bool ragged = q.rank == 3;
  q = ragged ? TensorView::contiguous(codes.data, DType::kE4M3, {s, h, d}, q.device) : TensorView(codes);
  preparation.problem.q_scale =
      ragged ? TensorView::contiguous(scales.data, DType::kF32, {s, h}, q.device) : TensorView(scales);
}

void list_tiles(Preparation& preparation, const PrefillShape& shape, Carver& carver) {
  const PrefillProblem& problem = preparation.problem;
  const PrefillBatch batch = batch_of(problem);
  const std::int64_t tile_rows = shape.tile_rows();
  // Every sequence ends one tile at most before it is full.
  const std::int64_t capacity = batch.queries == QueryLayout::kRagged
                                    ? batch.query_rows / tile_rows + std::min(batch.b, batch.query_rows)
                                    : batch.b * ((batch.query_capacity + tile_rows - 1) / tile_rows);
  const std::int64_t tiles = capacity * batch.h_q;
  if (tiles > kMostCounted) {
    throw Error("prefill", "q.shape", fmt::format("up to {} tiles of {} queries", tiles, tile_rows),
                fmt::format("at most {}", kMostCounted));
  }
  preparation.tiles = {.batch = preparation.prepared.batch,
                       .causal = problem.causal,
                       .window_left = clamped_window(problem.window_left),
                       .tile_rows = Divisor(shape.tile_rows()),
                       .step_keys = Divisor(shape.step_keys())};
  preparation.prepared.tiles = {.entries = static_cast<TileEntry*>(carver.take(capacity * sizeof(TileEntry))),
                                .count = static_cast<int*>(carver.take(sizeof(int))),
                                .capacity = static_cast<int>(capacity),
                                .heads = Divisor(static_cast<int>(batch.h_q))};
}

// Keys, and values of 16 bits, out of pages that the kernel does not read.
void gather(Preparation& preparation, std::int64_t positions, Carver& carver) {
  PrefillProblem& problem = preparation.problem;
  const auto gathered = [&](TensorView& view) {
    const TensorView pages = view;
    const MutableTensorView rows =
        in_workspace(carver, pages.dtype, {1, positions, pages.shape[2], pages.shape[3]}, pages.device);
    view = rows;
    return GatheredRows{pages, static_cast<std::uint8_t*>(rows.data)};
  };
  preparation.keys = gathered(problem.k);
  preparation.prepared.keys_aligned = true;
  if (problem.v.dtype == DType::kE4M3) return;
  preparation.values = gathered(problem.v);
  preparation.prepared.values_aligned = true;
}

// The tensor cores read 8-bit values with contiguous tokens only, so a row-major V is packed first. A transposition
// within the kernel would spare 2 bytes of traffic an element and cost 12 to 24% of the kernel
// (docs/kernels/prefill.md).
void pack(Preparation& preparation, std::int64_t positions, Carver& carver) {
  PrefillProblem& problem = preparation.problem;
  const TensorView v = problem.v;
  const std::int64_t heads = v.shape[v.rank - 2], channels = v.shape[v.rank - 1];
  const bool uneven = is_uneven(problem);
  preparation.packed = v;
  preparation.prepared.values_aligned = uneven;
  problem.v =
      uneven ? in_workspace(carver, DType::kE4M3, {1, heads, channels, positions}, v.device)
             : in_workspace(carver, DType::kE4M3, {v.shape[0], heads, channels, packed_length(v.shape[1])}, v.device);
  problem.v_layout = VLayout::kPacked;
}

// What becomes of keys and values. Where there is none, nothing is read.
void place_keys(Preparation& preparation, Carver& carver) {
  const PrefillProblem& problem = preparation.problem;
  const BatchView& batch = preparation.prepared.batch;
  if (batch.key_capacity == 0 || problem.k.count() == 0) return;
  const bool gathers = batch.paged() && !BatchView::loads_pages(batch.page_size);
  const bool packs = problem.v.dtype == DType::kE4M3 && problem.v_layout == VLayout::kRowMajor;
  const std::int64_t positions = batch.aligned_positions();
  if ((gathers || (packs && batch.uneven())) && positions > kMostCounted) {
    throw Error("prefill", batch.paged() ? "block_table.shape" : "k.shape",
                fmt::format("room for {} tokens of all sequences", positions), fmt::format("at most {}", kMostCounted));
  }
  if (gathers) gather(preparation, positions, carver);
  if (packs) pack(preparation, positions, carver);
}

}  // namespace

Preparation prepare(const PrefillProblem& problem, const PrefillShape& shape, void* workspace) {
  Carver carver(workspace);
  Preparation preparation{.problem = problem, .prepared = {.batch = batch_view(problem)}};
  if (problem.out.count() == 0) return preparation;
  if (quantizes_query(problem)) quantise_query(preparation, carver);
  if (is_uneven(problem)) list_tiles(preparation, shape, carver);
  place_keys(preparation, carver);
  preparation.bytes = carver.used();
  return preparation;
}

void run(const Preparation& preparation, Stream stream) {
  const DeviceGuard guard(preparation.problem.q.device.index, "prefill");
  const BatchView& batch = preparation.prepared.batch;
  const TensorView& v = preparation.problem.v;
  if (preparation.query) cuda::quantize(*preparation.query, {}, stream);
  if (preparation.keys) gather_pages(batch, *preparation.keys, preparation.values.value_or(GatheredRows{}), stream);
  if (preparation.packed) {
    auto* packed = static_cast<std::uint8_t*>(const_cast<void*>(v.data));
    if (batch.uneven()) {
      pack_values(batch, *preparation.packed, packed, stream);
    } else {
      cuda::pack_v(*preparation.packed, {packed, v.dtype, v.device, v.rank, v.shape, v.strides}, stream);
    }
  }
  if (!preparation.tiles) return;
  UnevenTiles tiles = *preparation.tiles;
  const TileList& list = preparation.prepared.tiles;
  tiles.group_log2 = UnevenTiles::group_log2_for(std::int64_t{list.capacity} * list.heads.divisor(),
                                                 multiprocessor_count(preparation.problem.q.device.index));
  plan_tiles(tiles, list, stream, preparation.keys || preparation.packed);
}

}  // namespace fp8attn::cuda
