// The CPU backend of the quantisers, OpenMP over tiles of tokens and channels. No workspace; the stream is ignored.
#pragma once

#include <cstddef>

#include "api/qkv_quantization.h"
#include "fp8attn/quantize.h"

namespace fp8attn::cpu {

// Run validated problems. The arithmetic, bit for bit that of the CUDA quantisers, every step in float32:
//   scale   = amax > 0 ? max(amax / 448, 2^-100) : 1     amax: largest finite magnitude of the elements that share it
//   inverse = 1 / scale
//   stored  = e4m3_from_float(real * inverse)
void quantize(const QuantizeProblem& problem, Workspace workspace, Stream stream);
void pack_v(const TensorView& input, const MutableTensorView& output, Stream stream);

// In the order of arithmetic that QkvQuantization names.
void quantize_qkv(const QkvQuantization& quantization);

std::size_t quantize_workspace_size(const QuantizeProblem& problem);  // 0

}  // namespace fp8attn::cpu
