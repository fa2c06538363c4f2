// Attention of one or a few query tokens against a latent cache (multi-head latent attention, absorbed form).
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "fp8attn/backend.h"
#include "fp8attn/kv_cache.h"
#include "fp8attn/tensor.h"

namespace fp8attn {

inline constexpr std::int64_t kMaxMlaQueries = 16;  // query tokens of a sequence
inline constexpr std::int64_t kMaxMlaHeads = 128;   // query heads

// softmax(q K^T * softmax_scale) V, where every query head reads the same cached vector a token: K is all its 576
// channels, V its first 512. b: sequences; s_q: query tokens of each, 1 to 16; h_q: query heads, 1 to 128.
//
// Which tokens a query sees is said in one of two ways:
//
// Dense: block_table and lengths. Sequence i has lengths[i] tokens, the s_q query tokens included; token t lies in page
// block_table[i, t / page_size] at position t % page_size. Lengths count from 0 to max_pages * page_size: values
// outside are clamped to that. Table entries at or past the length are never used and may hold anything, -1 for
// instance. An entry within the length that is not a page of the cache gives its sequence unspecified values, and no
// others; nothing is read out of bounds.
//
// Sparse: indices, and topk_length where there are fewer. Query token (i, j) sees the slots indices[i, j, 0 to
// topk_length[i, j] - 1]; a slot is page * page_size + position in the page. Slots that are not in the cache (-1, as a
// rule) are not seen. A slot that is named twice counts twice. `causal` must be off: the indices say it all.
//
// A query that sees no token gets out exactly 0 and lse -infinity. Slots that no query sees may hold any bytes, NaN
// included.
//
// Tensors: any strides from 0 (expanded) up, with a contiguous last dim. On CUDA: q, cache and out have a
// 16-byte aligned base and strides of a multiple of 16 bytes. All on one device. No two elements of out, or of lse,
// share memory, and they share none with each other or with an input (details in prefill.h).
//
// real = stored * scale. With e4m3 caches the latent of a bf16 query is quantised in the kernel, with one scale for a
// query token and head: a power of two, or with kTensor amax / 448 of all 576 channels. RoPE products are bf16 except
// with kTensor. On CUDA all products with an e4m3 cache use the 8-bit tensor cores, P V in blocks of at most 256 tokens
// that are added in float32.
struct MlaDecodeProblem {
  TensorView q;           // [b, s_q, h_q, 576] bf16, or e4m3 with an e4m3 cache (CPU: with any)
  TensorView cache;       // [pages, page_size, record_elements(format)] of record_dtype(format), page_size 1 to 256
  MutableTensorView out;  // [b, s_q, h_q, 512] bf16 or fp16 (CPU: f32 too)
  std::optional<MutableTensorView> lse;  // [b, h_q, s_q] f32: natural log of the sum of exp(logits), without the sink

  CacheFormat format = CacheFormat::kToken128;

  std::optional<TensorView> block_table;  // dense: [b, max_pages] int32 or int64
  std::optional<TensorView> lengths;      // dense: [b] int32 or int64, any stride
  std::optional<TensorView> indices;      // sparse: [b, s_q, topk] int32 or int64
  std::optional<TensorView> topk_length;  // sparse: [b, s_q] int32 or int64, any strides; default topk. Clamped to
                                          // 0 to topk

  std::optional<TensorView> q_scale;         // e4m3 q only: f32 scalar, [h_q], [b, h_q] or [b, s_q, h_q], any strides;
                                             // default 1
  std::optional<TensorView> cache_scale;     // kTensor only: scalar f32; default 1
  std::optional<TensorView> attention_sink;  // [h_q] f32, any stride: a logit that adds exp(sink) to the denominator of
                                             // its head and nothing else. -infinity for none

  std::optional<float> softmax_scale;  // finite; default 1 / sqrt(576). Models want that of their own head dim before
                                       // the up-projection is absorbed: 1 / sqrt(192) for 128 + 64 channels
  bool causal = false;  // dense: query j sees tokens t <= j + lengths[i] - s_q. Nothing to hide where s_q is 1
  CpuArithmetic cpu_arithmetic = CpuArithmetic::kFloat32;
};

// Whether mla_decode() would run, with every reason why not. Throws nothing.
Support supports(const MlaDecodeProblem& problem);

// Bytes of workspace that mla_decode() needs. Depends on shapes, formats and the device, never on lengths: a captured
// graph may be replayed with others. Throws Error for a problem that is not supported.
std::size_t workspace_size(const MlaDecodeProblem& problem);

// Runs it on the device of the tensors. Throws Error before anything is launched or written where the problem is not
// supported or the workspace is too small. CUDA: asynchronous on `stream`, no allocation, no synchronisation,
// capturable; how sequences are split over the device is planned there, from the lengths of the moment. Same inputs
// give the same bits.
void mla_decode(const MlaDecodeProblem& problem, Workspace workspace = {}, Stream stream = nullptr);

}  // namespace fp8attn
