// What can be wrong with one tensor view by itself. Each function adds the reasons that it finds.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <initializer_list>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "api/reason.h"
#include "fp8attn/tensor.h"

namespace fp8attn {

// The largest accepted dim: kernels count tokens in 32 bits and round up to whole tiles.
inline constexpr std::int64_t kMaxDim = 0x7FFFFFFF - 1024;

// In an expected shape: any size. A value that no caller's dim has by accident.
inline constexpr std::int64_t kAnyDim = std::numeric_limits<std::int64_t>::min();

// A view that is a shape and nothing else. Dims may be kAnyDim.
constexpr TensorView shape_only(std::initializer_list<std::int64_t> dims) {
  TensorView view;
  for (std::int64_t dim : dims) view.shape[view.rank++] = dim;
  return view;
}

// What a view's memory has to look like.
struct MemoryRules {
  bool last_dim_contiguous = true;
  bool written = false;  // no two elements may share memory
  bool tma = false;      // read or written by the tensor memory accelerator: 16-byte granules, strides below 2^40 bytes
};

std::string device_text(Device device);                             // "cpu", "cuda:1"
std::string shape_text(const TensorView& view);                     // "[2, 64]"; kAnyDim as "*"
std::string or_text(const std::vector<std::string>& alternatives);  // "a, b or c"

constexpr bool is_known(DeviceKind kind) { return kind == DeviceKind::kCpu || kind == DeviceKind::kCuda; }

// The name of an enum's value, else its number: callers of other languages pass any.
template <class Enum>
std::string name_text(Enum value) {
  const std::string name = name_of(value);
  return name != "?" ? name : fmt::format("{} (not a value of the enum)", static_cast<int>(value));
}

// Whether `value` is one of all the values that its enum has.
template <class Enum>
bool check_enum(std::vector<Reason>& reasons, const char* name, Enum value, std::initializer_list<Enum> all) {
  std::vector<std::string> names;
  for (Enum known : all) {
    if (value == known) return true;
    names.push_back(name_of(known));
  }
  reasons.push_back({name, name_text(value), or_text(names)});
  return false;
}

// Whether the shape is that of `expected`, where kAnyDim fits every size.
bool fits(const TensorView& view, const TensorView& expected);

struct NamedView {
  const char* name;
  TensorView view;
};

// The shape of `leading` with more dims after it.
constexpr TensorView followed_by(TensorView leading, std::initializer_list<std::int64_t> dims) {
  for (std::int64_t dim : dims) leading.shape[leading.rank++] = dim;
  return leading;
}

struct ExpectedDims {
  TensorView view;  // a shape and nothing else
  constexpr ExpectedDims(std::initializer_list<std::int64_t> dims) : view(shape_only(dims)) {}
  constexpr ExpectedDims(const TensorView& shape) : view(shape) {}
};

struct ExpectedShape {
  ExpectedDims dims;
  const char* meaning;                // "[b, s_kv, h_kv, d_qk]"
  std::vector<NamedView> given = {};  // the arguments that decide the dims
};

// Rank, range of each dim, and the expected dims. Returns whether all is right: a misfit should decide nothing about
// other arguments, so that one mistake gives one reason.
bool check_shape(std::vector<Reason>& reasons, const char* name, const TensorView& view, const ExpectedShape& expected);

void check_dtype(std::vector<Reason>& reasons, const char* name, const TensorView& view,
                 std::initializer_list<DType> accepted);

void check_same_dtype(std::vector<Reason>& reasons, const char* name, const TensorView& view, const char* owner,
                      DType dtype);

// `owner`: the argument whose device the others have to share.
void check_device(std::vector<Reason>& reasons, const char* name, const TensorView& view, const char* owner,
                  Device device);

// Pointer, alignment and strides. Strides of dims of size 1, and of views without elements, are never looked at.
void check_memory(std::vector<Reason>& reasons, const char* name, const TensorView& view, MemoryRules rules);

// A tensor of indices, offsets or lengths.
void check_integers(std::vector<Reason>& reasons, const char* name, const TensorView& view, const char* owner,
                    Device device, MemoryRules rules);

// A tensor of scales, means or biases: float32, any strides.
void check_floats(std::vector<Reason>& reasons, const char* name, const TensorView& view, const char* owner,
                  Device device);

// No byte of `written` belongs to one of the others. Views that pass the checks above, on one device. Slices of one
// buffer are apart where they take up different parts of a pitch by which both repeat; other views whose ranges of
// addresses overlap are refused.
void check_apart(std::vector<Reason>& reasons, const NamedView& written, std::span<const NamedView> others);
inline void check_apart(std::vector<Reason>& reasons, const NamedView& written,
                        std::initializer_list<NamedView> others) {
  check_apart(reasons, written, std::span(others.begin(), others.size()));
}

// Row-major strides without gaps.
void check_contiguous(std::vector<Reason>& reasons, const char* name, const TensorView& view);

}  // namespace fp8attn
