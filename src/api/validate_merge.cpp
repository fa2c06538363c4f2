#include <string>

#include "api/validate.h"
#include "api/view_checks.h"

namespace fp8attn {
namespace {

TensorView in_parts(std::int64_t parts, const TensorView& shape) {
  TensorView all = shape_only({parts});
  for (int i = 0; i < shape.rank; ++i) all.shape[all.rank++] = shape.shape[i];
  return all;
}

// Out says what the rows are, dense or ragged; the others have to have them.
void check_shapes(std::vector<Reason>& reasons, const MergeAttentionProblem& problem) {
  const MutableTensorView& out = problem.out;
  if (out.rank != 3 && out.rank != 4) {
    reasons.push_back({"out.shape", shape_text(out), "rank 4, [b, s_q, h_q, d_v], or rank 3, [total_q, h_q, d_v]"});
    return;
  }
  const bool ragged = out.rank == 3;
  const std::string row = ragged ? "total_q, h_q, d_v]" : "b, s_q, h_q, d_v]";
  const std::string lse_row = ragged ? "h_q, total_q]" : "b, h_q, s_q]";
  const TensorView any =
      ragged ? shape_only({kAnyDim, kAnyDim, kAnyDim}) : shape_only({kAnyDim, kAnyDim, kAnyDim, kAnyDim});
  if (!check_shape(reasons, "out", out, {any, ("[" + row).c_str()})) return;
  if (out.shape[out.rank - 1] == 0) reasons.push_back({"out.shape", shape_text(out), "at least one channel"});
  const bool counted =
      check_shape(reasons, "outs", problem.outs, {in_parts(kAnyDim, out), ("[parts, " + row).c_str(), {{"out", out}}});
  const std::int64_t parts = counted ? problem.outs.shape[0] : kAnyDim;
  const auto& n = out.shape;
  const TensorView lse = ragged ? shape_only({n[1], n[0]}) : shape_only({n[0], n[2], n[1]});
  check_shape(reasons, "lses", problem.lses,
              {in_parts(parts, lse), ("[parts, " + lse_row).c_str(), {{"outs", problem.outs}}});
  if (problem.lse) check_shape(reasons, "lse", *problem.lse, {lse, ("[" + lse_row).c_str(), {{"out", out}}});
}

}  // namespace

std::vector<Reason> validate(const MergeAttentionProblem& problem) {
  using enum DType;
  std::vector<Reason> reasons;
  const auto& [outs, lses, out, lse, lse_base] = problem;
  const Device device = out.device;
  const bool cuda = device.kind == DeviceKind::kCuda;
  check_shapes(reasons, problem);
  check_dtype(reasons, "outs", outs, {kBF16, kFP16, kF32});
  check_device(reasons, "outs", outs, "out", device);
  check_memory(reasons, "outs", outs, {.tma = cuda});
  check_dtype(reasons, "lses", lses, {kF32});
  check_device(reasons, "lses", lses, "out", device);
  check_memory(reasons, "lses", lses, {});
  check_dtype(reasons, "out", out, {kBF16, kFP16, kF32});
  check_memory(reasons, "out", out, {.written = true, .tma = cuda});
  if (lse) {
    check_dtype(reasons, "lse", *lse, {kF32});
    check_device(reasons, "lse", *lse, "out", device);
    check_memory(reasons, "lse", *lse, {.written = true});
  }
  check_enum(reasons, "lse_base", lse_base, {LseBase::kE, LseBase::k2});
  if (!reasons.empty()) return reasons;
  check_apart(reasons, {"out", out}, {{"outs", outs}, {"lses", lses}});
  if (lse) check_apart(reasons, {"lse", *lse}, {{"outs", outs}, {"lses", lses}, {"out", out}});
  return reasons;
}

}  // namespace fp8attn
