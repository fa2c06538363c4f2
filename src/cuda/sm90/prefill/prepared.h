// What a prefill kernel is launched with besides its problem: how the batch lies, and what steps before the kernel have
// put into the workspace. Host.
#pragma once

#include "api/prefill_batch.h"
#include "cuda/sm90/tile/batch.h"
#include "cuda/sm90/tile/tile_list.h"
#include "fp8attn/prefill.h"

namespace fp8attn::cuda {

inline IndexView index_view(const std::optional<TensorView>& view) {
  if (!view) return {};
  IndexView result{.data = view->data, .is_int64 = view->dtype == DType::kI64};
  for (int i = 0; i < view->rank; ++i) result.strides[i] = view->strides[i];
  return result;
}

// Of a problem as the caller gave it.
inline BatchView batch_view(const PrefillProblem& problem) {
  const PrefillBatch batch = batch_of(problem);
  // Without a page no sequence has a token that lies anywhere.
  const bool no_page = batch.keys == KeyLayout::kPaged && batch.pages == 0;
  const int key_capacity = no_page ? 0 : static_cast<int>(batch.key_capacity);
  return {.sequences = static_cast<int>(batch.b),
          .query_capacity = static_cast<int>(batch.query_capacity),
          .key_capacity = key_capacity,
          .q_offsets = index_view(problem.q_offsets),
          .kv_offsets = index_view(problem.kv_offsets),
          .kv_lengths = index_view(problem.kv_lengths),
          .block_table = index_view(problem.block_table),
          .page_size = static_cast<int>(batch.page_size),
          .pages = static_cast<int>(batch.pages),
          .aligned_capacity = BatchView::aligned(key_capacity)};
}

struct PreparedBatch {
  BatchView batch;
  // Whether k, or v, is in the workspace, where sequence i begins at position batch.aligned_start(i) of
  // batch.aligned_positions(): [1, positions, h, d], a packed v [1, h_kv, d_v, positions]. A v has zeros behind the
  // tokens of a sequence, up to the next multiple of 64.
  bool keys_aligned = false, values_aligned = false;
  TileList tiles;  // of an uneven batch
};

}  // namespace fp8attn::cuda
