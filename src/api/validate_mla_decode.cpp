#include <fmt/format.h>

#include <array>
#include <cmath>
#include <cstdint>

#include "api/mla_checks.h"
#include "api/scale_shape.h"
#include "api/validate.h"

namespace fp8attn {
namespace {

struct Dims {
  std::int64_t b = kAnyDim, s_q = kAnyDim, h_q = kAnyDim;
};

void check_range(std::vector<Reason>& reasons, const TensorView& q, std::int64_t value, const char* what,
                 std::int64_t largest) {
  if (value >= 1 && value <= largest) return;
  reasons.push_back({"q.shape", fmt::format("{} {} in {}", value, what, shape_text(q)),
                     fmt::format("from 1 to {} {}", largest, what)});
}

Dims check_query(std::vector<Reason>& reasons, const MlaDecodeProblem& problem) {
  Dims n;
  const TensorView& q = problem.q;
  if (check_shape(reasons, "q", q, {{kAnyDim, kAnyDim, kAnyDim, kMlaDim}, "[b, s_q, h_q, 576]"})) {
    n = {q.shape[0], q.shape[1], q.shape[2]};
    check_range(reasons, q, n.s_q, "query tokens", kMaxMlaQueries);
    check_range(reasons, q, n.h_q, "query heads", kMaxMlaHeads);
  }
  check_memory(reasons, "q", q, {.tma = q.device.kind == DeviceKind::kCuda});
  return n;
}

void check_outputs(std::vector<Reason>& reasons, const MlaDecodeProblem& problem, const Dims& n) {
  const Device device = problem.q.device;
  const bool cuda = device.kind == DeviceKind::kCuda;
  check_shape(reasons, "out", problem.out, {{n.b, n.s_q, n.h_q, kLatentDim}, "[b, s_q, h_q, 512]", {{"q", problem.q}}});
  if (cuda) {
    check_dtype(reasons, "out", problem.out, {DType::kBF16, DType::kFP16});
  } else {
    check_dtype(reasons, "out", problem.out, {DType::kBF16, DType::kFP16, DType::kF32});
  }
  check_device(reasons, "out", problem.out, "q", device);
  check_memory(reasons, "out", problem.out, {.written = true, .tma = cuda});
  if (!problem.lse) return;
  check_shape(reasons, "lse", *problem.lse, {{n.b, n.h_q, n.s_q}, "[b, h_q, s_q]", {{"q", problem.q}}});
  check_dtype(reasons, "lse", *problem.lse, {DType::kF32});
  check_device(reasons, "lse", *problem.lse, "q", device);
  check_memory(reasons, "lse", *problem.lse, {.written = true});
}

void check_dense(std::vector<Reason>& reasons, const MlaDecodeProblem& problem, const Dims& n) {
  const Device device = problem.q.device;
  const TensorView &table = *problem.block_table, &lengths = *problem.lengths, &cache = problem.cache;
  if (check_shape(reasons, "block_table", table, {{n.b, kAnyDim}, "[b, max_pages]", {{"q", problem.q}}}) &&
      cache.rank == 3 && cache.shape[1] >= 1 && table.shape[1] > kMaxDim / cache.shape[1]) {
    reasons.push_back({"block_table.shape", fmt::format("{} for pages of {}", shape_text(table), cache.shape[1]),
                       fmt::format("room for at most {} tokens", kMaxDim)});
  }
  check_integers(reasons, "block_table", table, "q", device, {});
  check_shape(reasons, "lengths", lengths, {{n.b}, "[b]", {{"q", problem.q}}});
  check_integers(reasons, "lengths", lengths, "q", device, {.last_dim_contiguous = false});
}

void check_sparse(std::vector<Reason>& reasons, const MlaDecodeProblem& problem, const Dims& n) {
  const Device device = problem.q.device;
  check_shape(reasons, "indices", *problem.indices, {{n.b, n.s_q, kAnyDim}, "[b, s_q, topk]", {{"q", problem.q}}});
  check_integers(reasons, "indices", *problem.indices, "q", device, {});
  if (problem.topk_length) {
    check_shape(reasons, "topk_length", *problem.topk_length, {{n.b, n.s_q}, "[b, s_q]", {{"q", problem.q}}});
    check_integers(reasons, "topk_length", *problem.topk_length, "q", device, {.last_dim_contiguous = false});
  }
  if (problem.causal) reasons.push_back({"causal", "true with indices", "false: the indices say what a query sees"});
}

// Block table and lengths, or indices: one way of the two, and all of it.
void check_addressing(std::vector<Reason>& reasons, const MlaDecodeProblem& problem, const Dims& n) {
  const bool dense = problem.block_table && problem.lengths;
  if (problem.indices) {
    if (problem.block_table) reasons.push_back({"block_table", "a table beside indices", "one of the two"});
    if (problem.lengths) reasons.push_back({"lengths", "lengths beside indices", "topk_length, or none"});
    return check_sparse(reasons, problem, n);
  }
  if (problem.topk_length) reasons.push_back({"topk_length", "lengths without indices", "none, or indices"});
  if (dense) return check_dense(reasons, problem, n);
  reasons.push_back({problem.block_table ? "lengths" : "block_table", "none",
                     problem.block_table ? "lengths beside block_table" : "block_table and lengths, or indices"});
}

void check_query_scale(std::vector<Reason>& reasons, const MlaDecodeProblem& problem, const Dims& n) {
  using enum ScaleGranularity;
  if (!problem.q_scale) return;
  const TensorView& scale = *problem.q_scale;
  if (problem.q.dtype != DType::kE4M3) {
    reasons.push_back(
        {"q_scale", fmt::format("a scale of {} q", name_text(problem.q.dtype)), "none: only e4m3 tensors have scales"});
    return;
  }
  bool fitting = scale.rank == 0;
  std::vector<std::string> texts;
  for (ScaleGranularity granularity : {kTensor, kHead, kBatchHead, kTokenHead}) {
    const TensorView expected = scale_shape(granularity, n.b, n.s_q, n.h_q, kMlaDim);
    fitting |= fits(scale, expected);
    texts.push_back(fmt::format("{} ({})", shape_text(expected), name_of(granularity)));
  }
  if (!fitting) reasons.push_back({"q_scale.shape", shape_text(scale), or_text(texts)});
  check_floats(reasons, "q_scale", scale, "q", problem.q.device);
}

void check_sink(std::vector<Reason>& reasons, const MlaDecodeProblem& problem, const Dims& n) {
  if (!problem.attention_sink) return;
  const TensorView& sink = *problem.attention_sink;
  check_shape(reasons, "attention_sink", sink, {{n.h_q}, "[h_q]", {{"q", problem.q}}});
  check_floats(reasons, "attention_sink", sink, "q", problem.q.device);
}

// For views that nothing else is wrong with: the memory of others says nothing.
void check_outputs_apart(std::vector<Reason>& reasons, const MlaDecodeProblem& problem) {
  const std::array<std::pair<const char*, const std::optional<TensorView>*>, 7> optional_inputs = {
      {{"block_table", &problem.block_table},
       {"lengths", &problem.lengths},
       {"indices", &problem.indices},
       {"topk_length", &problem.topk_length},
       {"q_scale", &problem.q_scale},
       {"cache_scale", &problem.cache_scale},
       {"attention_sink", &problem.attention_sink}}};
  const auto check = [&](NamedView written) {
    check_apart(reasons, written, {{"q", problem.q}, {"cache", problem.cache}});
    for (const auto& [name, view] : optional_inputs) {
      if (*view) check_apart(reasons, written, {{name, **view}});
    }
  };
  check({"out", problem.out});
  if (!problem.lse) return;
  check({"lse", *problem.lse});
  check_apart(reasons, {"lse", *problem.lse}, {{"out", problem.out}});
}

}  // namespace

std::vector<Reason> validate(const MlaDecodeProblem& problem) {
  std::vector<Reason> reasons;
  const Device device = problem.q.device;
  const Dims dims = check_query(reasons, problem);
  check_cache(reasons, problem.cache, problem.format, {.tma = device.kind == DeviceKind::kCuda});
  check_device(reasons, "cache", problem.cache, "q", device);
  check_outputs(reasons, problem, dims);
  check_addressing(reasons, problem, dims);
  check_query_scale(reasons, problem, dims);
  check_cache_scale(reasons, problem.cache_scale, problem.format, device);
  check_sink(reasons, problem, dims);
  if (problem.softmax_scale && !std::isfinite(*problem.softmax_scale)) {
    reasons.push_back({"softmax_scale", fmt::format("{}", *problem.softmax_scale), "a finite value"});
  }
  using enum CpuArithmetic;
  check_enum(reasons, "cpu_arithmetic", problem.cpu_arithmetic, {kFloat32, kFloat64, kEmulated, kEmulated13});
  if (reasons.empty()) check_outputs_apart(reasons, problem);
  return reasons;
}

}  // namespace fp8attn
