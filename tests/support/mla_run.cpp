#include "mla_run.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

namespace fp8attn::test {
namespace {

constexpr std::size_t kWorkspaceAlignment = 256, kWorkspaceGuard = 512;
constexpr std::uint8_t kGuardByte = 0xC3;

HostTensor blank(DType dtype, std::vector<std::int64_t> shape) {
  HostTensor tensor{dtype, std::move(shape), {}};
  tensor.bytes.assign(tensor.count() * size_of(dtype), 0xA5);
  return tensor;
}

PlacedTensor place_rows(TestDevice& device, const HostTensor& tensor, DimRoles roles, bool wide, Gap gap) {
  return PlacedTensor(device, tensor, place(wide ? Layout::kPadded : Layout::kDense, tensor.shape, roles), gap);
}

// [b, h, 1, s] without its third dim.
MutableTensorView lse_view(const PlacedTensor& lse) {
  MutableTensorView view = lse.view();
  view.rank = 3;
  view.shape[2] = view.shape[3];
  view.strides[2] = view.strides[3];
  return view;
}

}  // namespace

MlaRun::MlaRun(TestDevice& device, const MlaCase& test, const MlaInputs& inputs, MlaOptions options)
    : q_(place_rows(device, inputs.q, kRowMajorRoles, options.wide_strides, options.gap)),
      out_(place_rows(device, blank(test.out_dtype, {test.batch(), test.s_q, test.h_q, kLatentDim}), kRowMajorRoles,
                      options.wide_strides, Gap::kPattern)),
      lse_(place_rows(device, blank(DType::kF32, {test.batch(), test.h_q, 1, test.s_q}), {3, 1}, options.wide_strides,
                      Gap::kPattern)),
      device_(device) {
  problem_.q = q_.view();
  problem_.out = out_.view();
  problem_.lse = lse_view(lse_);
  problem_.format = test.format;
  problem_.softmax_scale = test.softmax_scale;
  problem_.causal = test.causal;
  problem_.cpu_arithmetic = test.arithmetic;
  place_cache(device, test, inputs, options);
  place_addressing(device, test, inputs, options);
  place_scales(device, test, inputs);
  place_workspace(device);
}

const void* MlaRun::keep(TestDevice& device, const void* bytes, std::size_t size) {
  buffers_.emplace_back(device, size);
  if (size > 0) buffers_.back().upload(bytes);
  return buffers_.back().data();
}

void MlaRun::place_cache(TestDevice& device, const MlaCase& test, const MlaInputs& inputs, MlaOptions options) {
  const std::int64_t record = record_bytes(test.format), element = size_of(record_dtype(test.format));
  const std::int64_t token_stride = record + (options.wide_strides ? 48 : 0);
  const std::int64_t page_stride = token_stride * test.page_size + (options.wide_strides ? 160 : 0);
  // NaN as e4m3, as bf16 and as float alike.
  std::vector<std::uint8_t> bytes(page_stride * inputs.pages, options.gap == Gap::kNan ? 0xFF : 0x00);
  for (const std::vector<std::int64_t>& slots : inputs.slots) {
    for (std::int64_t slot : slots) {
      std::memcpy(&bytes[slot / test.page_size * page_stride + slot % test.page_size * token_stride],
                  &inputs.cache[slot * record], record);
    }
  }
  problem_.cache =
      TensorView::contiguous(keep(device, bytes.data(), bytes.size()), record_dtype(test.format),
                             {inputs.pages, test.page_size, record_elements(test.format)}, device.device());
  problem_.cache.strides[0] = page_stride / element;
  problem_.cache.strides[1] = token_stride / element;
}

TensorView MlaRun::integers(TestDevice& device, DType dtype, const std::vector<std::int64_t>& values,
                            std::int64_t columns, std::int64_t stride, std::initializer_list<std::int64_t> shape) {
  const std::int64_t rows = columns == 0 ? 0 : static_cast<std::int64_t>(values.size()) / columns;
  std::vector<std::int64_t> wide(rows * stride, -7);
  for (std::int64_t i = 0; i < rows * columns; ++i) wide[i / columns * stride + i % columns] = values[i];
  const std::vector<std::int32_t> narrow(wide.begin(), wide.end());
  const void* data = dtype == DType::kI32 ? keep(device, narrow.data(), narrow.size() * sizeof(std::int32_t))
                                          : keep(device, wide.data(), wide.size() * sizeof(std::int64_t));
  TensorView view = TensorView::contiguous(data, dtype, shape, device.device());
  for (int i = 0; i + 1 < view.rank; ++i) view.strides[i] = view.strides[i] / columns * stride;
  return view;
}

void MlaRun::place_addressing(TestDevice& device, const MlaCase& test, const MlaInputs& inputs, MlaOptions options) {
  const std::int64_t room = options.wide_strides ? 5 : 0;
  if (test.sparse()) {
    problem_.indices = integers(device, test.index_dtype, inputs.indices, std::max<std::int64_t>(*test.topk, 1),
                                *test.topk + room, {test.batch(), test.s_q, *test.topk});
    if (test.topk_lengths) {
      problem_.topk_length =
          integers(device, test.index_dtype, inputs.topk_length, test.s_q, test.s_q + room, {test.batch(), test.s_q});
    }
    return;
  }
  std::vector<std::int64_t> table = inputs.block_table;
  for (std::int64_t& page : table) {
    if (options.wild_table && page < 0) page = inputs.pages + 12345;
  }
  problem_.block_table = integers(device, test.index_dtype, table, inputs.max_pages, inputs.max_pages + room,
                                  {test.batch(), inputs.max_pages});
  problem_.lengths = integers(device, test.index_dtype, test.lengths, 1, 1 + room, {test.batch()});
  problem_.lengths->strides[0] = 1 + room;
}

void MlaRun::place_scales(TestDevice& device, const MlaCase& test, const MlaInputs& inputs) {
  const Device where = device.device();
  if (test.q_scale != ScaleForm::kNone) {
    const auto& values = inputs.q_scale.values;
    const void* data = keep(device, values.data(), values.size() * sizeof(float));
    const std::int64_t b = test.batch(), s = test.s_q, h = test.h_q;
    switch (test.q_scale) {
      case ScaleForm::kHead: problem_.q_scale = TensorView::contiguous(data, DType::kF32, {h}, where); break;
      case ScaleForm::kBatchHead: problem_.q_scale = TensorView::contiguous(data, DType::kF32, {b, h}, where); break;
      case ScaleForm::kTokenHead: problem_.q_scale = TensorView::contiguous(data, DType::kF32, {b, s, h}, where); break;
      default: problem_.q_scale = TensorView::contiguous(data, DType::kF32, {}, where);
    }
  }
  if (test.format == CacheFormat::kTensor) {
    problem_.cache_scale = TensorView::contiguous(keep(device, &inputs.cache_scale, 4), DType::kF32, {1}, where);
  }
  if (test.sinks) {
    const void* data = keep(device, inputs.sinks.data(), inputs.sinks.size() * sizeof(float));
    problem_.attention_sink = TensorView::contiguous(data, DType::kF32, {test.h_q}, where);
  }
}

void MlaRun::place_workspace(TestDevice& device) {
  const std::size_t size = workspace_size(problem_);
  if (size == 0) return;
  workspace_ = Buffer(device, size + kWorkspaceAlignment + kWorkspaceGuard);
  const std::vector<std::uint8_t> guard(workspace_.size(), kGuardByte);
  workspace_.upload(guard.data());
}

void MlaRun::launch(Stream stream) {
  if (workspace_.data() == nullptr) return mla_decode(problem_, {}, stream);
  const auto address = reinterpret_cast<std::uintptr_t>(workspace_.data());
  const std::uintptr_t aligned = (address + kWorkspaceAlignment - 1) / kWorkspaceAlignment * kWorkspaceAlignment;
  const std::size_t size = workspace_.size() - kWorkspaceAlignment - kWorkspaceGuard;
  mla_decode(problem_, {reinterpret_cast<void*>(aligned), size}, stream);
}

PrefillOutput MlaRun::read() const {
  PrefillOutput output;
  output.out = out_.read(output.wrong_write);
  output.lse = lse_.read(output.wrong_write);
  if (workspace_.data() == nullptr) return output;
  std::vector<std::uint8_t> bytes(workspace_.size());
  workspace_.download(bytes.data());
  // Whatever the alignment left in front, the last kWorkspaceGuard bytes lie behind the workspace.
  EXPECT_EQ(std::count(bytes.end() - kWorkspaceGuard, bytes.end(), kGuardByte), kWorkspaceGuard)
      << "bytes behind the workspace were written";
  return output;
}

void MlaRun::clear_output() {
  out_.reset();
  lse_.reset();
}

void MlaRun::set_sequences(const std::vector<std::int64_t>& lengths, const std::vector<std::int64_t>& block_table) {
  const auto upload = [&](const TensorView& view, const std::vector<std::int64_t>& values) {
    const std::vector<std::int32_t> narrow(values.begin(), values.end());
    const bool wide = view.dtype == DType::kI64;
    device_.upload(const_cast<void*>(view.data), wide ? static_cast<const void*>(values.data()) : narrow.data(),
                   values.size() * size_of(view.dtype));
  };
  upload(*problem_.lengths, lengths);
  upload(*problem_.block_table, block_table);
}

PrefillOutput run_mla(TestDevice& device, const MlaCase& test, const MlaInputs& inputs, MlaOptions options) {
  MlaRun run(device, test, inputs, options);
  run.launch();
  return run.read();
}

}  // namespace fp8attn::test
