#include <fmt/format.h>

#include <span>
#include <string>

#include "api/prefill_checks.h"

namespace fp8attn {
namespace {

enum class Operand { kQuery, kKey, kValue };

// The scale granularities that the prefill kernels of a device read: the one place that says so.
std::span<const ScaleGranularity> accepted_granularities(DeviceKind device, Operand operand) {
  using enum ScaleGranularity;
  static constexpr ScaleGranularity kCudaKey[] = {kTensor, kHead, kBatchHead};
  static constexpr ScaleGranularity kQueryKey[] = {kTensor, kHead, kBatchHead, kTokenHead};
  static constexpr ScaleGranularity kValue[] = {kTensor, kHead, kBatchHead, kChannel};
  if (operand == Operand::kValue) return kValue;
  if (operand == Operand::kKey && device == DeviceKind::kCuda) return kCudaKey;
  return kQueryKey;
}

// A scale and the tensor that it belongs to.
struct ScaleArgument {
  const char* name;
  const std::optional<TensorView>& scale;
  const char* owner;
  DType owner_dtype;
  Operand operand;
  TensorView tokens;  // shape without heads and channels
  std::int64_t heads, channels;
};

TensorView shape_of(const ScaleArgument& argument, ScaleGranularity granularity, std::int64_t b) {
  switch (granularity) {
    case ScaleGranularity::kTensor: return shape_only({1});
    case ScaleGranularity::kHead: return shape_only({argument.heads});
    case ScaleGranularity::kBatchHead: return shape_only({b, argument.heads});
    case ScaleGranularity::kTokenHead: return followed_by(argument.tokens, {argument.heads});
    case ScaleGranularity::kChannel: return shape_only({b, argument.heads, argument.channels});
  }
  return {};
}

void check_scale(std::vector<Reason>& reasons, const ScaleArgument& argument, std::int64_t b, Device device) {
  if (!argument.scale) return;
  const TensorView& scale = *argument.scale;
  if (argument.owner_dtype != DType::kE4M3) {
    reasons.push_back({argument.name, fmt::format("a scale of {} {}", name_text(argument.owner_dtype), argument.owner),
                       "none: only e4m3 tensors have scales"});
    return;
  }
  bool fitting = scale.rank == 0;
  std::vector<std::string> texts;
  for (ScaleGranularity granularity : accepted_granularities(device.kind, argument.operand)) {
    const TensorView expected = shape_of(argument, granularity, b);
    fitting |= fits(scale, expected);
    texts.push_back(fmt::format("{} ({})", shape_text(expected), name_of(granularity)));
  }
  if (!fitting) {
    reasons.push_back({fmt::format("{}.shape", argument.name), shape_text(scale),
                       fmt::format("{} for {} on {}", or_text(texts), argument.owner, name_of(device.kind))});
  }
  check_floats(reasons, argument.name, scale, "q", device);
}

void check_out_scale(std::vector<Reason>& reasons, const PrefillProblem& problem) {
  if (!problem.out_scale) return;
  if (problem.out.dtype != DType::kE4M3) {
    reasons.push_back({"out_scale", fmt::format("a scale of {} out", name_text(problem.out.dtype)),
                       "none: only e4m3 tensors have scales"});
    return;
  }
  if (problem.out_scale->rank != 0) check_shape(reasons, "out_scale", *problem.out_scale, {{1}, "[1] or rank 0"});
  check_floats(reasons, "out_scale", *problem.out_scale, "q", problem.q.device);
}

// What was subtracted before the conversion to e4m3.
void check_addend(std::vector<Reason>& reasons, const PrefillProblem& problem, const char* name,
                  const std::optional<TensorView>& addend, const ExpectedShape& expected) {
  if (!addend) return;
  if (key_dtype(problem) != DType::kE4M3) {
    reasons.push_back({name, fmt::format("a tensor beside {} k and v", name_text(key_dtype(problem))),
                       "none: only e4m3 tensors have had something subtracted"});
    return;
  }
  check_shape(reasons, name, *addend, expected);
  check_floats(reasons, name, *addend, "q", problem.q.device);
}

}  // namespace

void check_prefill_scales(std::vector<Reason>& reasons, const PrefillProblem& problem, const PrefillDims& n) {
  const DType keys = key_dtype(problem);
  for (const ScaleArgument& argument : {
           ScaleArgument{"q_scale", problem.q_scale, "q", problem.q.dtype, Operand::kQuery, n.queries, n.h_q, n.d_qk},
           ScaleArgument{"k_scale", problem.k_scale, "k", keys, Operand::kKey, n.keys, n.h_kv, n.d_qk},
           ScaleArgument{"v_scale", problem.v_scale, "v", keys, Operand::kValue, n.keys, n.h_kv, n.d_v},
       }) {
    check_scale(reasons, argument, n.b, problem.q.device);
  }
  check_out_scale(reasons, problem);
  check_addend(reasons, problem, "v_mean", problem.v_mean,
               {{n.b, n.h_kv, n.d_v}, "[b, h_kv, d_v]", {{"q", problem.q}, {"v", problem.v}}});
  check_addend(reasons, problem, "lse_bias", problem.lse_bias, lse_shape(problem, n));
  if (problem.lse_bias && !problem.lse) reasons.push_back({"lse_bias", "a bias of no lse", "an lse to add it to"});
}

}  // namespace fp8attn
