#include "api/view_checks.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdint>
#include <span>

namespace fp8attn {
namespace {

constexpr std::int64_t kTmaGranule = 16;
constexpr std::int64_t kTmaMaxStride = std::int64_t{1} << 40;

bool rank_in_range(const TensorView& view) { return view.rank >= 0 && view.rank <= kMaxRank; }

std::span<const std::int64_t> shape_of(const TensorView& view) {
  return {view.shape.data(), static_cast<std::size_t>(std::clamp(view.rank, 0, kMaxRank))};
}

std::string strides_text(const TensorView& view) {
  const auto strides = std::span(view.strides.data(), shape_of(view).size());
  return fmt::format("[{}] with shape {}", fmt::join(strides, ", "), shape_text(view));
}

bool is_empty(const TensorView& view) { return std::ranges::find(shape_of(view), 0) != shape_of(view).end(); }

// Bytes and addresses: the largest shape times the largest stride does not fit 64 bits.
using Bytes = __int128;

Bytes address_of(const TensorView& view) { return reinterpret_cast<std::uintptr_t>(view.data); }

Bytes stride_bytes(const TensorView& view, int dim) { return Bytes{view.strides[dim]} * size_of(view.dtype); }

// Bytes from the first element to the end of the last one that dims of a stride below `pitch` bytes lead to. Strides
// are not negative.
Bytes extent_below(const TensorView& view, Bytes pitch) {
  Bytes extent = size_of(view.dtype);
  for (int i = 0; i < view.rank; ++i) {
    if (view.shape[i] > 1 && stride_bytes(view, i) < pitch) extent += (view.shape[i] - 1) * stride_bytes(view, i);
  }
  return extent;
}

// More than any address space has (x86-64 with five levels of pages: 2^57), so that no address leaves 64 bits.
constexpr Bytes kMaxExtent = Bytes{1} << 57;

// Bytes from the first to the end of the last element.
Bytes extent_of(const TensorView& view) { return extent_below(view, Bytes{1} << 126); }

// Enough to rule out that two elements share memory, and what every layout made of nested or sliced dims meets: by
// ascending stride, each dim steps over all that the dims before it span.
bool dims_overlap(const TensorView& view) {
  std::vector<int> dims;
  for (int i = 0; i < view.rank; ++i) {
    if (view.shape[i] > 1) dims.push_back(i);
  }
  std::ranges::sort(dims, {}, [&](int dim) { return view.strides[dim]; });
  Bytes extent = 1;  // elements
  for (int dim : dims) {
    if (view.strides[dim] < extent) return true;
    extent += Bytes{view.shape[dim] - 1} * view.strides[dim];
  }
  return false;
}

// Whether every dim steps less than `pitch` bytes or a multiple of it.
bool repeats_by(const TensorView& view, Bytes pitch) {
  for (int i = 0; i < view.rank; ++i) {
    const Bytes stride = stride_bytes(view, i);
    if (view.shape[i] > 1 && stride > pitch && stride % pitch != 0) return false;
  }
  return true;
}

// Whether both views repeat by the same pitch and take up different parts of it, as the slices of one packed tensor do.
// `lower` has the lower address.
bool interleave(const TensorView& lower, const TensorView& upper, Bytes pitch) {
  if (pitch <= 0 || !repeats_by(lower, pitch) || !repeats_by(upper, pitch)) return false;
  const Bytes offset = (address_of(upper) - address_of(lower)) % pitch;
  return extent_below(lower, pitch) <= offset && offset + extent_below(upper, pitch) <= pitch;
}

bool may_share_memory(const TensorView& a, const TensorView& b) {
  const bool in_order = address_of(a) <= address_of(b);
  const TensorView &lower = in_order ? a : b, &upper = in_order ? b : a;
  if (address_of(lower) + extent_of(lower) <= address_of(upper)) return false;
  for (const TensorView* view : {&lower, &upper}) {
    for (int i = 0; i < view->rank; ++i) {
      if (view->shape[i] > 1 && interleave(lower, upper, stride_bytes(*view, i))) return false;
    }
  }
  return true;
}

bool any_stride(const TensorView& view, auto predicate) {
  for (int i = 0; i < view.rank; ++i) {
    if (view.shape[i] > 1 && predicate(view.strides[i])) return true;
  }
  return false;
}

void check_strides(std::vector<Reason>& reasons, const char* name, const TensorView& view, MemoryRules rules) {
  const auto complain = [&](std::string expected) {
    reasons.push_back({fmt::format("{}.strides", name), strides_text(view), std::move(expected)});
  };
  if (any_stride(view, [](std::int64_t stride) { return stride < 0; })) return complain("no negative stride");
  if (extent_of(view) > kMaxExtent) return complain("strides that span at most 2^57 bytes");
  const int last = view.rank - 1;
  if (rules.last_dim_contiguous && last >= 0 && view.shape[last] > 1 && view.strides[last] != 1) {
    complain("a contiguous last dim (stride 1)");
  }
  if (rules.written && dims_overlap(view)) {
    complain("dims that do not overlap: each stride beyond all that the dims of smaller strides span");
  }
  if (!rules.tma) return;
  const std::int64_t element = std::max<std::int64_t>(size_of(view.dtype), 1);
  // The last dim's stride, 1, is no multiple of 16 bytes and needs none.
  TensorView outer = view;
  outer.rank = std::max(last, 0);
  if (any_stride(outer, [=](std::int64_t stride) { return stride % (kTmaGranule / element) != 0; })) {
    complain(fmt::format("strides of a multiple of {} elements (16 bytes) on cuda", kTmaGranule / element));
  }
  if (any_stride(outer, [=](std::int64_t stride) { return stride >= kTmaMaxStride / element; })) {
    complain(fmt::format("strides below {} elements (2^40 bytes) on cuda", kTmaMaxStride / element));
  }
}

}  // namespace

std::string device_text(Device device) {
  if (device == Device{}) return "cpu";
  if (!is_known(device.kind)) return fmt::format("a device of kind {}", static_cast<int>(device.kind));
  return fmt::format("{}:{}", name_of(device.kind), device.index);
}

std::string shape_text(const TensorView& view) {
  if (!rank_in_range(view)) return fmt::format("rank {}", view.rank);
  std::vector<std::string> texts;
  for (std::int64_t dim : shape_of(view)) texts.push_back(dim == kAnyDim ? "*" : fmt::to_string(dim));
  return fmt::format("[{}]", fmt::join(texts, ", "));
}

std::string or_text(const std::vector<std::string>& alternatives) {
  std::string text;
  for (std::size_t i = 0; i < alternatives.size(); ++i) {
    if (i > 0) text += i + 1 == alternatives.size() ? " or " : ", ";
    text += alternatives[i];
  }
  return text;
}

bool fits(const TensorView& view, const TensorView& expected) {
  const auto same = [](std::int64_t got, std::int64_t want) { return want == kAnyDim || got == want; };
  return view.rank == expected.rank && std::ranges::equal(shape_of(view), shape_of(expected), same);
}

bool check_shape(std::vector<Reason>& reasons, const char* name, const TensorView& view,
                 const ExpectedShape& expected) {
  const TensorView& wanted = expected.dims.view;
  const auto complain = [&](std::string text) {
    for (const NamedView& other : expected.given) {
      text += fmt::format("{} {} {}", &other == &expected.given.front() ? " for" : " and", other.name,
                          shape_text(other.view));
    }
    reasons.push_back({fmt::format("{}.shape", name), shape_text(view), std::move(text)});
  };
  if (view.rank != wanted.rank) {
    complain(fmt::format("rank {}, {}", wanted.rank, expected.meaning));
    return false;
  }
  if (std::ranges::any_of(shape_of(view), [](std::int64_t dim) { return dim < 0 || dim > kMaxDim; })) {
    complain(fmt::format("dims from 0 to {} in {}", kMaxDim, expected.meaning));
    return false;
  }
  if (fits(view, wanted)) return true;
  complain(fmt::format("{}, which is {}", shape_text(wanted), expected.meaning));
  return false;
}

void check_dtype(std::vector<Reason>& reasons, const char* name, const TensorView& view,
                 std::initializer_list<DType> accepted) {
  if (std::ranges::find(accepted, view.dtype) != accepted.end()) return;
  std::vector<std::string> names;
  for (DType dtype : accepted) names.push_back(name_of(dtype));
  reasons.push_back({fmt::format("{}.dtype", name), name_text(view.dtype), or_text(names)});
}

void check_same_dtype(std::vector<Reason>& reasons, const char* name, const TensorView& view, const char* owner,
                      DType dtype) {
  if (view.dtype == dtype) return;
  reasons.push_back({fmt::format("{}.dtype", name), name_text(view.dtype),
                     fmt::format("{}, the dtype of {}", name_text(dtype), owner)});
}

void check_device(std::vector<Reason>& reasons, const char* name, const TensorView& view, const char* owner,
                  Device device) {
  if (view.device == device) return;
  reasons.push_back({fmt::format("{}.device", name), device_text(view.device),
                     fmt::format("{}, the device of {}", device_text(device), owner)});
}

void check_memory(std::vector<Reason>& reasons, const char* name, const TensorView& view, MemoryRules rules) {
  if (!rank_in_range(view) || is_empty(view)) return;
  const std::int64_t alignment = rules.tma ? kTmaGranule : size_of(view.dtype);
  if (view.data == nullptr) {
    reasons.push_back(
        {fmt::format("{}.data", name), "a null pointer", fmt::format("data of shape {}", shape_text(view))});
  } else if (alignment > 1 && reinterpret_cast<std::uintptr_t>(view.data) % alignment != 0) {
    reasons.push_back({fmt::format("{}.data", name), fmt::format("address {}", view.data),
                       fmt::format("an address that is a multiple of {} bytes", alignment)});
  }
  check_strides(reasons, name, view, rules);
}

void check_integers(std::vector<Reason>& reasons, const char* name, const TensorView& view, const char* owner,
                    Device device, MemoryRules rules) {
  check_dtype(reasons, name, view, {DType::kI32, DType::kI64});
  check_device(reasons, name, view, owner, device);
  check_memory(reasons, name, view, rules);
}

void check_floats(std::vector<Reason>& reasons, const char* name, const TensorView& view, const char* owner,
                  Device device) {
  check_dtype(reasons, name, view, {DType::kF32});
  check_device(reasons, name, view, owner, device);
  check_memory(reasons, name, view, {.last_dim_contiguous = false});
}

void check_apart(std::vector<Reason>& reasons, const NamedView& written, std::span<const NamedView> others) {
  if (is_empty(written.view)) return;
  for (const NamedView& other : others) {
    if (is_empty(other.view) || !may_share_memory(written.view, other.view)) continue;
    reasons.push_back({fmt::format("{}.data", written.name),
                       fmt::format("address {} with shape {}, in the memory of {}, address {}", written.view.data,
                                   shape_text(written.view), other.name, other.view.data),
                       fmt::format("memory that {} does not use", other.name)});
  }
}

void check_contiguous(std::vector<Reason>& reasons, const char* name, const TensorView& view) {
  if (!rank_in_range(view) || is_empty(view)) return;
  std::uint64_t stride = 1;  // wraps rather than overflows where no memory could hold the shape
  for (int i = view.rank - 1; i >= 0; --i) {
    if (view.shape[i] > 1 && static_cast<std::uint64_t>(view.strides[i]) != stride) {
      reasons.push_back({fmt::format("{}.strides", name), strides_text(view), "contiguous row-major strides"});
      return;
    }
    stride *= static_cast<std::uint64_t>(view.shape[i]);
  }
}

}  // namespace fp8attn
