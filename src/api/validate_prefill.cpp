#include <fmt/format.h>

#include <array>
#include <cmath>
#include <cstdint>
#include <span>

#include "api/rotation.h"
#include "api/scale_shape.h"
#include "api/validate.h"
#include "api/view_checks.h"

namespace fp8attn {
namespace {

struct Dims {
  std::int64_t b = kAnyDim, s_q = kAnyDim, h_q = kAnyDim, d_qk = kAnyDim;
  std::int64_t s_kv = kAnyDim, h_kv = kAnyDim, d_v = kAnyDim;
};

enum class Operand { kQuery, kKey, kValue };

// The scale granularities that the prefill kernels of a device read: the one place that says so.
std::span<const ScaleGranularity> accepted_granularities(DeviceKind device, Operand operand) {
  using enum ScaleGranularity;
  static constexpr std::array kCudaKey = {kTensor, kHead, kBatchHead};
  static constexpr std::array kQueryKey = {kTensor, kHead, kBatchHead, kTokenHead};
  static constexpr std::array kValue = {kTensor, kHead, kBatchHead, kChannel};
  if (operand == Operand::kValue) return kValue;
  if (operand == Operand::kKey && device == DeviceKind::kCuda) return kCudaKey;
  return kQueryKey;
}

struct ScaleArgument {
  const char* name;
  const char* owner;
  Operand operand;
  std::int64_t b, s, h, d;  // of the tensor that it scales
};

void check_scale_shape(std::vector<Reason>& reasons, const ScaleArgument& argument, const TensorView& scale,
                       DeviceKind device) {
  const auto& [name, owner, operand, b, s, h, d] = argument;
  if (scale.rank == 0) return;
  const auto accepted = accepted_granularities(device, operand);
  for (ScaleGranularity granularity : accepted) {
    if (fits(scale, scale_shape(granularity, b, s, h, d))) return;
  }
  std::vector<std::string> texts;
  for (ScaleGranularity granularity : accepted) {
    texts.push_back(fmt::format("{} ({})", shape_text(scale_shape(granularity, b, s, h, d)), name_of(granularity)));
  }
  reasons.push_back({fmt::format("{}.shape", name), shape_text(scale),
                     fmt::format("{} for {} on {}", or_text(texts), owner, name_of(device))});
}

void check_scale(std::vector<Reason>& reasons, const PrefillProblem& problem, const ScaleArgument& argument,
                 const std::optional<TensorView>& scale) {
  if (!scale) return;
  const TensorView& q = problem.q;
  if (q.dtype != DType::kE4M3) {
    reasons.push_back({argument.name, fmt::format("a scale of {} {}", name_of(q.dtype), argument.owner),
                       "none: only e4m3 tensors have scales"});
    return;
  }
  check_scale_shape(reasons, argument, *scale, q.device.kind);
  check_dtype(reasons, argument.name, *scale, {DType::kF32});
  check_device(reasons, argument.name, *scale, "q", q.device);
  check_memory(reasons, argument.name, *scale, {.last_dim_contiguous = false});
}

void check_scales(std::vector<Reason>& reasons, const PrefillProblem& problem, const Dims& n) {
  check_scale(reasons, problem, {"q_scale", "q", Operand::kQuery, n.b, n.s_q, n.h_q, n.d_qk}, problem.q_scale);
  check_scale(reasons, problem, {"k_scale", "k", Operand::kKey, n.b, n.s_kv, n.h_kv, n.d_qk}, problem.k_scale);
  check_scale(reasons, problem, {"v_scale", "v", Operand::kValue, n.b, n.s_kv, n.h_kv, n.d_v}, problem.v_scale);
}

void check_addend(std::vector<Reason>& reasons, const PrefillProblem& problem, const char* name,
                  const std::optional<TensorView>& addend, ExpectedShape expected) {
  if (!addend) return;
  if (problem.q.dtype != DType::kE4M3) {
    reasons.push_back({name, fmt::format("a tensor beside {} q, k and v", name_text(problem.q.dtype)),
                       "none: only e4m3 tensors have had something subtracted"});
    return;
  }
  check_shape(reasons, name, *addend, expected);
  check_dtype(reasons, name, *addend, {DType::kF32});
  check_device(reasons, name, *addend, "q", problem.q.device);
  check_memory(reasons, name, *addend, {.last_dim_contiguous = false});
}

void check_addends(std::vector<Reason>& reasons, const PrefillProblem& problem, const Dims& n) {
  check_addend(reasons, problem, "v_mean", problem.v_mean,
               {{n.b, n.h_kv, n.d_v}, "[b, h_kv, d_v]", {{"q", problem.q}, {"v", problem.v}}});
  check_addend(reasons, problem, "lse_bias", problem.lse_bias,
               {{n.b, n.h_q, n.s_q}, "[b, h_q, s_q]", {{"q", problem.q}}});
  if (problem.lse_bias && !problem.lse) reasons.push_back({"lse_bias", "a bias of no lse", "an lse to add it to"});
}

void check_channels(std::vector<Reason>& reasons, const char* name, const TensorView& view, std::int64_t channels) {
  if (channels != 0) return;
  reasons.push_back({fmt::format("{}.shape", name), shape_text(view), "at least one channel"});
}

void check_head_groups(std::vector<Reason>& reasons, const PrefillProblem& problem, const Dims& n) {
  if (n.h_q == kAnyDim || n.h_kv == kAnyDim) return;
  if (n.h_kv == 0 ? n.h_q == 0 : n.h_q % n.h_kv == 0) return;
  reasons.push_back({"k.shape", fmt::format("{} heads in {}", n.h_kv, shape_text(problem.k)),
                     fmt::format("a divisor of the {} heads of q, {}", n.h_q, shape_text(problem.q))});
}

void check_value_shape(std::vector<Reason>& reasons, const PrefillProblem& problem, Dims& n) {
  const TensorView& v = problem.v;
  const bool packed = problem.v_layout == VLayout::kPacked;
  const std::int64_t positions = n.s_kv == kAnyDim ? kAnyDim : packed_length(n.s_kv);
  const bool fits =
      packed
          ? check_shape(reasons, "v", v,
                        {{n.b, n.h_kv, kAnyDim, positions},
                         "packed [b, h_kv, d_v, s_kv rounded up to 16]",
                         {{"q", problem.q}, {"k", problem.k}}})
          : check_shape(reasons, "v", v,
                        {{n.b, n.s_kv, n.h_kv, kAnyDim}, "[b, s_kv, h_kv, d_v]", {{"q", problem.q}, {"k", problem.k}}});
  if (!fits) return;
  n.d_v = v.shape[packed ? 2 : 3];
  check_channels(reasons, "v", v, n.d_v);
}

Dims check_shapes(std::vector<Reason>& reasons, const PrefillProblem& problem) {
  Dims n;
  const TensorView &q = problem.q, &k = problem.k;
  if (check_shape(reasons, "q", q, {{kAnyDim, kAnyDim, kAnyDim, kAnyDim}, "[b, s_q, h_q, d_qk]"})) {
    n.b = q.shape[0], n.s_q = q.shape[1], n.h_q = q.shape[2], n.d_qk = q.shape[3];
    check_channels(reasons, "q", q, n.d_qk);
  }
  if (check_shape(reasons, "k", k, {{n.b, kAnyDim, kAnyDim, n.d_qk}, "[b, s_kv, h_kv, d_qk]", {{"q", q}}})) {
    n.s_kv = k.shape[1], n.h_kv = k.shape[2];
  }
  check_head_groups(reasons, problem, n);
  check_value_shape(reasons, problem, n);
  check_shape(reasons, "out", problem.out,
              {{n.b, n.s_q, n.h_q, n.d_v}, "[b, s_q, h_q, d_v]", {{"q", q}, {"v", problem.v}}});
  if (problem.lse) check_shape(reasons, "lse", *problem.lse, {{n.b, n.h_q, n.s_q}, "[b, h_q, s_q]", {{"q", q}}});
  return n;
}

// Which dtypes of q have kernels is the variants table's answer.
void check_dtypes(std::vector<Reason>& reasons, const PrefillProblem& problem) {
  check_same_dtype(reasons, "k", problem.k, "q", problem.q.dtype);
  check_same_dtype(reasons, "v", problem.v, "q", problem.q.dtype);
  if (problem.q.device.kind == DeviceKind::kCuda) {
    check_dtype(reasons, "out", problem.out, {DType::kBF16, DType::kFP16});
  } else {
    check_dtype(reasons, "out", problem.out, {DType::kBF16, DType::kFP16, DType::kF32});
  }
  if (problem.lse) check_dtype(reasons, "lse", *problem.lse, {DType::kF32});
}

void check_devices(std::vector<Reason>& reasons, const PrefillProblem& problem) {
  const Device device = problem.q.device;
  check_device(reasons, "k", problem.k, "q", device);
  check_device(reasons, "v", problem.v, "q", device);
  check_device(reasons, "out", problem.out, "q", device);
  if (problem.lse) check_device(reasons, "lse", *problem.lse, "q", device);
}

void check_memories(std::vector<Reason>& reasons, const PrefillProblem& problem) {
  const bool tma = problem.q.device.kind == DeviceKind::kCuda;
  check_memory(reasons, "q", problem.q, {.tma = tma});
  check_memory(reasons, "k", problem.k, {.tma = tma});
  check_memory(reasons, "v", problem.v, {.tma = tma});
  check_memory(reasons, "out", problem.out, {.written = true, .tma = tma});
  if (problem.lse) check_memory(reasons, "lse", *problem.lse, {.written = true});
}

void check_enums(std::vector<Reason>& reasons, const PrefillProblem& problem) {
  check_enum(reasons, "v_layout", problem.v_layout, {VLayout::kRowMajor, VLayout::kPacked});
  check_enum(reasons, "p_mode", problem.p_mode, {PMode::kExact, PMode::kDefault, PMode::kFast});
  using enum CpuArithmetic;
  check_enum(reasons, "cpu_arithmetic", problem.cpu_arithmetic, {kFloat32, kFloat64, kEmulated, kEmulated13});
}

// What a recipe asks of the tensors beside the rules for those of 16 bits.
void check_recipe(std::vector<Reason>& reasons, const PrefillProblem& problem, const Dims& n) {
  if (!problem.quantize) return;
  using enum ScaleGranularity;
  const QuantizeRecipe& recipe = *problem.quantize;
  if (problem.q.dtype == DType::kE4M3) {
    reasons.push_back({"quantize", "a recipe for e4m3 tensors", "none: they are quantised already"});
  }
  if (problem.v_layout == VLayout::kPacked) {
    reasons.push_back({"v_layout", "packed beside quantize", name_of(VLayout::kRowMajor)});
  }
  const auto check_granularity = [&](const char* name, ScaleGranularity got, ScaleGranularity first,
                                     ScaleGranularity second) {
    if (got == first || got == second) return;
    reasons.push_back({name, name_text(got), or_text({name_of(first), name_of(second)})});
  };
  check_granularity("quantize.q_scale", recipe.q_scale, kTokenHead, kBatchHead);
  check_granularity("quantize.v_scale", recipe.v_scale, kBatchHead, kChannel);
  if (recipe.hadamard && n.d_qk != kAnyDim && !can_rotate(n.d_qk)) {
    reasons.push_back(
        {"quantize.hadamard", fmt::format("true with head dim {}", n.d_qk), "false, or head dim 64, 128, 192 or 256"});
  }
}

// For views that nothing else is wrong with: the memory of others says nothing.
void check_outputs_apart(std::vector<Reason>& reasons, const PrefillProblem& problem) {
  const auto check = [&](NamedView written) {
    check_apart(reasons, written, {{"q", problem.q}, {"k", problem.k}, {"v", problem.v}});
    if (problem.q_scale) check_apart(reasons, written, {{"q_scale", *problem.q_scale}});
    if (problem.k_scale) check_apart(reasons, written, {{"k_scale", *problem.k_scale}});
    if (problem.v_scale) check_apart(reasons, written, {{"v_scale", *problem.v_scale}});
    if (problem.v_mean) check_apart(reasons, written, {{"v_mean", *problem.v_mean}});
    if (problem.lse_bias) check_apart(reasons, written, {{"lse_bias", *problem.lse_bias}});
  };
  check({"out", problem.out});
  if (!problem.lse) return;
  check({"lse", *problem.lse});
  check_apart(reasons, {"lse", *problem.lse}, {{"out", problem.out}});
}

}  // namespace

std::vector<Reason> validate(const PrefillProblem& problem) {
  std::vector<Reason> reasons;
  const Dims dims = check_shapes(reasons, problem);
  check_dtypes(reasons, problem);
  check_devices(reasons, problem);
  check_memories(reasons, problem);
  check_scales(reasons, problem, dims);
  check_addends(reasons, problem, dims);
  if (problem.softmax_scale && !std::isfinite(*problem.softmax_scale)) {
    reasons.push_back({"softmax_scale", fmt::format("{}", *problem.softmax_scale), "a finite value"});
  }
  check_enums(reasons, problem);
  check_recipe(reasons, problem, dims);
  if (reasons.empty()) check_outputs_apart(reasons, problem);
  return reasons;
}

}  // namespace fp8attn
