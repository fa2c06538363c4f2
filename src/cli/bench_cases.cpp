#include "cli/bench_cases.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "builtin_cases.h"
#include "cli/errors.h"
#include "cli/json_text.h"
#include "cli/recipe.h"

namespace fp8attn::cli {
namespace {

using nlohmann::json;

// "16", or "16/4" where the second differs.
std::string pair_text(std::int64_t first, std::int64_t second) {
  return first == second ? fmt::format("{}", first) : fmt::format("{}/{}", first, second);
}

// In the order in which they vary: the last fastest. So cases of the same tensors are neighbours, and a run makes the
// tensors once.
constexpr std::array kNames = {"op",       "dtype",       "head_dim_qk", "head_dim_v", "heads_q", "hidden",
                               "heads_kv", "seqlen_q",    "seqlen_kv",   "batch",      "tokens",  "causal",
                               "recipe",   "granularity", "v_layout",    "p_mode",     "library"};

// All combinations of the values of a group.
std::vector<json> combinations(const std::string& place, const json& group) {
  if (!group.is_object()) throw usage_error(place, brief(group), "an object");
  for (const auto& [name, value] : group.items()) {
    if (std::find(kNames.begin(), kNames.end(), name) == kNames.end()) {
      throw usage_error(place, fmt::format("the name '{}'", shortened(name)),
                        fmt::format("one of {}", fmt::join(kNames, ", ")));
    }
  }
  std::vector<json> result{json::object()};
  for (const char* name : kNames) {
    if (!group.contains(name)) continue;
    const json values = group[name].is_array() ? group[name] : json::array({group[name]});
    if (values.empty()) throw usage_error(fmt::format("{}: {}", place, name), "[]", "at least one value");
    std::vector<json> longer;
    for (const json& shorter : result) {
      for (const json& value : values) {
        longer.push_back(shorter);
        longer.back()[name] = value;
      }
    }
    result = std::move(longer);
  }
  return result;
}

// One combination.
class CaseParser {
 public:
  CaseParser(const std::string& place, const json& values) : place_(place), values_(values) {}

  BenchCase parse() const {
    require_one_of("heads_q", "hidden");
    require_one_of("batch", "tokens");
    BenchCase item;
    item.op = op();
    item.library = library();
    item.dtype = dtype();
    item.head_dim_qk = count("head_dim_qk");
    item.head_dim_v = count("head_dim_v", item.head_dim_qk);
    item.heads_q = values_.contains("heads_q") ? count("heads_q") : quotient("hidden", item.head_dim_qk, "head_dim_qk");
    item.heads_kv = count("heads_kv", item.heads_q);
    item.seqlen_q = count("seqlen_q");
    item.seqlen_kv = count("seqlen_kv", item.seqlen_q);
    item.batch = values_.contains("batch") ? count("batch") : batch_of_tokens(item.seqlen_q);
    item.causal = flag("causal");
    item.v_layout = parse_v_layout(string("v_layout", name_of(item.v_layout)));
    item.p_mode = parse_p_mode(string("p_mode", name_of(item.p_mode)));
    item.recipe = recipe();
    item.granularity = granularity();
    check(item);
    return item;
  }

 private:
  // What makes no difference to a case is no part of it.
  void check(const BenchCase& item) const {
    if (item.op != BenchOp::kPrefill) return check_quantiser(item);
    if (values_.contains("granularity")) fail("granularity", "none beside prefill");
    if (!item.recipe.empty() && item.dtype == DType::kE4M3) fail("recipe", "none beside e4m3");
    if (!item.has_p_modes() && values_.contains("p_mode")) {
      fail("p_mode", "none beside bf16 and fp16: only e4m3 has several forms of P");
    }
    if (item.dtype != DType::kE4M3) {
      if (item.v_layout == VLayout::kPacked) fail("v_layout", "row-major beside bf16 and fp16");
    }
    if (item.library == BenchLibrary::kCudnn) {
      if (values_.contains("p_mode")) fail("p_mode", "none beside cudnn");
      if (item.v_layout == VLayout::kPacked) fail("v_layout", "row-major beside cudnn");
      if (!item.recipe.empty()) fail("recipe", "none beside cudnn");
    }
  }
  void check_quantiser(const BenchCase& item) const {
    for (const char* name : {"heads_kv", "seqlen_kv", "head_dim_v", "causal", "p_mode", "recipe", "library"}) {
      if (values_.contains(name)) fail(name, fmt::format("none beside {}", name_of(item.op)));
    }
    const bool packs = item.op == BenchOp::kPackV;
    if (packs && item.dtype != DType::kE4M3) fail("dtype", "e4m3 beside pack_v");
    if (!packs && item.dtype == DType::kE4M3) fail("dtype", "bf16 or fp16 beside quantize");
    if (packs && values_.contains("granularity")) fail("granularity", "none beside pack_v");
    if (packs && values_.contains("v_layout")) fail("v_layout", "none beside pack_v");
  }

  std::int64_t quotient(const char* name, std::int64_t divisor, const char* divisor_name) const {
    const std::int64_t dividend = count(name);
    if (dividend % divisor != 0) fail(name, fmt::format("a multiple of {} {}", divisor_name, divisor));
    return dividend / divisor;
  }
  std::int64_t batch_of_tokens(std::int64_t seqlen) const {
    return count("tokens") < seqlen ? 1 : quotient("tokens", seqlen, "seqlen_q");
  }

  [[noreturn]] void fail(const char* name, const std::string& expected) const {
    throw usage_error(fmt::format("{}: {}", place_, name), values_.contains(name) ? brief(values_[name]) : "nothing",
                      expected);
  }
  void require_one_of(const char* a, const char* b) const {
    if (values_.contains(a) == values_.contains(b)) {
      throw usage_error(place_, fmt::format("{} of {} and {}", values_.contains(a) ? "both" : "none", a, b), "one");
    }
  }
  std::int64_t count(const char* name, std::int64_t fallback = 0) const {
    if (!values_.contains(name) && fallback != 0) return fallback;
    constexpr std::uint64_t kMost = std::uint64_t{1} << 40;
    if (!values_.contains(name) || !values_[name].is_number_unsigned() || values_[name] == 0 || values_[name] > kMost) {
      fail(name, fmt::format("a positive integer, at most {}", kMost));
    }
    return values_[name].get<std::int64_t>();
  }
  bool flag(const char* name) const {
    if (!values_.contains(name)) return false;
    if (!values_[name].is_boolean()) fail(name, "true or false");
    return values_[name].get<bool>();
  }
  std::string string(const char* name, const char* fallback) const {
    if (!values_.contains(name)) return fallback;
    if (!values_[name].is_string()) fail(name, "a string");
    return values_[name].get<std::string>();
  }
  DType dtype() const {
    for (const DType dtype : {DType::kE4M3, DType::kBF16, DType::kFP16}) {
      if (string("dtype", "") == name_of(dtype)) return dtype;
    }
    fail("dtype", "one of e4m3, bf16, fp16");
  }
  BenchOp op() const {
    for (const BenchOp op : {BenchOp::kPrefill, BenchOp::kQuantize, BenchOp::kPackV}) {
      if (string("op", name_of(BenchOp::kPrefill)) == name_of(op)) return op;
    }
    fail("op", "one of prefill, quantize, pack_v");
  }
  ScaleGranularity granularity() const {
    using enum ScaleGranularity;
    for (const ScaleGranularity granularity : {kTensor, kHead, kBatchHead, kTokenHead, kChannel}) {
      if (string("granularity", name_of(kHead)) == name_of(granularity)) return granularity;
    }
    fail("granularity", "one of tensor, head, batch-head, token-head, channel");
  }
  std::string recipe() const {
    const std::string name = string("recipe", "");
    std::vector<const char*> names;
    for (const Recipe& recipe : recipes()) {
      if (!recipe.within_call) continue;
      if (name == recipe.name) return name;
      names.push_back(recipe.name);
    }
    if (!name.empty()) fail("recipe", fmt::format("one of {}", fmt::join(names, ", ")));
    return name;
  }
  BenchLibrary library() const {
    for (const BenchLibrary library : {BenchLibrary::kFp8attn, BenchLibrary::kCudnn}) {
      if (string("library", name_of(BenchLibrary::kFp8attn)) == name_of(library)) return library;
    }
    fail("library", "one of fp8attn, cudnn");
  }

  const std::string& place_;
  const json& values_;
};

std::string read_cases(const std::string& name) {
  std::vector<const char*> names;
  for (const auto& [builtin, text] : kBuiltinCases) {
    if (name == builtin) return text;
    names.push_back(builtin);
  }
  std::ifstream file(name);
  std::ostringstream text;
  if (!file || !(text << file.rdbuf())) {
    throw usage_error("--cases", fmt::format("'{}'", name),
                      fmt::format("a file, or one of {}", fmt::join(names, ", ")));
  }
  return text.str();
}

}  // namespace

const char* name_of(BenchLibrary library) { return library == BenchLibrary::kCudnn ? "cudnn" : "fp8attn"; }

const char* name_of(BenchOp op) {
  return op == BenchOp::kPrefill ? "prefill" : op == BenchOp::kQuantize ? "quantize" : "pack_v";
}

double BenchCase::flop() const {
  if (op != BenchOp::kPrefill) return 0;
  const double product = 2.0 * static_cast<double>(batch * heads_q) * static_cast<double>(seqlen_q) *
                         static_cast<double>(seqlen_kv) * static_cast<double>(head_dim_qk + head_dim_v);
  return causal ? product / 2 : product;
}

double BenchCase::bytes() const {
  if (op != BenchOp::kPrefill) {
    const auto elements = static_cast<double>(batch * seqlen_q * heads_q * head_dim_qk);
    const bool one_pass = granularity == ScaleGranularity::kTokenHead && v_layout == VLayout::kRowMajor;
    const int passes = op == BenchOp::kPackV || one_pass ? 1 : 2;
    return elements * static_cast<double>(passes * size_of(dtype) + 1);
  }
  const std::int64_t inputs = seqlen_q * heads_q * head_dim_qk + seqlen_kv * heads_kv * (head_dim_qk + head_dim_v);
  const std::int64_t outputs = seqlen_q * heads_q * head_dim_v;
  return static_cast<double>(batch * (inputs * size_of(dtype) + outputs * 2));
}

std::string BenchCase::tensors() const {
  return fmt::format("{} b{} h{} s{} d{}", name_of(dtype), batch, pair_text(heads_q, heads_kv),
                     pair_text(seqlen_q, seqlen_kv), pair_text(head_dim_qk, head_dim_v));
}

std::string BenchCase::name() const {
  if (op == BenchOp::kPackV) return fmt::format("pack_v {}", tensors());
  if (op == BenchOp::kQuantize) {
    return fmt::format("quantize {} {} {}", tensors(), name_of(granularity), name_of(v_layout));
  }
  std::string name = fmt::format("{} {}", tensors(), causal ? "causal" : "full");
  if (library == BenchLibrary::kCudnn) return name + " cudnn";
  if (!recipe.empty()) name += fmt::format(" {} {}", recipe, name_of(p_mode));
  if (dtype == DType::kE4M3) name += fmt::format(" {} {}", name_of(v_layout), name_of(p_mode));
  return name;
}

std::vector<BenchCase> load_cases(const std::string& name) {
  const json file = parse_json(name, "text", read_cases(name));
  if (!file.is_object() || file.size() != 1 || !file.contains("groups") || !file["groups"].is_array() ||
      file["groups"].empty()) {
    throw usage_error(name, brief(file), "{\"groups\": [...]}, an object with a list of one group or more");
  }
  std::vector<BenchCase> cases;
  for (std::size_t i = 0; i < file["groups"].size(); ++i) {
    const std::string place = fmt::format("{}: groups[{}]", name, i);
    for (const json& values : combinations(place, file["groups"][i])) {
      cases.push_back(CaseParser(place, values).parse());
    }
  }
  return cases;
}

}  // namespace fp8attn::cli
