// The CUDA backend of the latent cache: the same bits as src/cpu/kv_cache.h, one warp a token.
#pragma once

#include "fp8attn/kv_cache.h"

namespace fp8attn::cuda {

// Run validated problems on the device of their tensors, asynchronously on `stream`; capturable. Throw Error for a
// failed CUDA call.
void append_mla(const AppendMlaProblem& problem, Stream stream);
void gather_mla(const GatherMlaProblem& problem, Stream stream);
void rotate_rope(const TensorView& input, const MutableTensorView& output, Stream stream);

}  // namespace fp8attn::cuda
