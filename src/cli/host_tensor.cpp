#include "cli/host_tensor.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <new>

#include "fp8attn/e4m3.h"

namespace fp8attn::cli {
namespace {

float float_from_half(std::uint16_t bits) {
  const std::uint32_t sign = static_cast<std::uint32_t>(bits & 0x8000u) << 16;
  const std::uint32_t magnitude = bits & 0x7FFFu;
  if (magnitude >= 0x7C00u) return std::bit_cast<float>(sign | 0x7F800000u | ((magnitude & 0x3FFu) << 13));
  if (magnitude < 0x400u) {  // subnormal: a multiple of 2^-24
    const float value = static_cast<float>(magnitude) * 0x1p-24f;
    return std::bit_cast<float>(sign | std::bit_cast<std::uint32_t>(value));
  }
  return std::bit_cast<float>(sign | ((magnitude << 13) + ((127u - 15u) << 23)));
}

std::uint16_t half_from_float(float value) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  const auto sign = static_cast<std::uint16_t>((bits >> 16) & 0x8000u);
  const std::uint32_t magnitude = bits & 0x7FFFFFFFu;
  if (magnitude > 0x7F800000u) return sign | 0x7E00u;
  if (magnitude >= 0x477FF000u) return sign | 0x7C00u;  // 65520 and more round to infinity
  if (magnitude < 0x38800000u) {                        // below 2^-14: a multiple of 2^-24, rounded by the addition
    const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
    return sign | static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(shifted) - 0x3F000000u);
  }
  const std::uint32_t rounded = magnitude + 0xFFFu + ((magnitude >> 13) & 1u);
  return sign | static_cast<std::uint16_t>((rounded >> 13) - ((127u - 15u) << 10));
}

std::uint16_t bf16_from_float(float value) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  if (std::isnan(value)) return static_cast<std::uint16_t>((bits >> 16) | 0x40u);
  return static_cast<std::uint16_t>((bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16);
}

}  // namespace

HostTensor::HostTensor(DType element_type, std::vector<std::int64_t> dims)
    : dtype(element_type),
      shape(std::move(dims)),
      bytes(static_cast<std::size_t>(element_count(shape) * size_of(element_type))) {}

std::int64_t HostTensor::count() const { return element_count(shape); }

TensorView HostTensor::view() const {
  return contiguous_view(const_cast<std::byte*>(bytes.data()), dtype, shape, Device{});
}

MutableTensorView HostTensor::mutable_view() { return contiguous_view(bytes.data(), dtype, shape, Device{}); }

MutableTensorView contiguous_view(void* data, DType dtype, std::span<const std::int64_t> shape, Device device) {
  MutableTensorView view;
  view.data = data;
  view.dtype = dtype;
  view.device = device;
  view.rank = static_cast<int>(shape.size());
  std::int64_t stride = 1;
  for (int i = view.rank - 1; i >= 0; --i) {
    view.shape[i] = shape[i];
    view.strides[i] = stride;
    stride *= shape[i];
  }
  return view;
}

float element(const void* data, DType dtype, std::int64_t index) {
  if (dtype == DType::kE4M3) return e4m3_to_float(static_cast<const std::uint8_t*>(data)[index]);
  if (dtype == DType::kF32) return static_cast<const float*>(data)[index];
  const std::uint16_t bits = static_cast<const std::uint16_t*>(data)[index];
  return dtype == DType::kFP16 ? float_from_half(bits) : std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}

HostTensor convert(const HostTensor& tensor, DType dtype) {
  if (tensor.dtype == dtype) return tensor;
  HostTensor result(dtype, tensor.shape);
  for (std::int64_t i = 0; i < tensor.count(); ++i) {
    const float value = element(tensor.bytes.data(), tensor.dtype, i);
    if (dtype == DType::kF32) {
      reinterpret_cast<float*>(result.bytes.data())[i] = value;
    } else {
      reinterpret_cast<std::uint16_t*>(result.bytes.data())[i] =
          dtype == DType::kFP16 ? half_from_float(value) : bf16_from_float(value);
    }
  }
  return result;
}

HostTensor dequantized(const HostTensor& codes, float scale) {
  std::array<std::uint16_t, 256> table;
  for (int code = 0; code < 256; ++code) {
    table[code] = bf16_from_float(e4m3_to_float(static_cast<std::uint8_t>(code)) * scale);
  }
  HostTensor result(DType::kBF16, codes.shape);
  std::transform(codes.bytes.begin(), codes.bytes.end(), reinterpret_cast<std::uint16_t*>(result.bytes.data()),
                 [&](std::byte code) { return table[std::to_integer<std::size_t>(code)]; });
  return result;
}

std::int64_t element_count(std::span<const std::int64_t> shape) {
  std::int64_t count = 1;
  for (const std::int64_t dim : shape) {
    if (__builtin_mul_overflow(count, dim, &count)) throw std::bad_alloc();
  }
  constexpr std::int64_t kLargestElement = 8;
  if (count > std::numeric_limits<std::int64_t>::max() / kLargestElement) throw std::bad_alloc();
  return count;
}

std::string shape_text(std::span<const std::int64_t> shape) { return fmt::format("[{}]", fmt::join(shape, ", ")); }

}  // namespace fp8attn::cli
