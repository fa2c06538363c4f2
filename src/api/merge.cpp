#include "fp8attn/merge.h"

#include "api/dispatch.h"
#include "api/validate.h"
#include "cpu/merge.h"
#ifdef FP8ATTN_WITH_CUDA
#include "cuda/sm90/merge/merge.h"
#endif

namespace fp8attn {
namespace {

std::vector<Reason> check(const MergeAttentionProblem& problem) {
  std::vector<Reason> reasons = validate(problem);
  if (auto reason = device_reason("out.device", problem.out.device)) reasons.push_back(*std::move(reason));
  return reasons;
}

// The view with a dim of size 1 before dim `at`.
template <class View>
View with_dim(View view, int at) {
  for (int i = view.rank++; i > at; --i) {
    view.shape[i] = view.shape[i - 1];
    view.strides[i] = view.strides[i - 1];
  }
  view.shape[at] = 1;
  view.strides[at] = 0;
  return view;
}

// Rows of ragged batches are the rows of one sequence: a merge does not ask where sequences begin.
MergeAttentionProblem as_dense(MergeAttentionProblem problem) {
  if (problem.out.rank == 4) return problem;
  problem.outs = with_dim(problem.outs, 1);
  problem.lses = with_dim(problem.lses, 1);
  problem.out = with_dim(problem.out, 0);
  if (problem.lse) problem.lse = with_dim(*problem.lse, 0);
  return problem;
}

}  // namespace

Support supports(const MergeAttentionProblem& problem) { return to_support(check(problem)); }

void merge_attention(const MergeAttentionProblem& problem, Stream stream) {
  throw_first("merge_attention", check(problem));
  if (problem.out.count() == 0) return;
#ifdef FP8ATTN_WITH_CUDA
  if (problem.out.device.kind == DeviceKind::kCuda) return cuda::merge_attention(as_dense(problem), stream);
#endif
  cpu::merge_attention(as_dense(problem), stream);
}

}  // namespace fp8attn
