// One attention call of a layer on a device: the tensors as a recipe stores them there, and the result.
#pragma once

#include <optional>

#include "cli/device.h"
#include "cli/input.h"
#include "cli/recipe.h"
#include "fp8attn/prefill.h"

namespace fp8attn::cli {

struct AttentionOptions {
  Device device;
  bool causal = false;
  std::int64_t window_left = -1;
  std::optional<float> softmax_scale;
  VLayout v_layout = VLayout::kRowMajor;
  std::optional<PMode> p_mode;  // instead of the recipe's
  CpuArithmetic arithmetic = CpuArithmetic::kEmulated;
};

// A prefill of host tensors: what both the reference and the CPU run start from. `out` is left empty.
PrefillProblem problem_of(const Layer& layer, const AttentionOptions& options);

class Attention {
 public:
  // Copies the tensors to the device and quantises or converts them there as `recipe` says (null: as they are, which
  // e4m3 tensors have to stay).
  Attention(const Layer& layer, const Recipe* recipe, const AttentionOptions& options);

  // Whether prefill() takes it, with the reasons why not.
  Support support() const { return supports(problem_); }

  // Allocates the workspace; before the first launch. Throws Error where prefill() does not take the problem.
  void allocate_workspace();
  void launch() { prefill(problem_, workspace_.get()); }

  // Runs it: once on the CPU; on CUDA once to warm up and then a few times. Returns the milliseconds of one run.
  double run();

  DType output_dtype() const { return problem_.out.dtype; }
  HostTensor out() const { return out_.to_host(); }  // of the dtype of the input where it has 16 bits
  HostTensor lse() const { return lse_.to_host(); }
  double quantize_ms() const { return quantize_ms_; }

  // What the kernel reads, V row-major: the start of the kernel-only reference.
  Layer stored() const;

 private:
  struct Operand {
    DeviceTensor data;
    std::optional<DeviceTensor> scale;
  };
  Operand store(const HostTensor& tensor, const std::optional<HostTensor>& scale, const Recipe* recipe,
                ScaleGranularity granularity);
  Operand quantise(const HostTensor& tensor, ScaleGranularity granularity);

  AttentionOptions options_;
  Operand q_, k_, v_;
  DeviceTensor packed_v_, out_, lse_;
  DeviceWorkspace workspace_;
  PrefillProblem problem_;
  double quantize_ms_ = 0;
};

// "cpu (emulated)", "cuda:0".
std::string where(const AttentionOptions& options);

}  // namespace fp8attn::cli
