#include "cli/bench_cases.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>
#include <sstream>

#include "api/mask.h"
#include "builtin_cases.h"
#include "cli/errors.h"
#include "cli/json_text.h"
#include "cli/recipe.h"

namespace fp8attn::cli {
namespace {

using nlohmann::json;

constexpr std::uint64_t kMost = std::uint64_t{1} << 40;  // of any number in a file

// "16", or "16/4" where the second differs.
std::string pair_text(std::int64_t first, std::int64_t second) {
  return first == second ? fmt::format("{}", first) : fmt::format("{}/{}", first, second);
}

// In the order in which they vary: the last fastest. So cases of the same tensors are neighbours, and a run makes the
// tensors once.
constexpr std::array kNames = {"op",          "dtype",     "kv_dtype", "head_dim_qk", "head_dim_v",  "heads_q",
                               "hidden",      "heads_kv",  "seqlen_q", "seqlen_kv",   "batch",       "tokens",
                               "layout",      "page_size", "lengths",  "causal",      "window_left", "recipe",
                               "granularity", "v_layout",  "p_mode",   "library"};

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
    item.op = one_of("op", {BenchOp::kPrefill, BenchOp::kQuantize, BenchOp::kPackV});
    item.library = one_of("library", {BenchLibrary::kFp8attn, BenchLibrary::kCudnn});
    item.dtype = dtype();
    item.kv_dtype = kv_dtype(item.dtype);
    item.head_dim_qk = count("head_dim_qk");
    item.head_dim_v = count("head_dim_v", item.head_dim_qk);
    item.heads_q = values_.contains("heads_q") ? count("heads_q") : quotient("hidden", item.head_dim_qk, "head_dim_qk");
    item.heads_kv = count("heads_kv", item.heads_q);
    item.seqlen_q = count("seqlen_q");
    item.seqlen_kv = count("seqlen_kv", item.seqlen_q);
    item.batch = values_.contains("batch") ? count("batch") : batch_of_tokens(item.seqlen_q);
    item.layout = one_of("layout", {BatchLayout::kDense, BatchLayout::kRagged, BatchLayout::kPaged});
    if (item.layout == BatchLayout::kPaged) item.page_size = count("page_size");
    item.lengths = one_of("lengths", {Lengths::kEqual, Lengths::kLogUniform});
    item.causal = flag("causal");
    item.window_left = window_left();
    item.v_layout = parse_v_layout(string("v_layout", name_of(item.v_layout)));
    item.p_mode = parse_p_mode(string("p_mode", name_of(item.p_mode)));
    item.recipe = recipe();
    using enum ScaleGranularity;
    item.granularity = one_of("granularity", {kHead, kTensor, kBatchHead, kTokenHead, kChannel});
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
    check_batch(item);
    check_packed(item);
    if (item.library == BenchLibrary::kCudnn) {
      if (values_.contains("p_mode")) fail("p_mode", "none beside cudnn");
      if (item.v_layout == VLayout::kPacked) fail("v_layout", "row-major beside cudnn");
      if (!item.recipe.empty()) fail("recipe", "none beside cudnn");
    }
  }
  void check_batch(const BenchCase& item) const {
    const bool paged = item.layout == BatchLayout::kPaged;
    if (!paged && values_.contains("page_size")) fail("page_size", "none beside dense and ragged");
    if (item.layout == BatchLayout::kDense && values_.contains("lengths")) fail("lengths", "none beside dense");
    if (item.lengths == Lengths::kLogUniform && item.seqlen_q > item.seqlen_kv) {
      fail("seqlen_q", fmt::format("at most seqlen_kv {} beside log-uniform", item.seqlen_kv));
    }
    if (item.window_left >= 0 && !item.causal) fail("window_left", "-1 beside a mask that is not causal");
    if (item.window_left >= item.seqlen_kv) fail("window_left", fmt::format("below seqlen_kv {}", item.seqlen_kv));
    const char* other = item.library == BenchLibrary::kCudnn ? "cudnn" : item.recipe.empty() ? nullptr : "a recipe";
    if (other == nullptr) return;
    if (item.layout != BatchLayout::kDense) fail("layout", fmt::format("dense beside {}", other));
    if (item.window_left >= 0) fail("window_left", fmt::format("-1 beside {}", other));
    if (item.kv_dtype != item.dtype) fail("kv_dtype", fmt::format("none beside {}", other));
  }
  void check_packed(const BenchCase& item) const {
    constexpr std::int64_t kPackedPage = 64;
    if (item.v_layout != VLayout::kPacked) return;
    if (item.kv_dtype != DType::kE4M3) fail("v_layout", "row-major beside bf16 and fp16");
    if (item.layout == BatchLayout::kRagged) fail("v_layout", "row-major beside ragged");
    if (item.page_size % kPackedPage != 0) {
      fail("v_layout", fmt::format("row-major beside a page_size that is no multiple of {}", kPackedPage));
    }
  }
  void check_quantiser(const BenchCase& item) const {
    for (const char* name : {"kv_dtype", "heads_kv", "seqlen_kv", "head_dim_v", "layout", "page_size", "lengths",
                             "causal", "window_left", "p_mode", "recipe", "library"}) {
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
  DType kv_dtype(DType dtype) const {
    if (!values_.contains("kv_dtype")) return dtype;
    if (dtype == DType::kE4M3) fail("kv_dtype", "none beside e4m3");
    if (string("kv_dtype", "") != name_of(DType::kE4M3)) fail("kv_dtype", "e4m3");
    return DType::kE4M3;
  }
  std::int64_t window_left() const {
    if (!values_.contains("window_left")) return -1;
    const json& value = values_["window_left"];
    // Of JSON's unsigned integers one equals -1.
    const bool good = value.is_number_unsigned() ? value <= kMost : value.is_number_integer() && value == -1;
    if (!good) fail("window_left", fmt::format("a number of keys, at most {}, or -1 for no limit", kMost));
    return value.get<std::int64_t>();
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
  // The first where the group names none.
  template <class Value>
  Value one_of(const char* name, std::initializer_list<Value> values) const {
    std::vector<const char*> names;
    for (const Value value : values) {
      if (string(name, name_of(*values.begin())) == name_of(value)) return value;
      names.push_back(name_of(value));
    }
    fail(name, fmt::format("one of {}", fmt::join(names, ", ")));
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

// Of one sequence.
Mask mask_of(const BenchCase& item, std::int64_t kv_length) {
  return {.query_length = static_cast<int>(item.q_length(kv_length)),
          .key_length = static_cast<int>(kv_length),
          .causal = item.causal,
          .window_left = clamped_window(item.window_left)};
}

// Of a query and a key that it sees, over all sequences.
double visible_pairs(const BenchCase& item) {
  const bool even = item.lengths == Lengths::kEqual && item.window_left < 0;
  if (even && (!item.causal || item.seqlen_q == item.seqlen_kv)) {
    const double all =
        static_cast<double>(item.batch) * static_cast<double>(item.seqlen_q) * static_cast<double>(item.seqlen_kv);
    return item.causal ? all / 2 : all;
  }
  double pairs = 0;
  for (const std::int64_t length : item.kv_lengths()) {
    const Mask mask = mask_of(item, length);
    for (int row = 0; row < mask.query_length; ++row) pairs += mask.visible_end(row) - mask.visible_begin(row);
  }
  return pairs;
}

std::string shape_text(const BenchCase& item) {
  const char *dtype = name_of(item.dtype), *kv_dtype = name_of(item.kv_dtype);
  return fmt::format("{} b{} h{} s{}{} d{}",
                     item.dtype == item.kv_dtype ? dtype : fmt::format("{}/{}", dtype, kv_dtype), item.batch,
                     pair_text(item.heads_q, item.heads_kv),
                     item.lengths == Lengths::kEqual ? "" : "<=", pair_text(item.seqlen_q, item.seqlen_kv),
                     pair_text(item.head_dim_qk, item.head_dim_v));
}

// "", " ragged", " paged64 log-uniform".
std::string layout_text(const BenchCase& item) {
  if (item.layout == BatchLayout::kDense) return "";
  return fmt::format(" {}{}{}", name_of(item.layout), item.page_size == 0 ? "" : fmt::format("{}", item.page_size),
                     item.lengths == Lengths::kEqual ? "" : " log-uniform");
}

}  // namespace

const char* name_of(BenchLibrary library) { return library == BenchLibrary::kCudnn ? "cudnn" : "fp8attn"; }

const char* name_of(BenchOp op) {
  return op == BenchOp::kPrefill ? "prefill" : op == BenchOp::kQuantize ? "quantize" : "pack_v";
}

const char* name_of(BatchLayout layout) {
  return layout == BatchLayout::kDense ? "dense" : layout == BatchLayout::kRagged ? "ragged" : "paged";
}

const char* name_of(Lengths lengths) { return lengths == Lengths::kEqual ? "equal" : "log-uniform"; }

bool BenchCase::is_batch() const {
  constexpr std::int64_t kHostTokens = 65536;
  if (op != BenchOp::kPrefill || library != BenchLibrary::kFp8attn || !recipe.empty()) return false;
  return layout != BatchLayout::kDense || window_left >= 0 || kv_dtype != dtype ||
         batch > kHostTokens / std::max(seqlen_q, seqlen_kv);
}

std::vector<std::int64_t> BenchCase::kv_lengths() const {
  std::vector<std::int64_t> result(batch, seqlen_kv);
  if (lengths == Lengths::kEqual) return result;
  std::mt19937 generator(11);  // 64 lengths up to 32768 have about as many tokens as on average
  for (std::int64_t& length : result) {
    const double share = generator() * 0x1p-32;
    const double real = std::exp(share * std::log(static_cast<double>(seqlen_kv) + 1));
    length = std::clamp(static_cast<std::int64_t>(real), std::int64_t{1}, seqlen_kv);
  }
  return result;
}

std::int64_t BenchCase::q_length(std::int64_t kv_length) const {
  return lengths == Lengths::kEqual ? seqlen_q : std::min(seqlen_q, kv_length);
}

double BenchCase::flop() const {
  if (op != BenchOp::kPrefill) return 0;
  return 2.0 * visible_pairs(*this) * static_cast<double>(heads_q) * static_cast<double>(head_dim_qk + head_dim_v);
}

double BenchCase::bytes() const {
  if (op != BenchOp::kPrefill) {
    const auto elements = static_cast<double>(batch * seqlen_q * heads_q * head_dim_qk);
    const bool one_pass = granularity == ScaleGranularity::kTokenHead && v_layout == VLayout::kRowMajor;
    const int passes = op == BenchOp::kPackV || one_pass ? 1 : 2;
    return elements * static_cast<double>(passes * size_of(dtype) + 1);
  }
  std::int64_t queries = 0, keys = 0;
  for (const std::int64_t length : kv_lengths()) {
    queries += q_length(length);
    keys += length - mask_of(*this, length).visible_begin(0);
  }
  const std::int64_t query_bytes = heads_q * (head_dim_qk * size_of(dtype) + head_dim_v * 2);
  const std::int64_t key_bytes = heads_kv * (head_dim_qk + head_dim_v) * size_of(kv_dtype);
  return static_cast<double>(queries * query_bytes + keys * key_bytes);
}

std::string BenchCase::tensors() const { return shape_text(*this) + layout_text(*this); }

std::string BenchCase::name() const {
  if (op == BenchOp::kPackV) return fmt::format("pack_v {}", tensors());
  if (op == BenchOp::kQuantize) {
    return fmt::format("quantize {} {} {}", tensors(), name_of(granularity), name_of(v_layout));
  }
  std::string name = fmt::format("{} {}", shape_text(*this), causal ? "causal" : "full");
  if (window_left >= 0) name += fmt::format(" window{}", window_left);
  name += layout_text(*this);
  if (library == BenchLibrary::kCudnn) return name + " cudnn";
  if (!recipe.empty()) name += fmt::format(" {} {}", recipe, name_of(p_mode));
  if (kv_dtype == DType::kE4M3) name += fmt::format(" {} {}", name_of(v_layout), name_of(p_mode));
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
