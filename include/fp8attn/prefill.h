// softmax(Q K^T * softmax_scale) V over whole prompts: dense, ragged and paged batches.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "fp8attn/backend.h"
#include "fp8attn/quantize.h"
#include "fp8attn/tensor.h"

namespace fp8attn {

// How the probabilities P = 2^x become e4m3 codes (8-bit CUDA kernels, and their CPU emulation; the CUDA kernels for
// short queries, see prefill(), keep P in 16 bits in every mode). The error is that of
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

// The base of the logarithm in lse.
enum class LseBase : std::uint8_t { kE, k2 };

// "e", "2".
const char* name_of(LseBase base);

// One attention call. b: batch, that is sequences; s_q, s_kv: query and key tokens; h_q, h_kv: query and key/value
// heads, h_q a multiple of h_kv (query head i reads key head i / (h_q / h_kv)); d_qk, d_v: channels of q and k, and of
// v and out.
//
// Batches. Queries and keys lie in one of these ways each, in any combination:
//
//   queries: dense    q [b, s_q, h_q, d_qk]
//            ragged   q [total_q, h_q, d_qk], sequence i has the rows q_offsets[i] to q_offsets[i + 1] - 1
//   keys:    dense    k [b, s_kv, h_kv, d_qk]; with kv_lengths sequence i has the first kv_lengths[i] tokens
//            ragged   k [total_kv, h_kv, d_qk], sequence i has the rows kv_offsets[i] to kv_offsets[i + 1] - 1
//            paged    k [pages, page_size, h_kv, d_qk], any page size; sequence i has kv_lengths[i] tokens, and token t
//                     lies in page block_table[i, t / page_size] at position t % page_size
//
// v lies as k does and out as q. Offsets and lengths are read on the device, so a captured graph may be replayed with
// others. An offset below 0 counts as 0, one beyond the tensor as its end, one below the offset before it makes an
// empty sequence; sequences that share keys because kv_offsets fall have unspecified values. Lengths count from 0 to
// s_kv or max_pages * page_size: values outside are clamped to that. Table entries at or past the length are never used
// and may hold anything, -1 for instance. An entry within the length that is not a page of the cache gives its sequence
// unspecified values, and no others; nothing is read out of bounds. Rows of a ragged q that belong to no sequence keep
// what out and lse held. Tokens that no sequence has may hold any bytes, NaN included.
//
// Tensors: any strides from 0 (expanded) up, with a contiguous last dim. On CUDA: 16-byte aligned base and
// strides of a multiple of 16 bytes. All on one device. No two elements of out, or of lse, share memory: by ascending
// stride, each dim steps over all that the dims before it span. Out and lse share no memory with each other or with an
// input; they may be slices of one buffer with them, where rows of all repeat by one pitch and use different parts of
// it.
//
// Short queries on CUDA: where q is dense, k dense or paged, V row-major, and s_q times the heads that share a key head
// at most 64, as in a decoding step, a kernel that splits the keys of a sequence among multiprocessors reads the cache
// once, as it lies (docs/kernels/decode.md). It needs a workspace for partial results.
//
// Else a row-major e4m3 V on CUDA is packed into the workspace before the kernel: one more launch and 2 bytes of
// traffic an element, which a V that is used again can be spared (pack_v(), quantize()). Keys, and a 16-bit V, in pages
// of other than a multiple of 64 tokens are gathered there, a 16-bit q beside e4m3 keys is quantised there, and uneven
// batches have a list of their tiles there. Beside these only `quantize` needs a workspace.
//
// Packed V: positions of tokens >= s_kv (a dense V's padding to 16 tokens) belong to the format and must hold 0, as
// quantize() and pack_v() write them. They take part in products with 0, where NaN would spread. A paged one is packed
// page by page: the tokens of a page are its positions, as pack_v() writes a sequence of page_size tokens.
//
// e4m3 on CUDA: scores carry half's 11 bits, so a logit is exact to about 2^-12 of itself. lse is right only while
// softmax_scale * q_scale * k_scale stays below 10 (below 5000 for rows whose stored q sum to 128 or less in
// magnitude); beyond that single scores lie octaves apart.
//
// real = stored * scale. A scale that is not given is 1. Scales, means and biases: f32, on the device of q, any
// strides.
struct PrefillProblem {
  TensorView q;           // [b, s_q, h_q, d_qk] or [total_q, h_q, d_qk]  e4m3, bf16 or fp16 (CPU: f32 too)
  TensorView k;           // as above; the dtype of q, or e4m3 with a bf16 or fp16 q, which is quantised then, with one
                          // scale for a token and head
  TensorView v;           // as k, with d_v channels. Packed: [b, h_kv, d_v, packed_length(s_kv)], or where k is paged
                          // [pages, h_kv, d_v, page_size] with a page_size that is a multiple of 16 (CUDA: of 64)
  MutableTensorView out;  // as q, with d_v channels: bf16, fp16, f32, or e4m3 with an out_scale
  std::optional<MutableTensorView> lse;  // [b, h_q, s_q] or [h_q, total_q] f32: logarithm of the sum of exp(logits)

  std::optional<TensorView> q_offsets;    // ragged q: [b + 1] int32 or int64, any stride
  std::optional<TensorView> kv_offsets;   // ragged k and v: [b + 1] int32 or int64, any stride
  std::optional<TensorView> kv_lengths;   // dense or paged k and v: [b] int32 or int64, any stride
  std::optional<TensorView> block_table;  // paged k and v: [b, max_pages] int32 or int64, any strides

  std::optional<TensorView> q_scale;    // scalar, [h_q], [b, h_q] or a token's: [b, s_q, h_q] or [total_q, h_q] (which
                                        // it is where total_q is b); e4m3 q
  std::optional<TensorView> k_scale;    // scalar, [h_kv], [b, h_kv] or (CPU only) a token's: k's shape without the
                                        // channels ([b, h_kv] where both fit); e4m3 k
  std::optional<TensorView> v_scale;    // scalar, [h_kv], [b, h_kv] or [b, h_kv, d_v]; e4m3 v
  std::optional<TensorView> out_scale;  // scalar: out holds real / out_scale, rounded to nearest even and saturated at
                                        // 448; e4m3 out only, default 1

  // What was taken away before the conversion to e4m3, so e4m3 only. A vector subtracted from all keys of a head
  // changes no weight, but every logit of query i by softmax_scale * q_i . vector: that is the lse_bias. With a softcap
  // or a sink it would change weights: neither is accepted beside it, nor beside smooth_k. V has no mean (v_mean,
  // center_v) beside a sink.
  std::optional<TensorView> v_mean;    // [b, h_kv, d_v] f32: added to out, but not to rows that see no key
  std::optional<TensorView> lse_bias;  // as lse, base e: added to lse, which must be given

  // 16-bit dense q, k and v without kv_lengths (CPU: f32 too), 8-bit arithmetic: they become e4m3 in the workspace as
  // the recipe says, in two launches before the attention. No scale, v_mean or lse_bias may be given, and v is
  // row-major, on CUDA with d_v a multiple of 64.
  std::optional<QuantizeRecipe> quantize;

  VLayout v_layout = VLayout::kRowMajor;
  std::optional<float> softmax_scale;  // finite; default 1 / sqrt(d_qk)

  // Which keys a query sees. Query i of s_q is at the diagonal i + s_kv - s_q (bottom-right aligned), s_q and s_kv
  // being its own sequence's. A row that sees no key gets out exactly 0 and lse -infinity.
  bool causal = false;            // none behind the diagonal
  std::int64_t window_left = -1;  // none more than this many before the diagonal; -1: no limit
  float softcap = 0.0f;  // finite, >= 0: a logit x becomes softcap * tanh(x / softcap), before the mask; 0: it stays
  std::optional<TensorView> attention_sink;  // [h_q] f32, any stride: a logit that adds exp(sink) to the denominator of
                                             // its head and nothing else; not in lse. -infinity for none

  LseBase lse_base = LseBase::kE;
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
