// What `fp8attn bench` measures: the files of bench/cases.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "fp8attn/prefill.h"

namespace fp8attn::cli {

enum class BenchLibrary { kFp8attn, kCudnn };
const char* name_of(BenchLibrary library);

struct BenchCase {
  BenchLibrary library = BenchLibrary::kFp8attn;
  DType dtype = DType::kE4M3;
  std::int64_t batch = 1, heads_q = 1, heads_kv = 1, seqlen_q = 1, seqlen_kv = 1, head_dim_qk = 64, head_dim_v = 64;
  bool causal = false;
  VLayout v_layout = VLayout::kRowMajor;
  PMode p_mode = PMode::kDefault;

  // 2 b h s_q s_kv (d_qk + d_v), halved under a causal mask.
  double flop() const;
  // Bytes of q, k, v and a bf16 out, each once.
  double bytes() const;
  // "e4m3 b1 h16 s16384 d128": what q, k and v depend on.
  std::string tensors() const;
  // tensors() and "causal packed exact", or "causal cudnn".
  std::string name() const;
};

// name: a file of bench/cases built into the program ("prefill", "table", "quick", "cpu"), or a path. A file holds
// {"groups": [...]}; a group maps the names of BenchCase to a value or a list of values and stands for all
// combinations. "tokens" may stand for batch (tokens / seqlen_q, 1 where seqlen_q is larger), and "hidden" for heads_q
// (hidden / head_dim_qk). Defaults: heads_kv, seqlen_kv and head_dim_v as for q; causal false; v_layout row-major;
// p_mode default; library fp8attn, or cudnn, which reads V row-major and has one form of P. Throws Error where the file
// does not say that.
std::vector<BenchCase> load_cases(const std::string& name);

}  // namespace fp8attn::cli
