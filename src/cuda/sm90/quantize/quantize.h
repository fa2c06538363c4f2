// The CUDA backend of the quantisers: the same bits as src/cpu/quantize.h, by at most two passes over the input.
#pragma once

#include <cstddef>

#include "api/qkv_quantization.h"
#include "fp8attn/quantize.h"

namespace fp8attn::cuda {

// Run validated problems on the device of their tensors, asynchronously on `stream`; capturable. The scale tensor holds
// the running amax between the two passes, so that no workspace is needed. Throw Error for a failed CUDA call.
void quantize(const QuantizeProblem& problem, Workspace workspace, Stream stream);
void pack_v(const TensorView& input, const MutableTensorView& output, Stream stream);

// In the order of arithmetic that QkvQuantization names: at most two launches. A prefill launched next waits for them.
void quantize_qkv(const QkvQuantization& quantization, Stream stream);

std::size_t quantize_workspace_size(const QuantizeProblem& problem);  // 0

}  // namespace fp8attn::cuda
