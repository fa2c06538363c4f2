// Arguments of the MLA decode kernels.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "cuda/sm90/mla_decode/workspace.h"
#include "cuda/sm90/prefill/params.h"
#include "cuda/sm90/tile/batch.h"
#include "cuda/sm90/tile/split_schedule.h"
#include "cuda/sm90/tile/tile_order.h"

namespace fp8attn::cuda {

struct MlaMaps {
  CUtensorMap latent, rope, scale;  // dims: channel, position in the page, page, 1
};

struct MlaParams {
  const uint8_t* query;
  int64_t query_strides[3];  // bytes, of batch, query token, head
  bool query_is_e4m3;
  ScaleView query_scale;     // inner: query token
  const float* cache_scale;  // kTensor: one number, nullptr: 1
  float softmax_scale_log2;  // softmax scale * log2(e)

  const uint8_t* cache;
  int64_t page_stride, record_stride;  // bytes
  int pages;
  Divisor page_size;
  int box_rows;  // tokens of a TMA box; 0: pages of this size are gathered by threads

  // Dense: a sequence is one of the batch, its rows are all its query tokens and heads. Sparse: a sequence is one query
  // token, since each has its own tokens.
  bool sparse, causal;
  int queries;              // query tokens of a sequence
  Divisor heads;            // query heads
  Divisor sequence_tokens;  // sparse: query tokens of a batch entry; dense: 1
  int rows;                 // queries * heads
  IndexView tokens;         // dense: block table [b, max_pages]; sparse: indices [b, s_q, topk]
  IndexView lengths;        // dense: [b]; sparse: [b, s_q], no data: max_length
  int max_length;           // max_pages * page_size or topk

  MlaSchedule schedule;

  void* out;
  int64_t out_strides[3];  // elements, of batch, query token, head
  bool out_is_fp16;        // else bf16
  float* lse;              // nullptr: not wanted
  int64_t lse_strides[3];  // batch, head, query token
  const float* sink;       // nullptr: none
  int64_t sink_stride;

  // Workspace. Two partial results a CTA: a unit begun by an earlier team, one continued by a later team.
  MlaSplit* splits;    // [teams]
  float* partial_lse;  // [CTA][2][64], base 2
  float* partial_out;  // [CTA][2][64][512], already divided by the sum of its part

  // Where row `row` of a sequence belongs.
  struct Place {
    int batch, token, head;
  };
  __device__ Place place(int sequence, int row) const {
    const int query = heads.divide(row), head = row - query * heads.divisor();
    const int batch = sequence_tokens.divide(sequence);
    return {batch, sparse ? sequence - batch * sequence_tokens.divisor() : query, head};
  }

  __device__ const uint8_t* query_row(int sequence, int row) const {
    const auto [batch, token, head] = place(sequence, row);
    return query + batch * query_strides[0] + token * query_strides[1] + head * query_strides[2];
  }

  __device__ static int blocks_of(int length) { return (length + 63) / 64; }
  __device__ int length(int sequence) const {
    if (lengths.data == nullptr) return max_length;
    const int batch = sequence_tokens.divide(sequence);
    const int64_t length = lengths.at(batch, sequence - batch * sequence_tokens.divisor());
    return static_cast<int>(length < 0 ? 0 : (length > max_length ? max_length : length));
  }
};

using MlaUnit = SplitUnit;
using MlaWalk = SplitWalk<MlaParams>;
using MlaWalkState = SplitWalkState;

}  // namespace fp8attn::cuda
