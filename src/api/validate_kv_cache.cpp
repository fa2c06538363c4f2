#include "api/mla_checks.h"
#include "api/validate.h"

namespace fp8attn {
namespace {

// What append_mla() and gather_mla() have in common, the cache being the owner of the device.
template <class Problem>
void check_cache_access(std::vector<Reason>& reasons, const Problem& problem, MemoryRules rules) {
  const Device device = problem.cache.device;
  rules.tma = device.kind == DeviceKind::kCuda;
  check_cache(reasons, problem.cache, problem.format, rules);
  check_cache_scale(reasons, problem.cache_scale, problem.format, device);
  check_integers(reasons, "slots", problem.slots, "cache", device, {.last_dim_contiguous = false});
}

void check_part(std::vector<Reason>& reasons, const AppendMlaProblem& problem, NamedView part, std::int64_t tokens,
                std::int64_t channels) {
  check_shape(reasons, part.name, part.view, {{tokens, channels}, "[n, channels]", {{"slots", problem.slots}}});
  check_dtype(reasons, part.name, part.view, {DType::kBF16});
  check_device(reasons, part.name, part.view, "cache", problem.cache.device);
  check_memory(reasons, part.name, part.view, {});
}

bool same_place(const TensorView& a, const TensorView& b) {
  if (a.data != b.data) return false;
  for (int i = 0; i < a.rank; ++i) {
    if (a.shape[i] > 1 && a.strides[i] != b.strides[i]) return false;
  }
  return true;
}

}  // namespace

std::vector<Reason> validate(const AppendMlaProblem& problem) {
  std::vector<Reason> reasons;
  const bool counted = check_shape(reasons, "slots", problem.slots, {{kAnyDim}, "[n]"});
  const std::int64_t tokens = counted ? problem.slots.shape[0] : kAnyDim;
  check_part(reasons, problem, {"latent", problem.latent}, tokens, kLatentDim);
  check_part(reasons, problem, {"rope", problem.rope}, tokens, kRopeDim);
  check_cache_access(reasons, problem, {.written = true});
  if (!reasons.empty()) return reasons;
  check_apart(reasons, {"cache", problem.cache},
              {{"latent", problem.latent}, {"rope", problem.rope}, {"slots", problem.slots}});
  if (problem.cache_scale) check_apart(reasons, {"cache", problem.cache}, {{"cache_scale", *problem.cache_scale}});
  return reasons;
}

std::vector<Reason> validate(const GatherMlaProblem& problem) {
  std::vector<Reason> reasons;
  const bool counted = check_shape(reasons, "slots", problem.slots, {{kAnyDim}, "[n]"});
  const std::int64_t tokens = counted ? problem.slots.shape[0] : kAnyDim;
  check_cache_access(reasons, problem, {});
  check_shape(reasons, "out", problem.out, {{tokens, kMlaDim}, "[n, 576]", {{"slots", problem.slots}}});
  check_dtype(reasons, "out", problem.out, {DType::kBF16});
  check_device(reasons, "out", problem.out, "cache", problem.cache.device);
  check_memory(reasons, "out", problem.out, {.written = true});
  if (!reasons.empty()) return reasons;
  check_apart(reasons, {"out", problem.out}, {{"cache", problem.cache}, {"slots", problem.slots}});
  if (problem.cache_scale) check_apart(reasons, {"out", problem.out}, {{"cache_scale", *problem.cache_scale}});
  return reasons;
}

std::vector<Reason> validate_rotate_rope(const TensorView& input, const MutableTensorView& output) {
  std::vector<Reason> reasons;
  if (check_shape(reasons, "input", input, {{kAnyDim, kAnyDim, kAnyDim, kMlaDim}, "[b, s_q, h_q, 576]"})) {
    check_shape(reasons, "output", output,
                {{input.shape[0], input.shape[1], input.shape[2], kMlaDim}, "[b, s_q, h_q, 576]", {{"input", input}}});
  }
  check_dtype(reasons, "input", input, {DType::kBF16});
  check_dtype(reasons, "output", output, {DType::kBF16});
  check_device(reasons, "output", output, "input", input.device);
  check_memory(reasons, "input", input, {});
  check_memory(reasons, "output", output, {.written = true});
  if (reasons.empty() && !same_place(input, output)) check_apart(reasons, {"output", output}, {{"input", input}});
  return reasons;
}

}  // namespace fp8attn
