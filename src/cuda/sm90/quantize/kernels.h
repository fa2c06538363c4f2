// The steps of a quantisation, each one launch on the current device. Every problem here has elements.
#pragma once

#include "fp8attn/quantize.h"

namespace fp8attn::cuda {

// Raises the scale tensor, zeros before, to the bits of the amax of the finite values that share each scale.
void launch_amax(const QuantizeProblem& problem, Stream stream);

// From the bits of the amax to the scale, in place.
void launch_finish_scales(const MutableTensorView& scale, Stream stream);

// Row-major output by finished scales.
void launch_convert(const QuantizeProblem& problem, Stream stream);

// kTokenHead, row-major: scales and output in one pass.
void launch_convert_tokens(const QuantizeProblem& problem, Stream stream);

// Packed output by finished scales.
void launch_pack(const QuantizeProblem& problem, Stream stream);

// Packed output from e4m3 as it is.
void launch_pack_v(const TensorView& input, const MutableTensorView& output, Stream stream);

}  // namespace fp8attn::cuda
