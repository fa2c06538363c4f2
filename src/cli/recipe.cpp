#include "cli/recipe.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <vector>

#include "cli/errors.h"

namespace fp8attn::cli {
namespace {

constexpr Recipe quantised(const char* name, ScaleGranularity query_key, ScaleGranularity value,
                           PMode p_mode = PMode::kDefault) {
  return {name, DType::kE4M3, query_key, query_key, value, p_mode};
}

constexpr Recipe converted(const char* name, DType dtype) {
  using enum ScaleGranularity;
  return {name, dtype, kTensor, kTensor, kTensor, PMode::kDefault};
}

constexpr Recipe within_call(const char* name, QuantizeRecipe recipe) {
  return {name, DType::kBF16, recipe.q_scale, ScaleGranularity::kBatchHead, recipe.v_scale, PMode::kDefault, recipe};
}

using enum ScaleGranularity;
constexpr std::array kRecipes = {
    quantised("tensor", kTensor, kTensor),
    quantised("head", kHead, kHead),
    quantised("head/exact-p", kHead, kHead, PMode::kExact),
    quantised("head/fast-p", kHead, kHead, PMode::kFast),
    quantised("batch-head", kBatchHead, kBatchHead),
    quantised("channel-v", kHead, kChannel),
    quantised("token", kTokenHead, kHead),
    quantised("token+channel-v", kTokenHead, kChannel),
    within_call("smooth-k", {.smooth_k = true}),
    within_call("hadamard", {.hadamard = true}),
    within_call("smooth-k+hadamard", {.smooth_k = true, .hadamard = true}),
    within_call("smooth-k+hadamard+center-v", {.smooth_k = true, .hadamard = true, .center_v = true}),
    converted("fp16", DType::kFP16),
    converted("bf16", DType::kBF16),
};

// The one of `values` whose name_of() is `name`.
template <class Value, std::size_t kCount>
Value parse(const char* option, const std::string& name, const std::array<Value, kCount>& values) {
  std::vector<const char*> names;
  for (const Value value : values) {
    if (name == name_of(value)) return value;
    names.push_back(name_of(value));
  }
  throw usage_error(option, fmt::format("'{}'", name), fmt::format("one of {}", fmt::join(names, ", ")));
}

}  // namespace

std::span<const Recipe> recipes() { return kRecipes; }

const Recipe& find_recipe(const std::string& name) {
  std::vector<const char*> names;
  for (const Recipe& recipe : kRecipes) {
    if (name == recipe.name) return recipe;
    names.push_back(recipe.name);
  }
  throw usage_error("--recipe", fmt::format("'{}'", name),
                    fmt::format("one of {}, {}", fmt::join(names, ", "), kNoRecipe));
}

std::string misfit(const Recipe& recipe, std::int64_t head_dim_qk) {
  constexpr std::array<std::int64_t, 4> kRotated = {64, 128, 192, 256};
  if (!recipe.within_call || !recipe.within_call->hadamard) return "";
  if (std::find(kRotated.begin(), kRotated.end(), head_dim_qk) != kRotated.end()) return "";
  return fmt::format("head dim {}, but rotations have {}", head_dim_qk, fmt::join(kRotated, ", "));
}

std::string describe(const Recipe& recipe) {
  const std::string scales = fmt::format("one scale per {} (q), {} (k), {} (v)", name_of(recipe.query),
                                         name_of(recipe.key), name_of(recipe.value));
  if (recipe.within_call) {
    return fmt::format("16 bits, e4m3 within the call, {}{}{}{}", scales,
                       recipe.within_call->smooth_k ? ", mean of the keys subtracted" : "",
                       recipe.within_call->hadamard ? ", q and k rotated" : "",
                       recipe.within_call->center_v ? ", mean of v subtracted" : "");
  }
  if (recipe.dtype != DType::kE4M3) return fmt::format("{} throughout", name_of(recipe.dtype));
  return fmt::format("e4m3, {}; P {}", scales, name_of(recipe.p_mode));
}

PMode parse_p_mode(const std::string& name) {
  return parse("--p-mode", name, std::array{PMode::kExact, PMode::kDefault, PMode::kFast});
}

VLayout parse_v_layout(const std::string& name) {
  return parse("--v-layout", name, std::array{VLayout::kRowMajor, VLayout::kPacked});
}

CpuArithmetic parse_arithmetic(const std::string& name, Device device, CpuArithmetic fallback) {
  if (name.empty()) return fallback;
  const auto arithmetic = parse("--arithmetic", name,
                                std::array{CpuArithmetic::kFloat32, CpuArithmetic::kFloat64, CpuArithmetic::kEmulated,
                                           CpuArithmetic::kEmulated13});
  if (device.kind == DeviceKind::kCuda) {
    throw usage_error("--arithmetic", fmt::format("'{}' on cuda:{}", name, device.index), "--device cpu beside it");
  }
  return arithmetic;
}

}  // namespace fp8attn::cli
