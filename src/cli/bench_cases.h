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

struct BenchCase {
  BenchOp op = BenchOp::kPrefill;
  BenchLibrary library = BenchLibrary::kFp8attn;
  DType dtype = DType::kE4M3;
  std::int64_t batch = 1, heads_q = 1, heads_kv = 1, seqlen_q = 1, seqlen_kv = 1, head_dim_qk = 64, head_dim_v = 64;
  bool causal = false;
  VLayout v_layout = VLayout::kRowMajor;
  PMode p_mode = PMode::kDefault;
  std::string recipe;  // of a 16-bit prefill that quantises within the call; "" for one that does not
  ScaleGranularity granularity = ScaleGranularity::kHead;  // of quantize

  // e4m3 arithmetic, so that P has several forms.
  bool has_p_modes() const { return op == BenchOp::kPrefill && (dtype == DType::kE4M3 || !recipe.empty()); }
  // 2 b h s_q s_kv (d_qk + d_v), halved under a causal mask; 0 where nothing but bytes is moved.
  double flop() const;
  // Prefill: q, k, v and a bf16 out, each once. Quantisers: what all passes read and write, without scales.
  double bytes() const;
  // "e4m3 b1 h16 s16384 d128": what q, k and v depend on.
  std::string tensors() const;
  // tensors() and "causal packed exact", "causal smooth-k default" or "causal cudnn"; "quantize", tensors() and
  // "head packed".
  std::string name() const;
};

// name: a file of bench/cases built into the program ("prefill", "table", "quantize", "quick", "cpu"), or a path. A
// file holds
// {"groups": [...]}; a group maps the names of BenchCase to a value or a list of values and stands for all
// combinations. "tokens" may stand for batch (tokens / seqlen_q, 1 where seqlen_q is larger), and "hidden" for heads_q
// (hidden / head_dim_qk). Defaults: heads_kv, seqlen_kv and head_dim_v as for q; causal false; v_layout row-major;
// p_mode default; op prefill; granularity head; recipe none (the names of those that quantise within the call; 16 bits
// only); library fp8attn, or cudnn, which reads V row-major and has one form of P. Throws Error where the file
// does not say that.
std::vector<BenchCase> load_cases(const std::string& name);

}  // namespace fp8attn::cli
