// Attention over all keys from partial results over parts of them.
#pragma once

#include <optional>

#include "fp8attn/backend.h"
#include "fp8attn/prefill.h"
#include "fp8attn/tensor.h"

namespace fp8attn {

// The same queries have attended to disjoint sets of keys, one a part: the chunks of a long prompt, a prefix that
// requests share and what follows it, the shares of several devices. With lse_p the logarithm of part p's sum of
// exp(logits), each row of out is
//
//   sum over p of exp(lse_p - lse) * out_p,   lse = log(sum over p of exp(lse_p))
//
// in float32, p ascending. A part that saw no key of a row (lse -infinity) is not read there, and where only one part
// saw keys its row comes out bit for bit, apart from the conversion to another dtype. A row of which no part saw a key
// gets out 0 and lse -infinity. NaN or +infinity among the lses of a row make the row NaN.
//
// prefill() writes such parts where they will be read: out and lse of part p are the views of outs and lses at index p
// of their first dim. Parts of attention with a sink cannot be merged: their lse leaves the sink out.
//
// Tensors: any strides from 0 (expanded) up, with a contiguous last dim. On CUDA: outs and out have a 16-byte aligned
// base and strides of a multiple of 16 bytes. All on one device. out and lse overlap neither themselves nor each other
// nor an input, as in prefill.h.
struct MergeAttentionProblem {
  TensorView outs;                       // [parts, b, s_q, h_q, d_v] or [parts, total_q, h_q, d_v] bf16, fp16 or f32
  TensorView lses;                       // [parts, b, h_q, s_q] or [parts, h_q, total_q] f32, of base lse_base
  MutableTensorView out;                 // [b, s_q, h_q, d_v] or [total_q, h_q, d_v] bf16, fp16 or f32
  std::optional<MutableTensorView> lse;  // [b, h_q, s_q] or [h_q, total_q] f32, of base lse_base
  LseBase lse_base = LseBase::kE;
};

// Whether merge_attention() would run, with the reasons why not.
Support supports(const MergeAttentionProblem& problem);

// Runs it on the device of the tensors. Throws Error before anything is written where the problem is not supported.
// CUDA: asynchronous on `stream`, no allocation, no synchronisation, capturable, no workspace.
void merge_attention(const MergeAttentionProblem& problem, Stream stream = nullptr);

}  // namespace fp8attn
