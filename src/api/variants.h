// The variants table: every kernel that this build has or left out. It answers supports(), picks the launcher, and
// drives the test matrix, the benchmark, `fp8attn info` and the support matrix of the README.
#pragma once

#include <cstddef>
#include <span>

#include "fp8attn/prefill.h"

namespace fp8attn {

struct PrefillVariant {
  const char* name;  // "sm90-e4m3-d128-packed-default"
  DeviceKind device;
  DType dtype;                  // of k and v; of q too, or it is converted
  int head_dim_qk, head_dim_v;  // the largest; 0: any
  VLayout v_layout;
  PMode p_mode;             // e4m3 on CUDA only; elsewhere kDefault stands for all
  const char* left_out_by;  // nullptr, or the CMake option that left it out of this build
  std::size_t (*workspace_size)(const PrefillProblem&);
  void (*launch)(const PrefillProblem&, Workspace, Stream);  // gets validated problems only; null when left out
  // Takes problems whose queries are short (has_short_queries()) and no others, in any p_mode.
  bool short_queries = false;
};

// CPU rows first, then CUDA rows.
std::span<const PrefillVariant> prefill_variants();

}  // namespace fp8attn
