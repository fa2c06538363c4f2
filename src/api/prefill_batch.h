// Where the sequences of a prefill lie and how large they can be, read off the shapes of its tensors. Validation,
// dispatch and both backends ask here instead of looking at ranks.
#pragma once

#include <cstdint>

#include "fp8attn/prefill.h"

namespace fp8attn {

enum class QueryLayout : std::uint8_t { kDense, kRagged };
enum class KeyLayout : std::uint8_t { kDense, kRagged, kPaged };

// "dense", "ragged", "paged".
constexpr const char* name_of(QueryLayout layout) { return layout == QueryLayout::kRagged ? "ragged" : "dense"; }
constexpr const char* name_of(KeyLayout layout) {
  return layout == KeyLayout::kPaged ? "paged" : layout == KeyLayout::kRagged ? "ragged" : "dense";
}

constexpr QueryLayout query_layout(const PrefillProblem& problem) {
  return problem.q_offsets ? QueryLayout::kRagged : QueryLayout::kDense;
}

constexpr KeyLayout key_layout(const PrefillProblem& problem) {
  if (problem.block_table) return KeyLayout::kPaged;
  return problem.kv_offsets ? KeyLayout::kRagged : KeyLayout::kDense;
}

// Whether lengths are read on the device: sequences may then differ, and be shorter than the capacities say.
constexpr bool is_uneven(const PrefillProblem& problem) {
  return problem.q_offsets || problem.kv_offsets || problem.kv_lengths;
}

// Whether a 16-bit q meets e4m3 keys: it is quantised then.
constexpr bool quantizes_query(const PrefillProblem& problem) {
  return problem.q.dtype != DType::kE4M3 && problem.k.dtype == DType::kE4M3;
}

struct PrefillBatch {
  QueryLayout queries;
  KeyLayout keys;
  std::int64_t b = 0;                     // sequences
  std::int64_t query_rows = 0;            // of q: b * s_q or total_q
  std::int64_t query_capacity = 0;        // most queries of a sequence: s_q or total_q
  std::int64_t key_rows = 0;              // of k: b * s_kv, total_kv or pages * page_size
  std::int64_t key_capacity = 0;          // most keys of a sequence: s_kv, total_kv or max_pages * page_size
  std::int64_t pages = 0, page_size = 0;  // paged keys; else 0
  std::int64_t h_q = 0, h_kv = 0, d_qk = 0, d_v = 0;
};

// Of a problem whose shapes are valid.
constexpr PrefillBatch batch_of(const PrefillProblem& problem) {
  const TensorView &q = problem.q, &k = problem.k, &v = problem.v;
  PrefillBatch batch{.queries = query_layout(problem), .keys = key_layout(problem)};
  const bool ragged = batch.queries == QueryLayout::kRagged;
  batch.b = ragged ? problem.q_offsets->shape[0] - 1 : q.shape[0];
  batch.query_capacity = q.shape[ragged ? 0 : 1];
  batch.query_rows = ragged ? q.shape[0] : q.shape[0] * q.shape[1];
  batch.h_q = q.shape[q.rank - 2];
  batch.d_qk = q.shape[q.rank - 1];
  batch.h_kv = k.shape[k.rank - 2];
  batch.d_v = v.shape[problem.v_layout == VLayout::kPacked ? 2 : v.rank - 1];
  switch (batch.keys) {
    case KeyLayout::kDense:
      batch.key_rows = k.shape[0] * k.shape[1];
      batch.key_capacity = k.shape[1];
      break;
    case KeyLayout::kRagged: batch.key_rows = batch.key_capacity = k.shape[0]; break;
    case KeyLayout::kPaged:
      batch.pages = k.shape[0];
      batch.page_size = k.shape[1];
      batch.key_rows = batch.pages * batch.page_size;
      batch.key_capacity = problem.block_table->shape[1] * batch.page_size;
      break;
  }
  return batch;
}

// Whether few enough queries share a key head to be one tile of a decode kernel, which splits keys among CTAs. It reads
// dense queries, and dense or paged keys. As many as it can hold: measured on one H200 at d = 128 against the prefill
// kernel, packing of V included, 64 rows in groups of 4 heads take 0.56 (e4m3, 32 x 4096 tokens, 8 key heads) and 0.35
// (bf16) of its time; 64 rows of one head 1.08 and 1.11, but 0.60 in a batch that has fewer heads than the device
// multiprocessors (e4m3, 4 x 32768).
constexpr bool has_short_queries(const PrefillBatch& batch) {
  constexpr std::int64_t kMostRows = 64;
  return batch.queries == QueryLayout::kDense && batch.keys != KeyLayout::kRagged && batch.h_kv > 0 &&
         batch.query_capacity * (batch.h_q / batch.h_kv) <= kMostRows;
}

// What a valid scale of q is given for. [total_q, h_q] and [b, h_q] are the same shape where there are as many rows as
// sequences: it is a token's then.
constexpr ScaleGranularity query_scale_granularity(const PrefillBatch& batch, const TensorView& scale) {
  if (scale.rank == 0 || (scale.rank == 1 && scale.shape[0] == 1)) return ScaleGranularity::kTensor;
  if (scale.rank == 1) return ScaleGranularity::kHead;
  const bool ragged = batch.queries == QueryLayout::kRagged;
  const bool of_token = ragged ? scale.shape[0] == batch.query_rows : scale.rank == 3;
  return of_token ? ScaleGranularity::kTokenHead : ScaleGranularity::kBatchHead;
}

// The same of k, where it is a sequence's: CUDA reads no other.
constexpr ScaleGranularity key_scale_granularity(const PrefillBatch& batch, const TensorView& scale) {
  if (scale.rank == 0 || (scale.rank == 1 && scale.shape[0] == 1)) return ScaleGranularity::kTensor;
  if (scale.rank == 1) return ScaleGranularity::kHead;
  const bool of_sequence = scale.rank == 2 && scale.shape[0] == batch.b;
  return of_sequence ? ScaleGranularity::kBatchHead : ScaleGranularity::kTokenHead;
}

}  // namespace fp8attn
