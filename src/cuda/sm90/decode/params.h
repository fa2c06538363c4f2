// Arguments of the decode kernels.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "cuda/sm90/prefill/params.h"
#include "cuda/sm90/ptx/half2.h"
#include "cuda/sm90/tile/split_schedule.h"

namespace fp8attn::cuda {

inline constexpr int kRowTile = 16;  // rows of a warp's products

struct DecodeMaps {
  CUtensorMap key, value;  // dims: channel, head, token, entry (of the batch, or a page)
};

// A tensor that is read without a map. Strides in bytes.
struct BytesView {
  const uint8_t* data;
  int64_t entry_stride, row_stride, head_stride;

  __device__ const uint8_t* at(int entry, int row, int head) const {
    return data + entry * entry_stride + row * row_stride + head * head_stride;
  }
};

// A row is a query token and one of the heads that share a key head: row r is token r / group, head r % group.
struct DecodeParams {
  PrefillParams call;  // of what prefill kernels take: all but maps, order and list
  BytesView query;
  DType query_dtype;
  BytesView key, value;  // read by threads where gathers
  int head_dim_qk;       // of the tensors; the kernel's may be larger
  int queries;           // query tokens of a sequence
  int rows;              // of a (sequence, key head)
  int row_tiles;         // warps that take the same tokens, a tile of rows each: 1, 2 or 4
  int block_shift;       // log2 of the tokens of a block
  bool gathers;          // tokens are copied one by one, not by boxes
  int box_rows;          // tokens of a box: a block, or a page where that is less

  SplitSchedule schedule;

  // Workspace. Two partial results a CTA: a unit begun by an earlier CTA, one continued by a later one.
  Split* splits;       // [teams]
  float* partial_lse;  // [CTA][2][rows], base 2
  float* partial_out;  // [CTA][2][rows][head_dim_v], already divided by the sum of its part

  // Keys that some row of a sequence sees, and the blocks that these lie in.
  struct Span {
    int begin, end, first_block, blocks;
  };
  __device__ Mask mask(int sequence) const {
    return {queries, call.batch.keys(sequence).length, call.causal, call.window_left};
  }
  __device__ Span span(const Mask& mask) const {
    const int begin = mask.visible_begin(0), end = mask.visible_end(queries - 1);
    if (end <= begin) return {0, 0, 0, 0};
    const int first = begin >> block_shift;
    return {begin, end, first, (end - 1 >> block_shift) + 1 - first};
  }

  // As split_schedule.h asks.
  __device__ int length(int sequence) const { return span(mask(sequence)).blocks; }
  __device__ static int blocks_of(int length) { return length; }

  struct Row {
    int token, head;
  };
  __device__ Row row(int kv_head, int index) const {
    const Divisor& group = call.queries_per_kv;
    const int token = group.divide(index);
    return {token, kv_head * group.divisor() + index - token * group.divisor()};
  }

  __device__ float* partial_row(int slot, int row) const {
    return partial_out + (static_cast<int64_t>(slot) * rows + row) * call.head_dim_v;
  }
  __device__ float& partial_log2_sum(int slot, int row) const {
    return partial_lse[static_cast<int64_t>(slot) * rows + row];
  }
};

// log2_sum: of exp(logits) of a finished row, base 2.
__device__ __forceinline__ void store_lse(const DecodeParams& params, int sequence, const DecodeParams::Row& row,
                                          float log2_sum) {
  constexpr float kLog2E = 1.44269504088896f;
  const PrefillParams& call = params.call;
  if (call.lse == nullptr) return;
  const float bias = call.lse_bias.at(sequence, row.head, row.token, 0.0f);
  call.lse[sequence * call.lse_batch_stride + row.head * call.lse_head_stride + row.token * call.lse_row_stride] =
      log2_sum == -INFINITY ? -INFINITY : fmaf(bias, kLog2E, log2_sum) * call.lse_unit;
}

// What the sink of its head, which is in the denominator only, leaves of a row's output.
__device__ __forceinline__ float share_beside_sink(const DecodeParams& params, int head, float log2_sum) {
  constexpr float kLog2E = 1.44269504088896f;
  if (params.call.sink.data == nullptr || log2_sum == -INFINITY) return 1.0f;
  return ptx::reciprocal(1.0f + ptx::exp2_float(params.call.sink.at(0, head) * kLog2E - log2_sum));
}

// Four channels of a row that has been divided by its sum: V scale and mean, conversion. empty: the row sees no key.
__device__ __forceinline__ void store_output(const DecodeParams& params, int sequence, int kv_head,
                                             const DecodeParams::Row& row, int channel, float (&value)[4], bool empty) {
  const PrefillParams& call = params.call;
  const bool by_channel = call.v_scale.inner_stride != 0 || call.v_mean.data != nullptr;
  const float common = by_channel ? 0.0f : call.v_scale.at(sequence, kv_head);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float scale = by_channel ? call.v_scale.at(sequence, kv_head, channel + i) : common;
    const float mean = by_channel && !empty ? call.v_mean.at(sequence, kv_head, channel + i, 0.0f) : 0.0f;
    value[i] = fmaf(value[i], scale, mean);
  }
  uint8_t* out = static_cast<uint8_t*>(call.out) + sequence * call.out_entry_stride + row.token * call.out_row_stride +
                 row.head * call.out_head_stride;
  switch (call.out_dtype) {
    case DType::kF32:
      reinterpret_cast<float4*>(out)[channel / 4] = make_float4(value[0], value[1], value[2], value[3]);
      break;
    case DType::kFP16:
      reinterpret_cast<uint2*>(out)[channel / 4] =
          make_uint2(ptx::half2_from_floats(value[0], value[1]), ptx::half2_from_floats(value[2], value[3]));
      break;
    case DType::kBF16:
      reinterpret_cast<uint2*>(out)[channel / 4] =
          make_uint2(ptx::bfloat162_from_floats(value[0], value[1]), ptx::bfloat162_from_floats(value[2], value[3]));
      break;
    default: {  // e4m3
      const float inverse = ptx::reciprocal(call.out_scale.at(0, 0));
      reinterpret_cast<uint32_t*>(out)[channel / 4] =
          ptx::e4m3x2_from_floats(value[0] * inverse, value[1] * inverse) |
          static_cast<uint32_t>(ptx::e4m3x2_from_floats(value[2] * inverse, value[3] * inverse)) << 16;
    }
  }
}

}  // namespace fp8attn::cuda
