#include "fp8attn/kv_cache.h"

#include "api/dispatch.h"
#include "api/validate.h"
#ifdef FP8ATTN_WITH_CUDA
#include "cuda/sm90/kv_cache/kv_cache.h"
#endif
#include "cpu/kv_cache.h"

namespace fp8attn {
namespace {

std::vector<Reason> with_device(std::vector<Reason> reasons, const char* argument, Device device) {
  if (auto reason = device_reason(argument, device)) reasons.push_back(*std::move(reason));
  return reasons;
}

template <class Problem>
std::vector<Reason> check(const Problem& problem) {
  return with_device(validate(problem), "cache.device", problem.cache.device);
}

struct CacheAccess {
  void (*append)(const AppendMlaProblem&, Stream);
  void (*gather)(const GatherMlaProblem&, Stream);
  void (*rotate)(const TensorView&, const MutableTensorView&, Stream);
};

constexpr CacheAccess kCpu = {cpu::append_mla, cpu::gather_mla, cpu::rotate_rope};
#ifdef FP8ATTN_WITH_CUDA
constexpr CacheAccess kCuda = {cuda::append_mla, cuda::gather_mla, cuda::rotate_rope};
#endif

// The backend of a device that device_reason() has nothing against.
const CacheAccess& access_of([[maybe_unused]] Device device) {
#ifdef FP8ATTN_WITH_CUDA
  if (device.kind == DeviceKind::kCuda) return kCuda;
#endif
  return kCpu;
}

}  // namespace

Support supports(const AppendMlaProblem& problem) { return to_support(check(problem)); }

void append_mla(const AppendMlaProblem& problem, Stream stream) {
  throw_first("append_mla", check(problem));
  access_of(problem.cache.device).append(problem, stream);
}

Support supports(const GatherMlaProblem& problem) { return to_support(check(problem)); }

void gather_mla(const GatherMlaProblem& problem, Stream stream) {
  throw_first("gather_mla", check(problem));
  access_of(problem.cache.device).gather(problem, stream);
}

void rotate_rope(const TensorView& input, const MutableTensorView& output, Stream stream) {
  throw_first("rotate_rope", with_device(validate_rotate_rope(input, output), "input.device", input.device));
  access_of(input.device).rotate(input, output, stream);
}

}  // namespace fp8attn
