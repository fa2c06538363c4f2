// A valid prefill problem, small enough to change by hand.
#pragma once

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <type_traits>
#include <vector>

#include "fp8attn/prefill.h"

namespace fp8attn::test {

inline constexpr std::int64_t kB = 2, kSQ = 7, kHQ = 6, kDQK = 64, kSKV = 20, kHKV = 3, kDV = 32;
inline constexpr Device kGpu = {DeviceKind::kCuda, 0};

// A valid problem and its memory. Changing views makes it invalid; nothing may then be written.
struct PrefillArguments {
  alignas(16) std::uint8_t q[kB * kSQ * kHQ * kDQK * 2] = {};
  alignas(16) std::uint8_t k[kB * kSKV * kHKV * kDQK * 2] = {};
  alignas(16) std::uint8_t v[kB * 32 * kHKV * kDV * 2] = {};
  std::vector<float> out = std::vector<float>(kB * kSQ * kHQ * kDV, 123.0f);
  std::vector<float> lse = std::vector<float>(kB * kHQ * kSQ, 456.0f);
  std::vector<float> scales = std::vector<float>(kB * kSKV * kHQ * kDV, 1.0f);
  PrefillProblem problem;

  explicit PrefillArguments(Device device = {}) {
    problem.q = TensorView::contiguous(q, DType::kE4M3, {kB, kSQ, kHQ, kDQK}, device);
    problem.k = TensorView::contiguous(k, DType::kE4M3, {kB, kSKV, kHKV, kDQK}, device);
    problem.v = TensorView::contiguous(v, DType::kE4M3, {kB, kSKV, kHKV, kDV}, device);
    problem.out = MutableTensorView::contiguous(
        out.data(), device.kind == DeviceKind::kCuda ? DType::kBF16 : DType::kF32, {kB, kSQ, kHQ, kDV}, device);
    problem.lse = MutableTensorView::contiguous(lse.data(), DType::kF32, {kB, kHQ, kSQ}, device);
  }
  TensorView scale(std::initializer_list<std::int64_t> shape) const {
    return TensorView::contiguous(scales.data(), DType::kF32, shape, problem.q.device);
  }
  bool untouched() const {
    return std::ranges::count(out, 123.0f) == std::ssize(out) && std::ranges::count(lse, 456.0f) == std::ssize(lse);
  }
};

inline void set_dtype(PrefillProblem& p, DType dtype) { p.q.dtype = p.k.dtype = p.v.dtype = dtype; }

void shift(auto& view, int bytes) {
  using Byte = std::conditional_t<std::is_const_v<std::remove_pointer_t<decltype(view.data)>>, const char, char>;
  view.data = static_cast<Byte*>(view.data) + bytes;
}

}  // namespace fp8attn::test
