// The two passes over q, k and v of one prefill, each one launch on the current device.
#pragma once

#include "cuda/sm90/quantize/qkv_params.h"
#include "cuda/sm90/quantize/start.h"
#include "fp8attn/backend.h"

namespace fp8attn::cuda {

// One block a chunk of tokens of each batch entry and head.
void launch_qkv_statistics(const QkvParams& params, DType dtype, Stream stream);

// One block a tile. Reads q, k and v before it waits for the kernel before: Start::kEarly behind the first pass only.
void launch_qkv_convert(const QkvParams& params, DType dtype, Start start, Stream stream);

}  // namespace fp8attn::cuda
