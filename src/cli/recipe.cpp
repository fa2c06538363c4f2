#include "cli/recipe.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

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

std::string describe(const Recipe& recipe) {
  if (recipe.dtype != DType::kE4M3) return fmt::format("{} throughout", name_of(recipe.dtype));
  return fmt::format("e4m3, one scale per {} (q), {} (k), {} (v); P {}", name_of(recipe.query), name_of(recipe.key),
                     name_of(recipe.value), name_of(recipe.p_mode));
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
