// softmax(Q K^T * softmax_scale) V over whole prompts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "fp8attn/backend.h"
#include "fp8attn/quantize.h"
#include "fp8attn/tensor.h"

namespace fp8attn {

// How the probabilities P = 2^x become e4m3 codes (8-bit CUDA kernels, and their CPU emulation). The error is that of
// the attention output against exact attention of the same e4m3 tensors, on normal data. Probabilities below a share of
// their row's largest count as 0: 2^-18 in kExact, about 2^-15 in the others, which shows where one key outweighs a
// long tail (docs/kernels/cpu.md, data set PEAK).
enum class PMode : std::uint8_t {
  kExact,    // exp2 in the special-function unit, then a rounded conversion
  kDefault,  // mostly half-precision arithmetic, quadratic in the fraction of x: error within 5% of kExact's
  kFast,     // half-precision arithmetic, linear in the fraction of x: error within 25% of kExact's
};

// "exact", "default", "fast".
const char* name_of(PMode mode);

// One attention call. b: batch; s_q, s_kv: query and key tokens; h_q, h_kv: query and key/value heads, h_q a multiple
// of h_kv (query head i reads key head i / (h_q / h_kv)); d_qk, d_v: channels of q and k, and of v and out.
//
// Tensors: any strides from 0 (expanded) up, with a contiguous last dim. On CUDA: 16-byte aligned base and
// strides of a multiple of 16 bytes. All on one device. No two elements of out, or of lse, share memory: by ascending
// stride, each dim steps over all that the dims before it span. Out and lse share no memory with each other or with an
// input; they may be slices of one buffer with them, where rows of all repeat by one pitch and use different parts of
// it.
//
// A row-major e4m3 V on CUDA is packed into the workspace before the kernel: one more launch and 2 bytes of traffic an
// element, which a V that is used again can be spared (pack_v(), quantize()). Beside it only `quantize` needs a
// workspace.
//
// Packed V: positions of tokens >= s_kv belong to the format and must hold 0, as quantize() and pack_v() write them.
// They take part in products with 0, where NaN would spread.
//
// e4m3 on CUDA: scores carry half's 11 bits, so a logit is exact to about 2^-12 of itself. lse is right only while
// softmax_scale * q_scale * k_scale stays below 10 (below 5000 for rows whose stored q sum to 128 or less in
// magnitude); beyond that single scores lie octaves apart.
//
// real = stored * scale. A scale that is not given is 1. Scales, means and biases: f32, on the device of q, any
// strides.
struct PrefillProblem {
  TensorView q;           // [b, s_q, h_q, d_qk]   e4m3, bf16 or fp16 (CPU: f32 too)
  TensorView k;           // [b, s_kv, h_kv, d_qk] the dtype of q
  TensorView v;           // [b, s_kv, h_kv, d_v]  the dtype of q; packed: [b, h_kv, d_v, packed_length(s_kv)]
  MutableTensorView out;  // [b, s_q, h_q, d_v]    bf16 or fp16 (CPU: f32 too)
  std::optional<MutableTensorView> lse;  // [b, h_q, s_q] f32: natural log of the sum of exp(logits)

  std::optional<TensorView> q_scale;  // scalar, [h_q], [b, h_q] or [b, s_q, h_q]; e4m3 only
  std::optional<TensorView> k_scale;  // scalar, [h_kv], [b, h_kv] or (CPU only) [b, s_kv, h_kv]; e4m3 only
  std::optional<TensorView> v_scale;  // scalar, [h_kv], [b, h_kv] or [b, h_kv, d_v]; e4m3 only

  // What was taken away before the conversion to e4m3, so e4m3 only. A vector subtracted from all keys of a head
  // changes no weight, but every logit of query i by softmax_scale * q_i . vector: that is the lse_bias.
  std::optional<TensorView> v_mean;    // [b, h_kv, d_v] f32: added to out, but not to rows that see no key
  std::optional<TensorView> lse_bias;  // [b, h_q, s_q] f32: added to lse, which must be given

  // 16-bit q, k and v (CPU: f32 too), 8-bit arithmetic: they become e4m3 in the workspace as the recipe says, in two
  // launches before the attention. No scale, v_mean or lse_bias may be given, and v is row-major.
  std::optional<QuantizeRecipe> quantize;

  VLayout v_layout = VLayout::kRowMajor;
  std::optional<float> softmax_scale;  // finite; default 1 / sqrt(d_qk)
  bool causal = false;  // bottom-right aligned: query i sees keys j <= i + s_kv - s_q. A row that sees no key gets out
                        // exactly 0 and lse -infinity
  PMode p_mode = PMode::kDefault;
  CpuArithmetic cpu_arithmetic = CpuArithmetic::kFloat32;
};

// Whether prefill() would run, with every reason why not. Throws nothing.
Support supports(const PrefillProblem& problem);

// Bytes of workspace that prefill() needs, a multiple of 256. Throws Error for a problem that is not supported.
std::size_t workspace_size(const PrefillProblem& problem);

// Runs it on the device of the tensors. Throws Error before anything is launched or written where the problem is not
// supported or the workspace is too small. CUDA: asynchronous on `stream`, no allocation, no synchronisation,
// capturable in a CUDA graph. Same inputs give the same bits.
void prefill(const PrefillProblem& problem, Workspace workspace = {}, Stream stream = nullptr);

}  // namespace fp8attn
