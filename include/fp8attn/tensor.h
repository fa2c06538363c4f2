// Non-owning tensor views: pointer, element type, shape, strides, device.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <type_traits>

namespace fp8attn {

// Element types. kE4M3 is the 8-bit float of e4m3.h; kBF16 and kFP16 are bfloat16 and IEEE half; kU8 is a byte of a
// record that kv_cache.h describes.
enum class DType : std::uint8_t { kE4M3, kBF16, kFP16, kF32, kI32, kI64, kU8 };

// Bytes of one element.
constexpr std::int64_t size_of(DType dtype) {
  switch (dtype) {
    case DType::kE4M3:
    case DType::kU8: return 1;
    case DType::kBF16:
    case DType::kFP16: return 2;
    case DType::kF32:
    case DType::kI32: return 4;
    case DType::kI64: return 8;
  }
  return 0;
}

// "e4m3", "bf16", "fp16", "f32", "int32", "int64", "u8".
constexpr const char* name_of(DType dtype) {
  switch (dtype) {
    case DType::kE4M3: return "e4m3";
    case DType::kBF16: return "bf16";
    case DType::kFP16: return "fp16";
    case DType::kF32: return "f32";
    case DType::kI32: return "int32";
    case DType::kI64: return "int64";
    case DType::kU8: return "u8";
  }
  return "?";
}

enum class DeviceKind : std::uint8_t { kCpu, kCuda };

// "cpu" or "cuda".
constexpr const char* name_of(DeviceKind kind) { return kind == DeviceKind::kCpu ? "cpu" : "cuda"; }

// Where memory lies. index is the CUDA device ordinal, 0 for the CPU.
struct Device {
  DeviceKind kind = DeviceKind::kCpu;
  int index = 0;
  friend constexpr bool operator==(Device, Device) = default;
};

inline constexpr int kMaxRank = 5;

// A view of memory that somebody else owns. Strides count elements, not bytes. Pointer is `const void*` for inputs
// and `void*` for outputs; an output view converts to an input view.
template <class Pointer>
struct BasicTensorView {
  Pointer data = nullptr;
  DType dtype = DType::kF32;
  Device device{};
  int rank = 0;
  std::array<std::int64_t, kMaxRank> shape{};
  std::array<std::int64_t, kMaxRank> strides{};

  // A view of `dims` with row-major strides: the last dim is contiguous. Rank 0 is a single element. At most kMaxRank
  // dims are kept.
  static constexpr BasicTensorView contiguous(Pointer data, DType dtype, std::initializer_list<std::int64_t> dims,
                                              Device device = {}) {
    BasicTensorView view;
    view.data = data;
    view.dtype = dtype;
    view.device = device;
    for (std::int64_t dim : dims) {
      if (view.rank < kMaxRank) view.shape[view.rank++] = dim;
    }
    std::int64_t stride = 1;
    for (int i = view.rank - 1; i >= 0; --i) {
      view.strides[i] = stride;
      stride *= view.shape[i];
    }
    return view;
  }

  // Number of elements: the product of the shape, 1 for rank 0.
  constexpr std::int64_t count() const {
    std::int64_t n = 1;
    for (int i = 0; i < rank; ++i) n *= shape[i];
    return n;
  }

  template <class Other>
  requires(std::is_same_v<Other, const void*> && !std::is_same_v<Pointer, const void*>) constexpr
  operator BasicTensorView<Other>() const {
    return {data, dtype, device, rank, shape, strides};
  }
};

using TensorView = BasicTensorView<const void*>;
using MutableTensorView = BasicTensorView<void*>;

}  // namespace fp8attn
