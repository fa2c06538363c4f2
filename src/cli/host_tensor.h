// Tensors in host memory that the program owns, and conversions between their element types.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "fp8attn/tensor.h"

namespace fp8attn::cli {

// A contiguous tensor.
struct HostTensor {
  HostTensor() = default;
  HostTensor(DType element_type, std::vector<std::int64_t> dims);  // zeros

  DType dtype = DType::kF32;
  std::vector<std::int64_t> shape{0};
  std::vector<std::byte> bytes;

  std::int64_t count() const;
  TensorView view() const;
  MutableTensorView mutable_view();
};

// A row-major view of `shape` (at most kMaxRank dims).
MutableTensorView contiguous_view(void* data, DType dtype, std::span<const std::int64_t> shape, Device device);

// Element `index` of an array of e4m3, bf16, fp16 or f32.
float element(const void* data, DType dtype, std::int64_t index);

// To bf16, fp16 or f32, rounding to nearest even; from these and e4m3.
HostTensor convert(const HostTensor& tensor, DType dtype);

// e4m3 codes times `scale` as bf16, rounded to nearest even.
HostTensor dequantized(const HostTensor& codes, float scale);

// Throws std::bad_alloc where the bytes of so many elements do not fit in 63 bits.
std::int64_t element_count(std::span<const std::int64_t> shape);

// "[1, 1000, 9, 64]"
std::string shape_text(std::span<const std::int64_t> shape);

}  // namespace fp8attn::cli
