#include "prefill_run.h"

namespace fp8attn::test {
namespace {

PlacedTensor place_tensor(TestDevice& device, const HostTensor& tensor, Layout layout, DimRoles roles, Gap gap) {
  return PlacedTensor(device, tensor, place(layout, tensor.shape, roles), gap);
}

HostTensor blank(DType dtype, std::vector<std::int64_t> shape) {
  HostTensor tensor{dtype, std::move(shape), {}};
  tensor.bytes.assign(tensor.count() * size_of(dtype), 0xA5);
  return tensor;
}

// [b, h, 1, s] without its third dim.
MutableTensorView lse_view(const PlacedTensor& lse) {
  MutableTensorView view = lse.view();
  view.rank = 3;
  view.shape[2] = view.shape[3];
  view.strides[2] = view.strides[3];
  return view;
}

PlacedTensor place_v(TestDevice& device, const PrefillCase& test, const HostTensor& v, Layout layout, Gap gap) {
  if (test.v_layout == VLayout::kRowMajor) return place_tensor(device, v, layout, kRowMajorRoles, gap);
  return place_tensor(device, pack_host_v(v), layout, kPackedRoles, gap);
}

}  // namespace

PrefillRun::PrefillRun(TestDevice& device, const PrefillCase& test, const PrefillInputs& inputs, RunOptions options)
    : q_(place_tensor(device, inputs.q, options.q, kRowMajorRoles, options.q_gap)),
      k_(place_tensor(device, inputs.k, options.k, kRowMajorRoles, options.k_gap)),
      v_(place_v(device, test, inputs.v, options.v, options.v_gap)),
      out_(place_tensor(device, blank(test.out_dtype, {test.n.b, test.n.s_q, test.n.h_q, test.n.d_v}), options.out,
                        kRowMajorRoles, Gap::kPattern)),
      lse_(place_tensor(device, blank(DType::kF32, {test.n.b, test.n.h_q, 1, test.n.s_q}), options.out, {3, 1},
                        Gap::kPattern)) {
  problem_.q = q_.view();
  problem_.k = k_.view();
  problem_.v = v_.view();
  problem_.out = out_.view();
  problem_.lse = lse_view(lse_);
  if (test.q_scale != ScaleForm::kNone) problem_.q_scale = scale_view(device, inputs.q_scale, test.n.b, false);
  if (test.k_scale != ScaleForm::kNone) problem_.k_scale = scale_view(device, inputs.k_scale, test.n.b, false);
  if (test.v_scale != ScaleForm::kNone) problem_.v_scale = scale_view(device, inputs.v_scale, test.n.b, true);
  if (test.addends) {
    problem_.v_mean = scale_view(device, inputs.v_mean, test.n.b, true);
    problem_.lse_bias = scale_view(device, inputs.lse_bias, test.n.b, true);
  }
  problem_.quantize = test.quantize;
  problem_.v_layout = test.v_layout;
  problem_.softmax_scale = test.softmax_scale;
  problem_.causal = test.causal;
  problem_.p_mode = test.p_mode;
  problem_.cpu_arithmetic = test.arithmetic;
  workspace_ = Buffer(device, workspace_size(problem_), 256);
  const std::vector<std::uint8_t> rubbish(workspace_.size(), 0xFF);
  if (!rubbish.empty()) workspace_.upload(rubbish.data());
}

TensorView PrefillRun::scale_view(TestDevice& device, const HostScale& scale, std::int64_t batch, bool by_channel) {
  scales_.emplace_back(device, scale.values.size() * sizeof(float));
  if (!scale.values.empty()) scales_.back().upload(scale.values.data());
  const void* data = scales_.back().data();
  const Device where = device.device();
  switch (scale.form) {
    case ScaleForm::kScalar: return TensorView::contiguous(data, DType::kF32, {}, where);
    case ScaleForm::kHead: return TensorView::contiguous(data, DType::kF32, {scale.heads}, where);
    case ScaleForm::kBatchHead: return TensorView::contiguous(data, DType::kF32, {batch, scale.heads}, where);
    case ScaleForm::kExpandedBatchHead: {
      TensorView view = TensorView::contiguous(data, DType::kF32, {batch, scale.heads}, where);
      view.strides = {};
      return view;
    }
    case ScaleForm::kTokenHead:
    case ScaleForm::kChannel:
      if (by_channel) return TensorView::contiguous(data, DType::kF32, {batch, scale.heads, scale.inner}, where);
      return TensorView::contiguous(data, DType::kF32, {batch, scale.inner, scale.heads}, where);
    default: return TensorView::contiguous(data, DType::kF32, {1}, where);
  }
}

void PrefillRun::launch(Stream stream) { prefill(problem_, {workspace_.data(), workspace_.size()}, stream); }

PrefillOutput PrefillRun::read() const {
  PrefillOutput output;
  output.out = out_.read(output.wrong_write);
  output.lse = lse_.read(output.wrong_write);
  return output;
}

std::vector<std::uint8_t> PrefillRun::read_workspace() const {
  std::vector<std::uint8_t> bytes(workspace_.size());
  if (!bytes.empty()) workspace_.download(bytes.data());
  return bytes;
}

void PrefillRun::clear_output() {
  out_.reset();
  lse_.reset();
}

bool is_left_out(const Error& error) { return error.expected().find("CMake option") != std::string::npos; }

PrefillOutput run_prefill(TestDevice& device, const PrefillCase& test, const PrefillInputs& inputs,
                          RunOptions options) {
  PrefillRun run(device, test, inputs, options);
  run.launch();
  return run.read();
}

}  // namespace fp8attn::test
