// Host side that prefill kernels have in common: from a problem to their arguments.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>

#include "cuda/sm90/prefill/params.h"
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

}  // namespace fp8attn::cuda
