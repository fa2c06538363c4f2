#include "placed_tensor.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <numeric>

#include "codec.h"
#include "fp8attn/quantize.h"

namespace fp8attn::test {
std::int64_t HostTensor::count() const {
  return std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>{});
}

std::vector<float> HostTensor::values() const {
  std::vector<float> result(count());
  const std::int64_t element = size_of(dtype);
#pragma omp parallel for schedule(static)
  for (std::size_t i = 0; i < result.size(); ++i) result[i] = decode(dtype, &bytes[i * element]);
  return result;
}

HostTensor encode_tensor(DType dtype, std::vector<std::int64_t> shape, std::span<const float> values) {
  HostTensor tensor{dtype, std::move(shape), {}};
  const std::int64_t element = size_of(dtype);
  tensor.bytes.resize(values.size() * element);
#pragma omp parallel for schedule(static)
  for (std::size_t i = 0; i < values.size(); ++i) encode(dtype, values[i], &tensor.bytes[i * element]);
  return tensor;
}

HostTensor pack_host_v(const HostTensor& v) {
  const std::int64_t b = v.shape[0], s = v.shape[1], h = v.shape[2], d = v.shape[3];
  HostTensor packed{v.dtype, {b, h, d, packed_length(s)}, {}};
  packed.bytes.resize(packed.count());
  for (std::int64_t i = 0; i < v.count(); ++i) {
    const std::int64_t channel = i % d, head = i / d % h, token = i / (d * h) % s, batch = i / (d * h * s);
    packed.bytes[((batch * h + head) * d + channel) * packed_length(s) + packed_position(token)] = v.bytes[i];
  }
  return packed;
}

const char* name_of(Layout layout) {
  static constexpr const char* kNames[] = {"dense",          "padded",         "packed-qkv",   "transposed-heads",
                                           "expanded-heads", "expanded-batch", "odd-size-one", "shifted"};
  return kNames[static_cast<int>(layout)];
}

Placement place(Layout layout, std::span<const std::int64_t> shape, DimRoles roles) {
  std::array<std::int64_t, 4> extent{shape[0], shape[1], shape[2], shape[3]};
  std::array<int, 4> order{0, 1, 2, 3};  // outermost first
  std::int64_t head_offset = 0;
  Placement placement;
  switch (layout) {
    case Layout::kPadded:
      extent[3] += 16;
      extent[roles.head] += 1;
      if (roles.token != 3) extent[roles.token] += 5;
      placement.offset = 32;
      break;
    case Layout::kPackedQkv:
      head_offset = extent[roles.head];
      extent[roles.head] *= 3;
      break;
    case Layout::kTransposedHeads:
      if (roles.token != 3) extent[roles.token] += 3;
      // The packed layout has heads outside of tokens already: batch entries go inside.
      std::swap(order[roles.token == 3 ? 0 : roles.token], order[roles.head]);
      break;
    case Layout::kExpandedHeads: extent[roles.head] = 1; break;
    case Layout::kExpandedBatch: extent[0] = 1; break;
    case Layout::kShifted: placement.offset = 1; break;
    default: break;
  }
  std::int64_t stride = 1;
  for (int i = 3; i >= 0; --i) {
    placement.strides[order[i]] = stride;
    stride *= extent[order[i]];
  }
  placement.size = stride + placement.offset;
  placement.offset += head_offset * placement.strides[roles.head];
  if (layout == Layout::kExpandedHeads) placement.strides[roles.head] = 0;
  if (layout == Layout::kExpandedBatch) placement.strides[0] = 0;
  for (int i = 0; i < 3 && layout == Layout::kOddSizeOne; ++i) {
    if (shape[i] == 1) placement.strides[i] = 7;
  }
  return placement;
}

std::vector<std::uint8_t> gap_bytes(std::size_t bytes, DType dtype, Gap gap) {
  if (gap == Gap::kZeros) return std::vector<std::uint8_t>(bytes, 0);
  if (gap == Gap::kPattern) return std::vector<std::uint8_t>(bytes, kPatternByte);
  const std::vector<std::uint8_t> nan = nan_bytes(dtype);
  std::vector<std::uint8_t> content(bytes);
  for (std::size_t i = 0; i < bytes; ++i) content[i] = nan[i % nan.size()];
  return content;
}

template <class Visit>
void PlacedTensor::for_each_element(Visit visit) const {
  const auto& shape = tensor_.shape;
  const auto& strides = placement_.strides;
  std::int64_t index = 0;
  for (std::int64_t i = 0; i < shape[0]; ++i) {
    for (std::int64_t j = 0; j < shape[1]; ++j) {
      for (std::int64_t k = 0; k < shape[2]; ++k) {
        const std::int64_t row = placement_.offset + i * strides[0] + j * strides[1] + k * strides[2];
        visit(row, index, shape[3]);
        index += shape[3];
      }
    }
  }
}

PlacedTensor::PlacedTensor(TestDevice& device, const HostTensor& tensor, const Placement& placement, Gap gap)
    : device_(device.device()),
      tensor_(tensor),
      placement_(placement),
      initial_(gap_bytes(tensor.count() == 0 ? 0 : placement.size * size_of(tensor.dtype), tensor.dtype, gap)),
      buffer_(device, initial_.size()) {
  const std::int64_t element = size_of(tensor.dtype);
  for_each_element([&](std::int64_t position, std::int64_t index, std::int64_t count) {
    std::memcpy(&initial_[position * element], &tensor.bytes[index * element], count * element);
  });
  reset();
}

MutableTensorView PlacedTensor::view() const {
  MutableTensorView view;
  view.data = buffer_.data() == nullptr
                  ? nullptr
                  : static_cast<std::uint8_t*>(buffer_.data()) + placement_.offset * size_of(tensor_.dtype);
  view.dtype = tensor_.dtype;
  view.device = device_;
  view.rank = 4;
  for (int i = 0; i < 4; ++i) {
    view.shape[i] = tensor_.shape[i];
    view.strides[i] = placement_.strides[i];
  }
  return view;
}

HostTensor PlacedTensor::read(std::string& changed) const {
  std::vector<std::uint8_t> now(initial_.size());
  buffer_.download(now.data());
  HostTensor result = tensor_;
  std::vector<std::uint8_t> rest = now;
  const std::int64_t element = size_of(tensor_.dtype);
  for_each_element([&](std::int64_t position, std::int64_t index, std::int64_t count) {
    std::memcpy(&result.bytes[index * element], &now[position * element], count * element);
    std::memcpy(&rest[position * element], &initial_[position * element], count * element);
  });
  const auto difference = std::mismatch(rest.begin(), rest.end(), initial_.begin());
  if (difference.first != rest.end()) {
    changed = fmt::format("byte {} between the elements of the tensor was written", difference.first - rest.begin());
  }
  return result;
}

}  // namespace fp8attn::test
