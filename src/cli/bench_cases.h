// What `fp8attn bench` measures: the files of bench/cases.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "fp8attn/prefill.h"

namespace fp8attn::cli {

enum class BenchLibrary { kFp8attn, kCudnn };
const char* name_of(BenchLibrary library);

// What is launched: attention, or the quantisers on a tensor of the shape of q.
enum class BenchOp { kPrefill, kQuantize, kPackV };
const char* name_of(BenchOp op);

// How sequences lie in memory. Queries of a paged case are dense where its lengths are equal, else ragged.
enum class BatchLayout { kDense, kRagged, kPaged };
const char* name_of(BatchLayout layout);

enum class Lengths { kEqual, kLogUniform };
const char* name_of(Lengths lengths);

struct BenchCase {
  BenchOp op = BenchOp::kPrefill;
  BenchLibrary library = BenchLibrary::kFp8attn;
  DType dtype = DType::kE4M3, kv_dtype = DType::kE4M3;  // of q, and of k and v
  std::int64_t batch = 1, heads_q = 1, heads_kv = 1, seqlen_q = 1, seqlen_kv = 1, head_dim_qk = 64, head_dim_v = 64;
  BatchLayout layout = BatchLayout::kDense;
  std::int64_t page_size = 0;  // of kPaged
  Lengths lengths = Lengths::kEqual;
  bool causal = false;
  std::int64_t window_left = -1;
  VLayout v_layout = VLayout::kRowMajor;
  PMode p_mode = PMode::kDefault;
  std::string recipe;  // of a 16-bit prefill that quantises within the call; "" for one that does not
  ScaleGranularity granularity = ScaleGranularity::kHead;  // of quantize

  // e4m3 arithmetic, so that P has several forms.
  bool has_p_modes() const { return op == BenchOp::kPrefill && (kv_dtype == DType::kE4M3 || !recipe.empty()); }
  // Whether the tensors are better made where they are used than on the host: more than dense ones of one dtype, or
  // more than 65536 tokens. Of this library without a recipe only.
  bool is_batch() const;
  // Keys of each sequence, the same at every call: seqlen_kv, or log-uniform from 1 to that.
  std::vector<std::int64_t> kv_lengths() const;
  // Queries of a sequence with so many keys: seqlen_q, of uneven lengths no more than keys.
  std::int64_t q_length(std::int64_t kv_length) const;
  // 2 h (d_qk + d_v) for each query and key that it sees: s_q s_kv, and half of that under a causal mask with s_q =
  // s_kv, as is customary; exact under a window, and for other or uneven lengths. 0 where nothing but bytes is moved.
  double flop() const;
  // Prefill: q, a bf16 out, and of k and v what any query sees, each once. Quantisers: what all passes read and write,
  // without scales.
  double bytes() const;
  // "e4m3 b1 h16 s16384 d128", "bf16/e4m3 b64 h32/8 s<=32768 d128 paged64 log-uniform": what q, k and v depend on.
  std::string tensors() const;
  // The shape and "causal packed exact", "causal smooth-k default", "causal cudnn", "causal window4096 ragged
  // row-major default"; "quantize", tensors() and "head packed".
  std::string name() const;
};

// name: a file of bench/cases built into the program ("prefill", "table", "batches", "decode", "quantize", "quick",
// "cpu"), or a path. A file holds
// {"groups": [...]}; a group maps the names of BenchCase to a value or a list of values and stands for all
// combinations. "tokens" may stand for batch (tokens / seqlen_q, 1 where seqlen_q is larger), and "hidden" for heads_q
// (hidden / head_dim_qk). Defaults: heads_kv, seqlen_kv and head_dim_v as for q; causal false; v_layout row-major;
// p_mode default; op prefill; granularity head; recipe none (the names of those that quantise within the call; 16 bits
// only); library fp8attn, or cudnn, which reads V row-major and has one form of P; layout dense, or ragged, or paged
// with a page_size; lengths equal; window_left -1; kv_dtype as dtype, or e4m3 beside 16 bits. Throws Error where the
// file does not say that.
std::vector<BenchCase> load_cases(const std::string& name);

}  // namespace fp8attn::cli
