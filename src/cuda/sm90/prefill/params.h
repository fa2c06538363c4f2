// Arguments of the prefill kernel.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "api/mask.h"
#include "cuda/sm90/tile/tile_order.h"

namespace fp8attn::cuda {

// A tensor of float32 factors or addends, or none (nullptr). Strides in elements, 0 along what shares a value.
struct ScaleView {
  const float* data = nullptr;
  int64_t batch_stride = 0, head_stride = 0, inner_stride = 0;  // inner: token (q, lse) or channel (v)

  __device__ float at(int batch, int head, int inner = 0, float otherwise = 1.0f) const {
    return data == nullptr ? otherwise : __ldg(data + batch * batch_stride + head * head_stride + inner * inner_stride);
  }
};

struct PrefillMaps {
  CUtensorMap query, key, value, out;  // dims: channel, head, token, batch; a packed value: token, channel, head, batch
};

struct PrefillParams {
  Mask mask;
  TileOrder order;
  Divisor queries_per_kv;    // query heads that share a key head
  float softmax_scale_log2;  // softmax scale * log2(e)
  ScaleView q_scale, k_scale, v_scale;
  ScaleView v_mean, lse_bias;
  float* lse;  // nullptr: not wanted
  int64_t lse_batch_stride, lse_head_stride, lse_row_stride;
  bool out_is_fp16;  // else bf16
};

}  // namespace fp8attn::cuda
