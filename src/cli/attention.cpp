#include "cli/attention.h"

#include <fmt/format.h>

#include <functional>

#include "cli/errors.h"

namespace fp8attn::cli {
namespace {

// 16-bit inputs get an output of their own dtype. The rest gets bf16, but f32 stays where the backend can write it.
DType out_dtype(DType input, Device device) {
  if (input == DType::kFP16 || input == DType::kBF16) return input;
  return input == DType::kF32 && device.kind == DeviceKind::kCpu ? DType::kF32 : DType::kBF16;
}

std::vector<std::int64_t> scale_shape(ScaleGranularity granularity, const std::vector<std::int64_t>& shape) {
  switch (granularity) {
    case ScaleGranularity::kTensor: return {1};
    case ScaleGranularity::kHead: return {shape[2]};
    case ScaleGranularity::kBatchHead: return {shape[0], shape[2]};
    case ScaleGranularity::kTokenHead: return {shape[0], shape[1], shape[2]};
    case ScaleGranularity::kChannel: break;
  }
  return {shape[0], shape[2], shape[3]};
}

std::optional<TensorView> optional_view(const std::optional<HostTensor>& tensor) {
  return tensor ? std::optional(tensor->view()) : std::nullopt;
}

// Milliseconds of a call; on CUDA of the second one, since the first loads the kernel.
double call_ms(Device device, const std::function<void()>& call) {
  if (device.kind == DeviceKind::kCuda) time_ms(device, 1, call);
  return time_ms(device, 1, call);
}

template <class Operand>
std::optional<TensorView> scale_view(const Operand& operand) {
  return operand.scale ? std::optional<TensorView>(operand.scale->view()) : std::nullopt;
}

}  // namespace

PrefillProblem problem_of(const Layer& layer, const AttentionOptions& options) {
  PrefillProblem problem;
  problem.q = layer.q.view();
  problem.k = layer.k.view();
  problem.v = layer.v.view();
  problem.q_scale = optional_view(layer.q_scale);
  problem.k_scale = optional_view(layer.k_scale);
  problem.v_scale = optional_view(layer.v_scale);
  problem.causal = options.causal;
  problem.window_left = options.window_left;
  problem.softmax_scale = options.softmax_scale;
  problem.cpu_arithmetic = options.arithmetic;
  return problem;
}

Attention::Attention(const Layer& layer, const Recipe* recipe, const AttentionOptions& options) : options_(options) {
  const auto granularity = [&](ScaleGranularity Recipe::*member) {
    return recipe == nullptr ? ScaleGranularity::kTensor : recipe->*member;
  };
  q_ = store(layer.q, layer.q_scale, recipe, granularity(&Recipe::query));
  k_ = store(layer.k, layer.k_scale, recipe, granularity(&Recipe::key));
  v_ = store(layer.v, layer.v_scale, recipe, granularity(&Recipe::value));

  const auto &q = layer.q.shape, &v = layer.v.shape;
  out_ = DeviceTensor(options.device, out_dtype(layer.q.dtype, options.device), {q[0], q[1], q[2], v[3]});
  lse_ = DeviceTensor(options.device, DType::kF32, {q[0], q[2], q[1]});
  problem_.q = q_.data.view();
  problem_.k = k_.data.view();
  problem_.v = v_.data.view();
  problem_.out = out_.view();
  problem_.lse = lse_.view();
  problem_.q_scale = scale_view(q_);
  problem_.k_scale = scale_view(k_);
  problem_.v_scale = scale_view(v_);
  problem_.softmax_scale = options.softmax_scale;
  problem_.causal = options.causal;
  problem_.window_left = options.window_left;
  if (recipe != nullptr) problem_.quantize = recipe->within_call;
  problem_.p_mode = options.p_mode.value_or(recipe == nullptr ? PMode::kDefault : recipe->p_mode);
  problem_.cpu_arithmetic = options.arithmetic;
  if (options.v_layout == VLayout::kPacked && problem_.q.dtype == DType::kE4M3) {
    packed_v_ = DeviceTensor(options.device, DType::kE4M3, {v[0], v[2], v[3], packed_length(v[1])});
    quantize_ms_ += call_ms(options.device, [&] { pack_v(problem_.v, packed_v_.view()); });
    problem_.v = packed_v_.view();
    problem_.v_layout = VLayout::kPacked;
  }
}

Attention::Operand Attention::store(const HostTensor& tensor, const std::optional<HostTensor>& scale,
                                    const Recipe* recipe, ScaleGranularity granularity) {
  if (recipe != nullptr && recipe->dtype == DType::kE4M3) return quantise(tensor, granularity);
  const DType dtype = recipe == nullptr ? tensor.dtype : recipe->stored_dtype(tensor.dtype);
  Operand operand{DeviceTensor::copy_of(dtype == tensor.dtype ? tensor : convert(tensor, dtype), options_.device), {}};
  if (scale) operand.scale = DeviceTensor::copy_of(*scale, options_.device);
  return operand;
}

Attention::Operand Attention::quantise(const HostTensor& tensor, ScaleGranularity granularity) {
  const Device device = options_.device;
  const DeviceTensor input = DeviceTensor::copy_of(tensor, device);
  Operand operand{DeviceTensor(device, DType::kE4M3, tensor.shape),
                  DeviceTensor(device, DType::kF32, scale_shape(granularity, tensor.shape))};
  const QuantizeProblem problem{.input = input.view(),
                                .output = operand.data.view(),
                                .scale = operand.scale->view(),
                                .granularity = granularity,
                                .layout = VLayout::kRowMajor};
  const DeviceWorkspace workspace(device, workspace_size(problem));
  quantize_ms_ += call_ms(device, [&] { quantize(problem, workspace.get()); });
  return operand;
}

void Attention::allocate_workspace() { workspace_ = DeviceWorkspace(options_.device, workspace_size(problem_)); }

double Attention::run() {
  allocate_workspace();
  const auto launch_once = [this] { launch(); };
  if (options_.device.kind == DeviceKind::kCpu) return time_ms(options_.device, 1, launch_once);
  constexpr int kLaunches = 10;
  time_ms(options_.device, 1, launch_once);
  return time_ms(options_.device, kLaunches, launch_once) / kLaunches;
}

Layer Attention::stored() const {
  Layer layer{.name = {},
              .q = q_.data.to_host(),
              .k = k_.data.to_host(),
              .v = v_.data.to_host(),
              .q_scale = {},
              .k_scale = {},
              .v_scale = {}};
  if (q_.scale) layer.q_scale = q_.scale->to_host();
  if (k_.scale) layer.k_scale = k_.scale->to_host();
  if (v_.scale) layer.v_scale = v_.scale->to_host();
  return layer;
}

std::string where(const AttentionOptions& options) {
  if (options.device.kind == DeviceKind::kCuda) return device_text(options.device);
  return fmt::format("cpu ({})", name_of(options.arithmetic));
}

}  // namespace fp8attn::cli
