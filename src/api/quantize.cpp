#include "fp8attn/quantize.h"

#include "api/dispatch.h"
#include "api/validate.h"
#include "cpu/quantize.h"
#ifdef FP8ATTN_WITH_CUDA
#include "cuda/sm90/quantize/quantize.h"
#endif

namespace fp8attn {
namespace {

std::vector<Reason> with_device(std::vector<Reason> reasons, const TensorView& input) {
  if (auto reason = device_reason("input.device", input.device)) reasons.push_back(*std::move(reason));
  return reasons;
}

struct Quantizer {
  std::size_t (*workspace_size)(const QuantizeProblem&);
  void (*quantize)(const QuantizeProblem&, Workspace, Stream);
  void (*pack_v)(const TensorView&, const MutableTensorView&, Stream);
};

constexpr Quantizer kCpu = {cpu::quantize_workspace_size, cpu::quantize, cpu::pack_v};
#ifdef FP8ATTN_WITH_CUDA
constexpr Quantizer kCuda = {cuda::quantize_workspace_size, cuda::quantize, cuda::pack_v};
#endif

// The backend of a device that device_reason() has nothing against.
const Quantizer& quantizer_of([[maybe_unused]] Device device) {
#ifdef FP8ATTN_WITH_CUDA
  if (device.kind == DeviceKind::kCuda) return kCuda;
#endif
  return kCpu;
}

}  // namespace

Support supports(const QuantizeProblem& problem) { return to_support(with_device(validate(problem), problem.input)); }

std::size_t workspace_size(const QuantizeProblem& problem) {
  throw_first("workspace_size", with_device(validate(problem), problem.input));
  return quantizer_of(problem.input.device).workspace_size(problem);
}

void quantize(const QuantizeProblem& problem, Workspace workspace, Stream stream) {
  throw_first("quantize", with_device(validate(problem), problem.input));
  const Quantizer& quantizer = quantizer_of(problem.input.device);
  const NamedView tensors[] = {{"input", problem.input}, {"output", problem.output}, {"scale", problem.scale}};
  throw_first("quantize", validate(workspace, quantizer.workspace_size(problem), tensors));
  quantizer.quantize(problem, workspace, stream);
}

void pack_v(const TensorView& input, const MutableTensorView& output, Stream stream) {
  throw_first("pack_v", with_device(validate_pack_v(input, output), input));
  quantizer_of(input.device).pack_v(input, output, stream);
}

}  // namespace fp8attn
