// Host side of the prefill kernel: tensor maps, arguments, grid.
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "cuda/launch/check.h"
#include "cuda/launch/device.h"
#include "cuda/launch/tensor_map.h"
#include "cuda/sm90/prefill/kernel.h"
#include "cuda/sm90/prefill/prepared.h"
#include "fp8attn/prefill.h"

namespace fp8attn::cuda {

// The strides of a scale of q or k ([], [1], [h], [b, h], [b, s, h]) or of v ([], [1], [h], [b, h], [b, h, d]), and of
// what is added to out or lse (three dims, the head in the middle).
inline ScaleView scale_view(const std::optional<TensorView>& scale, bool inner_is_last) {
  if (!scale) return {};
  ScaleView view{.data = static_cast<const float*>(scale->data)};
  const auto stride = [&](int dim) { return scale->shape[dim] == 1 ? 0 : scale->strides[dim]; };
  switch (scale->rank) {
    case 1: view.head_stride = stride(0); break;
    case 2:
      view.batch_stride = stride(0);
      view.head_stride = stride(1);
      break;
    case 3:
      view.batch_stride = stride(0);
      view.head_stride = stride(inner_is_last ? 1 : 2);
      view.inner_stride = stride(inner_is_last ? 2 : 1);
      break;
    default: break;
  }
  return view;
}

// The strides of a q_scale: a ragged query has one a token in rows of the tensor, [total_q, h].
inline ScaleView query_scale_view(const PrefillProblem& problem) {
  const auto& scale = problem.q_scale;
  if (!scale || scale->rank != 2 ||
      query_scale_granularity(batch_of(problem), *scale) != ScaleGranularity::kTokenHead) {
    return scale_view(scale, false);
  }
  const auto stride = [&](int dim) { return scale->shape[dim] == 1 ? 0 : scale->strides[dim]; };
  return {.data = static_cast<const float*>(scale->data), .head_stride = stride(1), .inner_stride = stride(0)};
}

// The strides of an lse_bias, [b, h, s] or [h, total_q].
inline ScaleView lse_view(const std::optional<TensorView>& bias) {
  if (!bias || bias->rank != 2) return scale_view(bias, true);
  const auto stride = [&](int dim) { return bias->shape[dim] == 1 ? 0 : bias->strides[dim]; };
  return {.data = static_cast<const float*>(bias->data), .head_stride = stride(0), .inner_stride = stride(1)};
}

// A ragged tensor as the one entry of a batch.
inline TensorView with_entries(const TensorView& view) {
  if (view.rank == 4) return view;
  TensorView result = view;
  result.rank = 4;
  result.shape = {1, view.shape[0], view.shape[1], view.shape[2]};
  result.strides = {0, view.strides[0], view.strides[1], view.strides[2]};
  return result;
}

// k or v for a tensor map. A map cannot be empty: where there are no tokens, it is of some channels of the query, of
// which nothing is read, for then all sequences are loaded from before the tensor.
inline TensorView loadable(const TensorView& view, const PrefillProblem& problem) {
  if (view.count() > 0) return with_entries(view);
  TensorView some = problem.q;
  some.dtype = view.dtype;
  some.rank = 4;
  some.shape = {1, 1, 1, 16 / size_of(view.dtype)};
  return some;
}

inline bool is_16bit(DType dtype) { return dtype == DType::kBF16 || dtype == DType::kFP16; }

template <class Traits>
PrefillMaps tensor_maps(const PrefillProblem& problem, const PrefillParams& params) {
  constexpr std::uint32_t kQueryChunk = Traits::QueryTile::kChunkBytes / Traits::Element::kBytes;
  constexpr std::uint32_t kKeyChunk = Traits::KeyTile::kChunkBytes / Traits::Element::kBytes;
  constexpr std::uint32_t kValueChunk = Traits::ValueTile::kChunkBytes / Traits::Element::kBytes;
  PrefillMaps maps;
  maps.query = make_tensor_map(with_entries(problem.q), {kQueryChunk, 1, Traits::kWarpgroupM, 1}, "q");
  maps.out = maps.query;  // not used where output is not 16 bits
  if (is_16bit(problem.out.dtype)) {
    maps.out = make_tensor_map(with_entries(problem.out), {Traits::OutTile::kChunkBytes / 2, 1, Traits::kWarpgroupM, 1},
                               "out");
  }
  const auto rows = static_cast<std::uint32_t>(params.box_blocks * Traits::kBlockN);
  maps.key = make_tensor_map(loadable(problem.k, problem), {kKeyChunk, 1, rows, 1}, "k");
  if constexpr (Traits::kIsE4M3) {
    maps.value = make_tensor_map(loadable(problem.v, problem), {kValueChunk, Traits::kHeadDimV, 1, 1}, "v");
  } else {
    maps.value = make_tensor_map(loadable(problem.v, problem), {kValueChunk, 1, rows, 1}, "v");
  }
  return maps;
}

inline Placement placement_of(const BatchView& batch, bool aligned) {
  if (aligned) return Placement::kAligned;
  if (batch.paged()) return Placement::kPages;
  return batch.ragged_keys() ? Placement::kRows : Placement::kEntries;
}

inline void set_batch(PrefillParams& params, const PrefillProblem& problem, const PreparedBatch& prepared) {
  const BatchView& batch = prepared.batch;
  params.batch = batch;
  params.causal = problem.causal;
  params.window_left = clamped_window(problem.window_left);
  params.keys = placement_of(batch, prepared.keys_aligned);
  params.values = placement_of(batch, prepared.values_aligned);
  params.page_size = Divisor(std::max(batch.page_size, 1));
  params.clears_values = batch.ragged_keys() || batch.kv_lengths.data != nullptr;
}

// Scales, lse and out.
inline void set_tensors(PrefillParams& params, const PrefillProblem& problem) {
  const TensorView &q = problem.q, &out = problem.out;
  const double softmax_scale =
      problem.softmax_scale ? double{*problem.softmax_scale} : 1.0 / std::sqrt(double(q.shape[q.rank - 1]));
  constexpr double kLog2E = 1.4426950408889634, kLargest = std::numeric_limits<float>::max();
  params.softmax_scale_log2 = static_cast<float>(std::clamp(softmax_scale * kLog2E, -kLargest, kLargest));
  params.softcap_log2 = static_cast<float>(std::min(problem.softcap * kLog2E, kLargest));
  params.softcap_factor =
      problem.softcap == 0.0f ? 0.0f : static_cast<float>(std::min(1.0 / params.softcap_log2, kLargest));
  params.changes_all = problem.softcap != 0.0f || params.window_left >= 0;
  const bool ragged = params.batch.ragged_queries();
  params.q_scale = query_scale_view(problem);
  params.k_scale = scale_view(problem.k_scale, false);
  params.v_scale = scale_view(problem.v_scale, true);
  params.v_mean = scale_view(problem.v_mean, true);
  params.lse_bias = lse_view(problem.lse_bias);
  params.sink = scale_view(problem.attention_sink, false);
  params.out_scale = scale_view(problem.out_scale, false);
  if (problem.lse) {
    const TensorView& lse = *problem.lse;
    params.lse = static_cast<float*>(problem.lse->data);
    params.lse_batch_stride = ragged ? 0 : lse.strides[0];
    params.lse_head_stride = lse.strides[lse.rank - 2];
    params.lse_row_stride = lse.strides[lse.rank - 1];
  }
  params.lse_unit = problem.lse_base == LseBase::kE ? 0.693147180559945f : 1.0f;
  const std::int64_t element = size_of(out.dtype);
  params.out = problem.out.data;
  params.out_entry_stride = ragged ? 0 : out.strides[0] * element;
  params.out_row_stride = out.strides[out.rank - 3] * element;
  params.out_head_stride = out.strides[out.rank - 2] * element;
  params.out_dtype = out.dtype;
  params.head_dim_v = static_cast<int>(out.shape[out.rank - 1]);
}

// Whether the kernel without code for the rest will do.
inline bool is_plain(const PrefillProblem& problem, const PrefillParams& params) {
  return !params.batch.uneven() && params.keys == Placement::kEntries && params.values == Placement::kEntries &&
         !params.changes_all && params.sink.data == nullptr && is_16bit(problem.out.dtype);
}

template <class Traits>
void launch_kernel(const PrefillProblem& problem, PrefillParams& params, Stream stream) {
  const int heads = static_cast<int>(problem.q.shape[problem.q.rank - 2]), sequences = params.batch.sequences;
  const int query_tiles = (params.batch.query_capacity + Traits::kTileM - 1) / Traits::kTileM;
  const std::int64_t pairs = std::int64_t{sequences} * heads;
  const bool listed = params.list.entries != nullptr;
  const std::int64_t tiles = listed ? std::int64_t{params.list.capacity} * heads : query_tiles * pairs;
  const int grid = static_cast<int>(std::min<std::int64_t>(tiles, multiprocessor_count(problem.q.device.index)));
  if (!listed) params.order = TileOrder(query_tiles, heads, static_cast<int>(pairs), problem.causal, grid);

  const auto kernel = prefill_kernel<Traits>;
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             static_cast<int>(sizeof(typename Traits::Shared))),
        "prefill", "cudaFuncSetAttribute");
  // Not <<<>>>: its error would have to be fetched with cudaGetLastError, which may hold somebody else's.
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = Traits::kThreads;
  config.dynamicSmemBytes = sizeof(typename Traits::Shared);
  config.stream = stream;
  // The prologue runs while the kernel before is still at work; the kernel itself waits for its results (initialise()).
  cudaLaunchAttribute overlap{};
  overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  overlap.val.programmaticStreamSerializationAllowed = 1;
  config.attrs = &overlap;
  config.numAttrs = 1;
  check(cudaLaunchKernelEx(&config, kernel, tensor_maps<Traits>(problem, params), params), "prefill",
        "cudaLaunchKernelEx");
}

template <class Traits>
void launch_prefill(const PrefillProblem& problem, const PreparedBatch& prepared, Stream stream) {
  if (problem.out.count() == 0) return;
  const DeviceGuard guard(problem.q.device.index, "prefill");

  PrefillParams params{};
  set_batch(params, problem, prepared);
  const bool long_pages = params.batch.page_size % (Traits::kShortStep * Traits::kBlockN) == 0;
  params.box_blocks = params.keys != Placement::kPages || long_pages ? Traits::kShortStep : 1;
  set_tensors(params, problem);
  params.list = prepared.tiles;
  const int heads = static_cast<int>(problem.q.shape[problem.q.rank - 2]);
  params.queries_per_kv = Divisor(heads / static_cast<int>(problem.k.shape[problem.k.rank - 2]));
  if (is_plain(problem, params)) {
    launch_kernel<typename Traits::Plain>(problem, params, stream);
  } else {
    launch_kernel<Traits>(problem, params, stream);
  }
}

}  // namespace fp8attn::cuda
