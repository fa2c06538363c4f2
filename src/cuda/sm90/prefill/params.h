// Arguments of the prefill kernel.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "cuda/sm90/tile/batch.h"
#include "cuda/sm90/tile/tile_list.h"
#include "cuda/sm90/tile/tile_order.h"
#include "fp8attn/tensor.h"

namespace fp8attn::cuda {

// A tensor of float32 factors or addends, or none (nullptr). Strides in elements, 0 along what shares a value.
struct ScaleView {
  const float* data = nullptr;
  int64_t batch_stride = 0, head_stride = 0, inner_stride = 0;  // inner: token (q, lse) or channel (v)

  __device__ float at(int batch, int head, int inner = 0, float otherwise = 1.0f) const {
    return data == nullptr ? otherwise : __ldg(data + batch * batch_stride + head * head_stride + inner * inner_stride);
  }
};

// How keys, or values, lie for the copy engine.
enum class Placement : uint8_t {
  kEntries,  // sequence i has entry i of the batch
  kRows,     // it has rows from BatchView::keys(i).start on
  kAligned,  // it has rows from BatchView::aligned_start(i) on
  kPages,    // it has pages
};

struct PrefillMaps {
  // Dims: channel, head, token, entry (of the batch, or a page); a packed value: token, channel, head, entry.
  CUtensorMap query, key, value, out;
};

struct PrefillParams {
  BatchView batch;
  bool causal;
  int window_left;

  Placement keys, values;
  int box_blocks;  // blocks of rows that one copy brings: those of a short step, or one, where pages are not as long
  Divisor page_size;
  bool clears_values;  // behind the last value of a sequence lies what may be NaN

  TileOrder order;
  TileList list;             // of an uneven batch
  Divisor queries_per_kv;    // query heads that share a key head
  float softmax_scale_log2;  // softmax scale * log2(e)
  float softcap_log2;        // softcap * log2(e)
  float softcap_factor;      // its inverse; 0: there is none
  ScaleView q_scale, k_scale, v_scale;
  ScaleView v_mean, lse_bias;
  ScaleView sink;  // by head

  float* lse;  // nullptr: not wanted
  int64_t lse_batch_stride, lse_head_stride, lse_row_stride;
  float lse_unit;  // of the logarithm, in octaves of its base: ln(2), or 1 for base 2

  void* out;
  int64_t out_entry_stride, out_row_stride, out_head_stride;  // bytes
  DType out_dtype;
  ScaleView out_scale;
  int head_dim_v;  // of the tensors; the kernel's may be larger

  __device__ int kv_head(int head) const { return queries_per_kv.divide(head); }
  // Of the batch, in the tensors of the queries.
  __device__ int query_entry(int sequence) const { return batch.ragged_queries() ? 0 : sequence; }
};

}  // namespace fp8attn::cuda
