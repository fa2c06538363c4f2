// One quantisation on host buffers, and its runs on the CPU and on a CUDA device with all of their bytes compared.
#pragma once

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <random>
#include <vector>

#include "fp8attn/quantize.h"

namespace fp8attn::quantize_test {

using Bytes = std::vector<std::uint8_t>;
using Dims = std::array<std::int64_t, 4>;  // b, s, h, d

constexpr std::uint8_t kPoison = 0xA5;
constexpr std::int64_t kGuard = 64;  // poisoned bytes before and after every tensor

inline void check_cuda(cudaError_t status) { ASSERT_EQ(status, cudaSuccess) << cudaGetErrorString(status); }

// Device memory with the content of a host buffer.
class DeviceBytes {
 public:
  explicit DeviceBytes(const Bytes& host) : size_(host.size()) {
    check_cuda(cudaMalloc(&data_, size_));
    upload(host);
  }
  ~DeviceBytes() { cudaFree(data_); }
  DeviceBytes(const DeviceBytes&) = delete;
  DeviceBytes& operator=(const DeviceBytes&) = delete;

  std::uint8_t* data() const { return static_cast<std::uint8_t*>(data_); }
  // A copy from pageable memory may still be under way when cudaMemcpy returns, and streams that do not synchronise
  // with the default one would not wait for it.
  void upload(const Bytes& host) {
    check_cuda(cudaMemcpy(data_, host.data(), size_, cudaMemcpyHostToDevice));
    check_cuda(cudaDeviceSynchronize());
  }
  Bytes download() const {
    Bytes host(size_);
    check_cuda(cudaDeviceSynchronize());
    check_cuda(cudaMemcpy(host.data(), data_, size_, cudaMemcpyDeviceToHost));
    return host;
  }

 private:
  void* data_ = nullptr;
  std::size_t size_;
};

// A host buffer, and a view of it whose data is an offset into it until place() gives it a base.
struct Stored {
  Bytes bytes;
  MutableTensorView view;
  std::int64_t offset = 0;

  MutableTensorView at(std::uint8_t* base, Device device) const {
    MutableTensorView placed = view;
    placed.data = base + offset;
    placed.device = device;
    return placed;
  }
  MutableTensorView on_host() { return at(bytes.data(), {DeviceKind::kCpu, 0}); }
};

enum class Strides { kContiguous, kHeadsFirst, kSliceOfThree, kExpandedBatch, kExpandedHeads, kRaggedRows };

// misalignment: elements by which the first one is moved off a multiple of 64 bytes.
inline Stored make_stored(DType dtype, const Dims& n, Strides kind, std::int64_t misalignment) {
  const auto [b, s, h, d] = n;
  Stored stored;
  stored.view = MutableTensorView::contiguous(nullptr, dtype, {b, s, h, d});
  std::array<std::int64_t, 4> strides{s * h * d, h * d, d, 1};
  switch (kind) {
    case Strides::kContiguous: break;
    case Strides::kHeadsFirst: strides = {h * s * d, d, s * d, 1}; break;
    case Strides::kSliceOfThree: strides = {s * h * 3 * d, h * 3 * d, 3 * d, 1}; break;
    case Strides::kExpandedBatch: strides = {0, h * d, d, 1}; break;
    case Strides::kExpandedHeads: strides = {s * d, d, 0, 1}; break;
    case Strides::kRaggedRows: strides = {s * h * (d + 3), h * (d + 3), d + 3, 1}; break;
  }
  std::copy(strides.begin(), strides.end(), stored.view.strides.begin());
  stored.offset = kGuard + misalignment * size_of(dtype);
  std::int64_t last = d;
  for (int i = 0; i < 3; ++i) last += std::max<std::int64_t>(n[i] - 1, 0) * strides[i];
  stored.bytes.assign(stored.offset + last * size_of(dtype) + kGuard, kPoison);
  return stored;
}

inline Stored make_contiguous(DType dtype, std::initializer_list<std::int64_t> dims, std::int64_t misalignment = 0) {
  Stored stored;
  stored.view = MutableTensorView::contiguous(nullptr, dtype, dims);
  stored.offset = kGuard + misalignment * size_of(dtype);
  stored.bytes.assign(stored.offset + stored.view.count() * size_of(dtype) + kGuard, kPoison);
  return stored;
}

template <class Work>
inline void for_each_row(const MutableTensorView& view, Work work) {
  for (std::int64_t b = 0; b < view.shape[0]; ++b) {
    for (std::int64_t s = 0; s < view.shape[1]; ++s) {
      for (std::int64_t h = 0; h < view.shape[2]; ++h) {
        work(b * view.strides[0] + s * view.strides[1] + h * view.strides[2]);
      }
    }
  }
}

// Any bit pattern of a few binary orders of magnitude around 1, and now and then a special one.
inline std::uint32_t random_bits(DType dtype, std::mt19937& random) {
  constexpr std::array<float, 14> kSpecial{0.0f,     -0.0f,  448.0f, 449.0f, -464.0f,  465.0f,    0x1p-9f,
                                           0x3p-10f, 1e-38f, 1e-42f, 6e4f,   INFINITY, -INFINITY, NAN};
  const std::uint32_t sign = random() & 1, exponent = random() % 12, mantissa = random();
  std::uint32_t bits = 0;
  const bool special = random() % 64 == 0;
  if (special) {
    std::memcpy(&bits, &kSpecial[random() % kSpecial.size()], 4);
  }
  switch (dtype) {
    case DType::kF32: return special ? bits : sign << 31 | (118 + exponent) << 23 | (mantissa & 0x7FFFFF);
    case DType::kBF16: return special ? bits >> 16 : sign << 15 | (118 + exponent) << 7 | (mantissa & 0x7F);
    case DType::kFP16: {
      constexpr std::array<std::uint32_t, 8> kHalf{0, 0x8000, 0x5F00, 0x5F04, 0x0001, 0x7C00, 0xFC00, 0x7E00};
      return special ? kHalf[random() % kHalf.size()] : sign << 15 | 2 * exponent << 10 | (mantissa & 0x3FF);
    }
    default: return mantissa & 0xFF;
  }
}

inline void fill_random(Stored& stored, unsigned seed) {
  std::mt19937 random(seed);
  const std::int64_t element = size_of(stored.view.dtype);
  for_each_row(stored.view, [&](std::int64_t row) {
    for (std::int64_t c = 0; c < stored.view.shape[3]; ++c) {
      const std::uint32_t bits = random_bits(stored.view.dtype, random);
      std::memcpy(&stored.bytes[stored.offset + (row + c) * element], &bits, element);
    }
  });
}

inline Stored make_scale(ScaleGranularity granularity, const Dims& n) {
  const auto [b, s, h, d] = n;
  switch (granularity) {
    case ScaleGranularity::kTensor: return make_contiguous(DType::kF32, {1});
    case ScaleGranularity::kHead: return make_contiguous(DType::kF32, {h});
    case ScaleGranularity::kBatchHead: return make_contiguous(DType::kF32, {b, h});
    case ScaleGranularity::kTokenHead: return make_contiguous(DType::kF32, {b, s, h});
    case ScaleGranularity::kChannel: return make_contiguous(DType::kF32, {b, h, d}, 1);
  }
  return {};
}

inline Stored make_output(VLayout layout, const Dims& n, Strides strides, std::int64_t misalignment) {
  if (layout == VLayout::kPacked) {
    return make_contiguous(DType::kE4M3, {n[0], n[2], n[3], packed_length(n[1])}, misalignment);
  }
  return make_stored(DType::kE4M3, n, strides, misalignment);
}

// One quantisation with all its memory on the host; run() gives what the buffers hold afterwards.
struct Case {
  Stored input, output, scale;
  ScaleGranularity granularity = ScaleGranularity::kHead;
  VLayout layout = VLayout::kRowMajor;

  struct Result {
    Bytes output, scale;
  };

  Result run_cpu() {
    Stored written_output = output, written_scale = scale;
    quantize({input.on_host(), written_output.on_host(), written_scale.on_host(), granularity, layout});
    return {written_output.bytes, written_scale.bytes};
  }
  QuantizeProblem on_device(const DeviceBytes& x, const DeviceBytes& y, const DeviceBytes& z, Device device) const {
    return {input.at(x.data(), device), output.at(y.data(), device), scale.at(z.data(), device), granularity, layout};
  }
  Result run_cuda(Device device, Stream stream = nullptr) {
    const DeviceBytes x(input.bytes), y(output.bytes), z(scale.bytes);
    quantize(on_device(x, y, z, device), {}, stream);
    EXPECT_EQ(x.download(), input.bytes) << "the input was written";
    return {y.download(), z.download()};
  }
};

inline Case make_case(DType dtype, const Dims& n, ScaleGranularity granularity, VLayout layout) {
  return {make_stored(dtype, n, Strides::kContiguous, 0), make_output(layout, n, Strides::kContiguous, 0),
          make_scale(granularity, n), granularity, layout};
}

inline void expect_equal(const Bytes& got, const Bytes& expected, const char* name) {
  ASSERT_EQ(got.size(), expected.size());
  const auto difference = std::mismatch(got.begin(), got.end(), expected.begin());
  if (difference.first == got.end()) return;
  ADD_FAILURE() << name << " differs from byte " << difference.first - got.begin() - kGuard << " of the tensor on: got "
                << int{*difference.first} << ", expected " << int{*difference.second};
}

inline void expect_same_as_cpu(Case& c, Device device) {
  const Case::Result expected = c.run_cpu(), got = c.run_cuda(device);
  EXPECT_NE(expected.scale, c.scale.bytes) << "nothing was written, so there is nothing to compare";
  expect_equal(got.scale, expected.scale, "scale");
  expect_equal(got.output, expected.output, "output");
}

inline float scale_value(const Case& c, const Bytes& scale, std::int64_t i) {
  float value;
  std::memcpy(&value, &scale[c.scale.offset + i * 4], 4);
  return value;
}

}  // namespace fp8attn::quantize_test
