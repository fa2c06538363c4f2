// Combines the partial results of split units: a launch that does not depend on the kernel's traits.
#pragma once

#include <cuda_runtime_api.h>

#include "cuda/sm90/decode/params.h"

namespace fp8attn::cuda {

// Behind the decode kernel of the same arguments, on a grid of `ctas`. Throws Error where CUDA does.
void launch_decode_combine(const DecodeParams& params, int ctas, cudaStream_t stream);

}  // namespace fp8attn::cuda
