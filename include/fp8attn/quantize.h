// From bf16, fp16 or float32 to e4m3 with scales, and V into the layout that the tensor cores read directly.
#pragma once

#include <cstddef>
#include <cstdint>

#include "fp8attn/backend.h"
#include "fp8attn/tensor.h"

namespace fp8attn {

// How many elements share a scale. The shape of the scale tensor tells which one a prefill uses.
enum class ScaleGranularity : std::uint8_t {
  kTensor,     // one for all;                   scale [1] (rank 0 is accepted too)
  kHead,       // one per head;                  scale [h]
  kBatchHead,  // one per batch entry and head;  scale [b, h]
  kTokenHead,  // one per token and head (q, k); scale [b, s, h]
  kChannel,    // one per channel (v);           scale [b, h, d]
};

// "tensor", "head", "batch-head", "token-head", "channel".
const char* name_of(ScaleGranularity granularity);

// How prefill() makes e4m3 of 16-bit q, k and v (PrefillProblem::quantize). Scales are amax / 448 as in quantize(), k
// having one per batch entry and head. The figures are relative errors of the output on data like a language model's,
// with outlier channels (docs/kernels/quantize.md).
struct QuantizeRecipe {
  ScaleGranularity q_scale = ScaleGranularity::kTokenHead;  // kTokenHead or kBatchHead
  ScaleGranularity v_scale = ScaleGranularity::kBatchHead;  // kBatchHead or kChannel

  // Subtract from the keys of each batch entry and head their mean over the tokens, which changes no softmax weight.
  // lse gets it back.
  bool smooth_k = false;

  // Multiply the channels of q and k by one orthonormal matrix, which changes no logit but spreads an outlier over all
  // channels: random signs, then a Hadamard matrix. Head dims 64, 128, 256, and 192 as 128 and 64. A q or k that is not
  // finite makes all channels of its row so.
  bool hadamard = false;
  std::uint32_t hadamard_seed = 0;  // of the signs

  // Subtract from V the mean of each batch entry, head and channel over the tokens. Out gets it back.
  bool center_v = false;
};

// Layout of V in memory.
//
// kRowMajor: [b, s, h, d], like K.
//
// kPacked: [b, h, d, packed_length(s)]: channels by tokens, since 8-bit tensor-core instructions want the reduction
// (tokens) contiguous. Within each group of 16 tokens, position 4*i + 2*j + k (i in 0..3, j and k in 0..1) holds token
// 8*j + 2*i + k: the order in which a thread of Hopper's score accumulator holds its columns, so that the probabilities
// need no shuffle. Positions of tokens >= s are part of the format and must hold 0: kernels read them. e4m3 only.
enum class VLayout : std::uint8_t { kRowMajor, kPacked };

// "row-major", "packed".
const char* name_of(VLayout layout);

// Tokens per channel of a packed V: s rounded up to a multiple of 16.
constexpr std::int64_t packed_length(std::int64_t tokens) { return (tokens + 15) / 16 * 16; }

// Where token t of a packed V lies along the last dimension (see VLayout::kPacked).
constexpr std::int64_t packed_position(std::int64_t token) {
  const std::int64_t within = token & 15;
  return (token - within) + 4 * ((within & 7) >> 1) + 2 * (within >> 3) + (within & 1);
}

// Quantise one tensor: scale = amax / 448 over the elements that share it, stored = e4m3(real * (1 / scale)), so that
// real = stored * scale. amax is taken over finite values; where all of them are 0 the scale is 1. Scales below 2^-100
// are raised to it. Infinities saturate to +-448, NaN stays NaN. CPU and CUDA give the same bits.
// Output and scale share no memory with each other or with the input; slices of one buffer as in prefill.h are
// accepted.
struct QuantizeProblem {
  TensorView input;          // [b, s, h, d] bf16, fp16 or f32; any strides with a contiguous last dim
  MutableTensorView output;  // e4m3: [b, s, h, d] (kRowMajor, any strides with a contiguous last dim) or
                             // [b, h, d, packed_length(s)] (kPacked, contiguous)
  MutableTensorView scale;   // f32, contiguous; the shape that `granularity` names
  ScaleGranularity granularity = ScaleGranularity::kHead;
  VLayout layout = VLayout::kRowMajor;
};

// Whether quantize() would run, with the reasons why not.
Support supports(const QuantizeProblem& problem);

// Bytes of workspace that quantize() needs. Throws Error for a problem that is not supported.
std::size_t workspace_size(const QuantizeProblem& problem);

// Runs it on the device of the tensors. Throws Error before anything is written where the problem is not supported or
// the workspace is too small. CUDA: asynchronous on `stream`, no allocation, no synchronisation, capturable.
void quantize(const QuantizeProblem& problem, Workspace workspace = {}, Stream stream = nullptr);

// Rearrange a row-major e4m3 V into the packed layout. input: e4m3 [b, s, h, d]; output: e4m3 [b, h, d,
// packed_length(s)], contiguous, in memory that the input does not use. Scales are untouched by it. Errors and streams
// as in quantize().
void pack_v(const TensorView& input, const MutableTensorView& output, Stream stream = nullptr);

}  // namespace fp8attn
