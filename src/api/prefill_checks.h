// The checks of a prefill that take up a file each: shapes, and the scales that follow from them.
#pragma once

#include <cstdint>
#include <vector>

#include "api/prefill_batch.h"
#include "api/view_checks.h"

namespace fp8attn {

// What the shapes say, kAnyDim where one is wrong.
struct PrefillDims {
  std::int64_t b = kAnyDim, h_q = kAnyDim, d_qk = kAnyDim, h_kv = kAnyDim, d_v = kAnyDim;
  TensorView queries;  // shape of q without heads and channels: [b, s_q] or [total_q]
  TensorView keys;     // of k: [b, s_kv], [total_kv] or [pages, page_size]
};

// Of k and v, where nothing is wrong with them.
constexpr DType key_dtype(const PrefillProblem& problem) {
  return quantizes_query(problem) ? DType::kE4M3 : problem.q.dtype;
}

// Layouts that exclude each other, and all shapes but those of scales.
PrefillDims check_prefill_shapes(std::vector<Reason>& reasons, const PrefillProblem& problem);

// Of lse and lse_bias.
ExpectedShape lse_shape(const PrefillProblem& problem, const PrefillDims& dims);

// Scales, v_mean and lse_bias.
void check_prefill_scales(std::vector<Reason>& reasons, const PrefillProblem& problem, const PrefillDims& dims);

}  // namespace fp8attn
