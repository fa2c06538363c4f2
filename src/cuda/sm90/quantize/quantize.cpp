#include "cuda/sm90/quantize/quantize.h"

#include <cuda_runtime_api.h>

#include "cuda/launch/check.h"
#include "cuda/sm90/quantize/kernels.h"

namespace fp8attn::cuda {
namespace {

void find_scales(const QuantizeProblem& problem, Stream stream) {
  const std::int64_t scales = problem.scale.count();
  if (scales == 0) return;
  check(cudaMemsetAsync(problem.scale.data, 0, scales * sizeof(float), stream), "quantize", "cudaMemsetAsync");
  if (problem.input.count() > 0) launch_amax(problem, stream);
  launch_finish_scales(problem.scale, stream);
}

// With one token a scale per batch entry and head is a scale per token and head, which takes one pass.
bool is_per_token(const QuantizeProblem& problem) {
  return problem.granularity == ScaleGranularity::kTokenHead ||
         (problem.granularity == ScaleGranularity::kBatchHead && problem.input.shape[1] == 1);
}

}  // namespace

void quantize(const QuantizeProblem& problem, Workspace, Stream stream) {
  const DeviceGuard guard(problem.input.device.index, "quantize");
  const bool empty = problem.input.count() == 0;
  if (!empty && problem.layout == VLayout::kRowMajor && is_per_token(problem)) {
    launch_convert_tokens(problem, stream);
    return;
  }
  find_scales(problem, stream);
  if (empty) return;
  if (problem.layout == VLayout::kPacked) {
    launch_pack(problem, stream);
  } else {
    launch_convert(problem, stream);
  }
}

void pack_v(const TensorView& input, const MutableTensorView& output, Stream stream) {
  if (input.count() == 0) return;
  const DeviceGuard guard(input.device.index, "pack_v");
  launch_pack_v(input, output, stream);
}

std::size_t quantize_workspace_size(const QuantizeProblem&) { return 0; }

}  // namespace fp8attn::cuda
