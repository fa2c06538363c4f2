#include "prefill_run.h"

namespace fp8attn::test {
namespace {

PlacedTensor place_tensor(TestDevice& device, const HostTensor& tensor, Layout layout, DimRoles roles, Gap gap) {
  return PlacedTensor(device, tensor, place(layout, tensor.shape, roles), gap);
}

HostTensor blank(DType dtype, std::vector<std::int64_t> shape) {
  HostTensor tensor{dtype, std::move(shape), {}};
  tensor.bytes.assign(tensor.count() * size_of(dtype), kPatternByte);
  return tensor;
}

template <class View>
View without_dim(View view, int dim) {
  --view.rank;
  for (int i = dim; i < view.rank; ++i) {
    view.shape[i] = view.shape[i + 1];
    view.strides[i] = view.strides[i + 1];
  }
  return view;
}

// [1, total, ..] of a ragged tensor without its first dim.
template <class View>
View as_ragged(View view, bool ragged) {
  return ragged ? without_dim(view, 0) : view;
}

PlacedTensor place_v(TestDevice& device, const PrefillCase& test, const HostTensor& v, Layout layout, Gap gap) {
  if (test.v_layout == VLayout::kRowMajor) return place_tensor(device, v, layout, kRowMajorRoles, gap);
  return place_tensor(device, pack_host_v(v), layout, kPackedRoles, gap);
}

}  // namespace

PrefillRun::PrefillRun(TestDevice& device, const PrefillCase& test, const PrefillInputs& inputs, RunOptions options)
    : device_(device),
      queries_(map_queries(test)),
      keys_(map_keys(test)),
      longest_(test.n.s_q),
      q_(place_tensor(device, spread(inputs.q, queries_, 1, options.q_gap), options.q, kRowMajorRoles, options.q_gap)),
      k_(place_tensor(device, spread(inputs.k, keys_, 1, options.k_gap), options.k, kRowMajorRoles, options.k_gap)),
      v_(place_v(device, test, spread(inputs.v, keys_, 1, options.v_gap), options.v, options.v_gap)),
      out_(place_tensor(device, blank(test.out_dtype, {queries_.outer, queries_.inner, test.n.h_q, test.n.d_v}),
                        options.out, kRowMajorRoles, Gap::kPattern)),
      lse_(place_tensor(device, blank(DType::kF32, {queries_.outer, test.n.h_q, 1, queries_.inner}), options.out,
                        {3, 1}, Gap::kPattern)),
      fault_(test.fault) {
  const bool ragged_q = test.batch.ragged_q, ragged_keys = test.batch.keys == KeyForm::kRagged;
  problem_.q = as_ragged(q_.view(), ragged_q);
  problem_.k = as_ragged(k_.view(), ragged_keys);
  problem_.v = as_ragged(v_.view(), ragged_keys);
  problem_.out = as_ragged(out_.view(), ragged_q);
  problem_.lse = as_ragged(without_dim(lse_.view(), 2), ragged_q);
  place_scales(test, inputs, options);
  place_indices(test, options);
  problem_.quantize = test.quantize;
  problem_.v_layout = test.v_layout;
  problem_.softmax_scale = test.softmax_scale;
  problem_.causal = test.causal;
  problem_.window_left = test.window_left;
  problem_.softcap = test.softcap;
  problem_.lse_base = test.lse_base;
  problem_.p_mode = test.p_mode;
  problem_.cpu_arithmetic = test.arithmetic;
  workspace_ = Buffer(device, workspace_size(problem_), 256);
  const std::vector<std::uint8_t> rubbish(workspace_.size(), 0xFF);
  if (!rubbish.empty()) workspace_.upload(rubbish.data());
}

void PrefillRun::place_scales(const PrefillCase& test, const PrefillInputs& inputs, const RunOptions& options) {
  const Dims& n = test.n;
  const bool ragged_q = test.batch.ragged_q, ragged_keys = test.batch.keys == KeyForm::kRagged;
  const auto of_tokens = [&](const HostScale& scale, const TokenMap& map, std::int64_t tokens, Gap gap, bool ragged) {
    return as_ragged(floats(scale.values, map, {n.b, tokens, scale.heads, 1}, 1, gap), ragged);
  };
  if (test.q_scale == ScaleForm::kTokenHead) {
    problem_.q_scale = of_tokens(inputs.q_scale, queries_, n.s_q, options.q_gap, ragged_q);
  } else if (test.q_scale != ScaleForm::kNone) {
    problem_.q_scale = scale_view(inputs.q_scale, n.b);
  }
  if (test.k_scale == ScaleForm::kTokenHead) {
    problem_.k_scale = of_tokens(inputs.k_scale, keys_, n.s_kv, options.k_gap, ragged_keys);
  } else if (test.k_scale != ScaleForm::kNone) {
    problem_.k_scale = scale_view(inputs.k_scale, n.b);
  }
  if (test.v_scale != ScaleForm::kNone) problem_.v_scale = scale_view(inputs.v_scale, n.b);
  if (test.addends) {
    problem_.v_mean = scale_view(inputs.v_mean, n.b);
    const TensorView bias = floats(inputs.lse_bias.values, queries_, {n.b, n.h_q, 1, n.s_q}, 3, options.q_gap);
    problem_.lse_bias = as_ragged(bias, ragged_q);
  }
  const Device where = device_.device();
  if (test.out_scale) {
    problem_.out_scale = TensorView::contiguous(keep(&*test.out_scale, sizeof(float)), DType::kF32, {}, where);
  }
  if (!inputs.sinks.empty()) {
    const void* data = keep(inputs.sinks.data(), inputs.sinks.size() * sizeof(float));
    problem_.attention_sink = TensorView::contiguous(data, DType::kF32, {n.h_q}, where);
  }
}

void PrefillRun::place_indices(const PrefillCase& test, const RunOptions& options) {
  const BatchForm& form = test.batch;
  if (form.ragged_q)
    problem_.q_offsets = without_dim(integers(queries_.offsets, 1, form.int64, options.wide_indices), 0);
  if (form.keys == KeyForm::kRagged) {
    problem_.kv_offsets = without_dim(integers(keys_.offsets, 1, form.int64, options.wide_indices), 0);
  } else if (form.keys == KeyForm::kPaged || !form.kv_lengths.empty()) {
    problem_.kv_lengths = without_dim(integers(keys_.lengths, 1, form.int64, options.wide_indices), 0);
  }
  if (form.keys != KeyForm::kPaged) return;
  std::vector<std::int64_t> table = keys_.block_table;
  for (std::int64_t& page : table) {
    if (page < 0 && options.k_gap == Gap::kNan) page = 0x7FFFFFFF;
  }
  problem_.block_table = integers(table, test.n.b, form.int64, options.wide_indices);
}

const void* PrefillRun::keep(const void* bytes, std::size_t size) {
  buffers_.emplace_back(device_, size);
  if (size > 0) buffers_.back().upload(bytes);
  return buffers_.back().data();
}

TensorView PrefillRun::floats(std::vector<float> values, const TokenMap& map, std::vector<std::int64_t> shape,
                              int token_dim, Gap gap) {
  const HostTensor placed = spread(encode_tensor(DType::kF32, std::move(shape), values), map, token_dim, gap);
  const auto& s = placed.shape;
  const TensorView view = TensorView::contiguous(keep(placed.bytes.data(), placed.bytes.size()), DType::kF32,
                                                 {s[0], s[1], s[2], s[3]}, device_.device());
  return without_dim(view, token_dim == 1 ? 3 : 2);
}

TensorView PrefillRun::scale_view(const HostScale& scale, std::int64_t batch) {
  const void* data = keep(scale.values.data(), scale.values.size() * sizeof(float));
  const Device where = device_.device();
  switch (scale.form) {
    case ScaleForm::kScalar: return TensorView::contiguous(data, DType::kF32, {}, where);
    case ScaleForm::kHead: return TensorView::contiguous(data, DType::kF32, {scale.heads}, where);
    case ScaleForm::kBatchHead: return TensorView::contiguous(data, DType::kF32, {batch, scale.heads}, where);
    case ScaleForm::kExpandedBatchHead: {
      TensorView view = TensorView::contiguous(data, DType::kF32, {batch, scale.heads}, where);
      view.strides = {};
      return view;
    }
    case ScaleForm::kChannel:
      return TensorView::contiguous(data, DType::kF32, {batch, scale.heads, scale.inner}, where);
    default: return TensorView::contiguous(data, DType::kF32, {1}, where);
  }
}

TensorView PrefillRun::integers(const std::vector<std::int64_t>& values, std::int64_t rows, bool int64, bool wide) {
  constexpr std::int64_t kNoIndex = -7;
  const std::int64_t columns = rows == 0 ? 0 : std::ssize(values) / rows;
  const std::int64_t stride = wide ? 3 : 1, row_stride = columns * stride + (wide ? 5 : 0);
  // Nothing behind the last element, so that the memory ends with it.
  const std::int64_t size = values.empty() ? 0 : (rows - 1) * row_stride + (columns - 1) * stride + 1;
  std::vector<std::int64_t> elements(size, kNoIndex);
  for (std::int64_t i = 0; i < std::ssize(values); ++i) {
    elements[i / columns * row_stride + i % columns * stride] = values[i];
  }
  const std::vector<std::int32_t> narrow(elements.begin(), elements.end());
  const void* data = int64 ? keep(elements.data(), elements.size() * sizeof(std::int64_t))
                           : keep(narrow.data(), narrow.size() * sizeof(std::int32_t));
  TensorView view = TensorView::contiguous(data, int64 ? DType::kI64 : DType::kI32, {rows, columns}, device_.device());
  view.strides = {row_stride, stride};
  return view;
}

void PrefillRun::set_indices(const TensorView& view, const std::vector<std::int64_t>& values) {
  for (std::int64_t i = 0; i < std::ssize(values); ++i) {
    const auto narrow = static_cast<std::int32_t>(values[i]);
    const void* value = view.dtype == DType::kI64 ? static_cast<const void*>(&values[i]) : &narrow;
    const std::int64_t bytes = size_of(view.dtype);
    const std::int64_t columns = view.shape[view.rank - 1];
    const std::int64_t offset = i / columns * view.strides[0] + i % columns * view.strides[view.rank - 1];
    device_.upload(static_cast<std::uint8_t*>(const_cast<void*>(view.data)) + offset * bytes, value, bytes);
  }
}

void PrefillRun::launch(Stream stream) {
  PrefillProblem problem = problem_;
  if (fault_) fault_(problem);
  prefill(problem, {workspace_.data(), workspace_.size()}, stream);
}

PrefillOutput PrefillRun::read() const {
  PrefillOutput output;
  output.out = collect(out_.read(output.wrong_write), queries_, 1, longest_, output.wrong_write);
  output.lse = collect(lse_.read(output.wrong_write), queries_, 3, longest_, output.wrong_write);
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
