#include "cpu/prefill_layout.h"

#include <algorithm>

#include "cpu/tile_common.h"

namespace fp8attn::cpu {
namespace {

// [outer, inner, head, ..], or [inner, head, ..] of a ragged tensor.
Strides by_token(const auto& view, bool ragged) {
  const auto& s = view.strides;
  return ragged ? Strides{.inner = s[0], .head = s[1]} : Strides{.outer = s[0], .inner = s[1], .head = s[2]};
}

// [outer, head, inner], or [head, inner] of a ragged tensor.
Strides by_head(const auto& view, bool ragged) {
  const auto& s = view.strides;
  return ragged ? Strides{.inner = s[1], .head = s[0]} : Strides{.outer = s[0], .inner = s[2], .head = s[1]};
}

// [sequence, head, channel], or fewer of these; one element for all.
Strides by_sequence(const TensorView& view) {
  const auto& s = view.strides;
  switch (view.rank) {
    case 0: return {};
    case 1: return {.head = view.shape[0] == 1 ? 0 : s[0]};
    case 2: return {.sequence = s[0], .head = s[1]};
    default: return {.sequence = s[0], .head = s[1], .channel = s[2]};
  }
}

Floats floats_of(const std::optional<TensorView>& view, auto strides_of) {
  if (!view) return {};
  return {static_cast<const float*>(view->data), strides_of(*view)};
}

// Sequence `index` of offsets into so many rows.
Rows rows_between(const TensorView& offsets, std::int64_t index, std::int64_t rows) {
  const auto at = [&](std::int64_t i) {
    return clamped_length(integer_at(offsets, i * offsets.strides[0]), static_cast<int>(rows));
  };
  const int start = at(index);
  return {start, std::max(0, at(index + 1) - start)};
}

}  // namespace

PrefillLayout::PrefillLayout(const PrefillProblem& problem) : batch(batch_of(problem)), problem_(problem) {
  const bool ragged_queries = batch.queries == QueryLayout::kRagged, ragged_keys = batch.keys == KeyLayout::kRagged;
  q = by_token(problem.q, ragged_queries);
  k = by_token(problem.k, ragged_keys);
  v = by_token(problem.v, ragged_keys);
  if (problem.v_layout == VLayout::kPacked) {
    const auto& s = problem.v.strides;
    v = {.outer = s[0], .inner = 1, .head = s[1], .channel = s[2]};
  }
  out = by_token(problem.out, ragged_queries);
  if (problem.lse) lse = by_head(*problem.lse, ragged_queries);
  q_scale = floats_of(problem.q_scale, [&](const TensorView& scale) {
    const bool per_token = query_scale_granularity(batch, scale) == ScaleGranularity::kTokenHead;
    return per_token ? by_token(scale, ragged_queries) : by_sequence(scale);
  });
  k_scale = floats_of(problem.k_scale, [&](const TensorView& scale) {
    key_scale_per_token = key_scale_granularity(batch, scale) == ScaleGranularity::kTokenHead;
    return key_scale_per_token ? by_token(scale, ragged_keys) : by_sequence(scale);
  });
  v_scale = floats_of(problem.v_scale, by_sequence);
  v_mean = floats_of(problem.v_mean, by_sequence);
  lse_bias = floats_of(problem.lse_bias, [&](const TensorView& bias) { return by_head(bias, ragged_queries); });
}

Rows PrefillLayout::queries(std::int64_t sequence) const {
  if (problem_.q_offsets) return rows_between(*problem_.q_offsets, sequence, batch.query_rows);
  return {0, static_cast<int>(batch.query_capacity)};
}

Rows PrefillLayout::keys(std::int64_t sequence) const {
  if (problem_.kv_offsets) return rows_between(*problem_.kv_offsets, sequence, batch.key_rows);
  const auto capacity = static_cast<int>(batch.key_capacity);
  if (!problem_.kv_lengths) return {0, capacity};
  const TensorView& lengths = *problem_.kv_lengths;
  return {0, clamped_length(integer_at(lengths, sequence * lengths.strides[0]), capacity)};
}

Mask PrefillLayout::mask(const Rows& queries, const Rows& keys) const {
  return {queries.length, keys.length, problem_.causal, clamped_window(problem_.window_left)};
}

Place PrefillLayout::query(std::int64_t sequence, const Rows& queries, std::int64_t token) const {
  if (batch.queries == QueryLayout::kRagged) return {sequence, 0, queries.start + token};
  return {sequence, sequence, token};
}

std::optional<Place> PrefillLayout::key(std::int64_t sequence, const Rows& keys, std::int64_t token) const {
  if (batch.keys == KeyLayout::kDense) return Place{sequence, sequence, token};
  if (batch.keys == KeyLayout::kRagged) return Place{sequence, 0, keys.start + token};
  const auto& strides = problem_.block_table->strides;
  const std::int64_t column = token / batch.page_size;
  const std::int64_t page = integer_at(*problem_.block_table, sequence * strides[0] + column * strides[1]);
  if (!is_among(page, batch.pages)) return std::nullopt;
  return Place{sequence, page, token % batch.page_size};
}

int PrefillLayout::run_length(std::int64_t token, int count) const {
  if (batch.keys != KeyLayout::kPaged) return count;
  return static_cast<int>(std::min<std::int64_t>(count, batch.page_size - token % batch.page_size));
}

}  // namespace fp8attn::cpu
