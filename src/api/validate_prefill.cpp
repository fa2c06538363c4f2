#include <fmt/format.h>

#include <cmath>
#include <string>

#include "api/prefill_checks.h"
#include "api/rotation.h"
#include "api/validate.h"

namespace fp8attn {
namespace {

// Which dtypes have kernels is the variants table's answer.
void check_dtypes(std::vector<Reason>& reasons, const PrefillProblem& problem) {
  using enum DType;
  const DType q = problem.q.dtype;
  const bool may_differ = q == kBF16 || q == kFP16;
  const auto is_accepted = [&](DType dtype) { return dtype == q || (may_differ && dtype == kE4M3); };
  if (is_accepted(problem.k.dtype)) {
    check_same_dtype(reasons, "v", problem.v, "k", problem.k.dtype);
  } else if (q == kI32 || q == kI64) {
    check_dtype(reasons, "q", problem.q, {kE4M3, kBF16, kFP16, kF32});  // k and v can be right
  } else {
    reasons.push_back({"k.dtype", name_text(problem.k.dtype),
                       fmt::format("{}, the dtype of q{}", name_text(q), may_differ ? ", or e4m3" : "")});
    const bool same_mistake = problem.v.dtype == problem.k.dtype;
    if (!same_mistake && !is_accepted(problem.v.dtype)) check_same_dtype(reasons, "v", problem.v, "q", q);
  }
  check_dtype(reasons, "out", problem.out, {kBF16, kFP16, kF32, kE4M3});
  if (problem.lse) check_dtype(reasons, "lse", *problem.lse, {kF32});
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

void check_indices(std::vector<Reason>& reasons, const PrefillProblem& problem) {
  const auto check = [&](const char* name, const std::optional<TensorView>& view) {
    if (view) check_integers(reasons, name, *view, "q", problem.q.device, {.last_dim_contiguous = false});
  };
  check("q_offsets", problem.q_offsets);
  check("kv_offsets", problem.kv_offsets);
  check("kv_lengths", problem.kv_lengths);
  check("block_table", problem.block_table);
}

void check_enums(std::vector<Reason>& reasons, const PrefillProblem& problem) {
  check_enum(reasons, "v_layout", problem.v_layout, {VLayout::kRowMajor, VLayout::kPacked});
  check_enum(reasons, "lse_base", problem.lse_base, {LseBase::kE, LseBase::k2});
  check_enum(reasons, "p_mode", problem.p_mode, {PMode::kExact, PMode::kDefault, PMode::kFast});
  using enum CpuArithmetic;
  check_enum(reasons, "cpu_arithmetic", problem.cpu_arithmetic, {kFloat32, kFloat64, kEmulated, kEmulated13});
}

// What becomes of scores before they are weights.
void check_logits(std::vector<Reason>& reasons, const PrefillProblem& problem, const PrefillDims& n) {
  if (problem.softmax_scale && !std::isfinite(*problem.softmax_scale)) {
    reasons.push_back({"softmax_scale", fmt::format("{}", *problem.softmax_scale), "a finite value"});
  }
  if (problem.window_left < -1) {
    reasons.push_back({"window_left", fmt::format("{}", problem.window_left), "a number of keys, or -1 for no limit"});
  }
  if (!std::isfinite(problem.softcap) || problem.softcap < 0) {
    reasons.push_back({"softcap", fmt::format("{}", problem.softcap), "a finite value from 0"});
  }
  if (!problem.attention_sink) return;
  const TensorView& sink = *problem.attention_sink;
  check_shape(reasons, "attention_sink", sink, {{n.h_q}, "[h_q]", {{"q", problem.q}}});
  check_floats(reasons, "attention_sink", sink, "q", problem.q.device);
}

// What was subtracted comes back right only where nothing but differences of logits counts, and where the weights of
// the keys sum to 1.
void check_subtracted(std::vector<Reason>& reasons, const PrefillProblem& problem) {
  const bool sink = problem.attention_sink.has_value(), cap = problem.softcap > 0;
  const bool centered = problem.quantize && problem.quantize->center_v;
  const bool smooth = problem.quantize && problem.quantize->smooth_k;
  const std::string other = cap ? "softcap" : "attention_sink";
  if (cap || sink) {
    const std::string why = fmt::format(": {} looks at the logits themselves", other);
    if (problem.lse_bias) reasons.push_back({"lse_bias", "a bias beside " + other, "none" + why});
    if (smooth) reasons.push_back({"quantize.smooth_k", "true beside " + other, "false" + why});
  }
  if (sink) {
    const std::string why = ": weights beside a sink do not sum to 1";
    if (problem.v_mean) reasons.push_back({"v_mean", "a mean beside attention_sink", "none" + why});
    if (centered) reasons.push_back({"quantize.center_v", "true beside attention_sink", "false" + why});
  }
}

// What a recipe asks of the tensors beside the rules for those of 16 bits.
void check_recipe(std::vector<Reason>& reasons, const PrefillProblem& problem, const PrefillDims& n) {
  if (!problem.quantize) return;
  using enum ScaleGranularity;
  const QuantizeRecipe& recipe = *problem.quantize;
  if (problem.q.dtype == DType::kE4M3 || problem.k.dtype == DType::kE4M3) {
    reasons.push_back({"quantize", "a recipe for e4m3 tensors", "none: they are quantised already"});
  }
  const bool cuda = problem.q.device.kind == DeviceKind::kCuda, floats = problem.q.dtype == DType::kF32 && !cuda;
  if (problem.q.dtype != DType::kE4M3 && !floats) check_dtype(reasons, "q", problem.q, {DType::kBF16, DType::kFP16});
  for (const auto& [argument, given] : {std::pair{"q_offsets", problem.q_offsets.has_value()},
                                        {"kv_offsets", problem.kv_offsets.has_value()},
                                        {"block_table", problem.block_table.has_value()},
                                        {"kv_lengths", problem.kv_lengths.has_value()}}) {
    if (!given) continue;
    reasons.push_back({argument, "a tensor beside quantize", "none: a recipe is for dense batches of even lengths"});
    break;
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
  if (cuda && n.d_v != kAnyDim && n.d_v % 64 != 0) {
    reasons.push_back({"v.shape", fmt::format("{} channels beside quantize", n.d_v), "a multiple of 64 on cuda"});
  }
}

}  // namespace

std::vector<NamedView> inputs_of(const PrefillProblem& problem) {
  std::vector<NamedView> inputs = {{"q", problem.q}, {"k", problem.k}, {"v", problem.v}};
  const auto add = [&](const char* name, const std::optional<TensorView>& view) {
    if (view) inputs.push_back({name, *view});
  };
  add("q_offsets", problem.q_offsets);
  add("kv_offsets", problem.kv_offsets);
  add("kv_lengths", problem.kv_lengths);
  add("block_table", problem.block_table);
  add("q_scale", problem.q_scale);
  add("k_scale", problem.k_scale);
  add("v_scale", problem.v_scale);
  add("out_scale", problem.out_scale);
  add("v_mean", problem.v_mean);
  add("lse_bias", problem.lse_bias);
  add("attention_sink", problem.attention_sink);
  return inputs;
}

std::vector<Reason> validate(const PrefillProblem& problem) {
  std::vector<Reason> reasons;
  const PrefillDims dims = check_prefill_shapes(reasons, problem);
  check_dtypes(reasons, problem);
  check_devices(reasons, problem);
  check_memories(reasons, problem);
  check_indices(reasons, problem);
  check_prefill_scales(reasons, problem, dims);
  check_logits(reasons, problem, dims);
  check_subtracted(reasons, problem);
  check_enums(reasons, problem);
  check_recipe(reasons, problem, dims);
  if (!reasons.empty()) return reasons;
  // Of views that nothing else is wrong with: the memory of others says nothing.
  const std::vector<NamedView> inputs = inputs_of(problem);
  check_apart(reasons, {"out", problem.out}, inputs);
  if (!problem.lse) return reasons;
  check_apart(reasons, {"lse", *problem.lse}, inputs);
  check_apart(reasons, {"lse", *problem.lse}, {{"out", problem.out}});
  return reasons;
}

}  // namespace fp8attn
