// A tensor in a device buffer: any strides, and a chosen content of the memory between its elements.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "fp8attn/tensor.h"
#include "test_device.h"

namespace fp8attn::test {

// Stored elements in the order of the dims, without gaps.
struct HostTensor {
  DType dtype = DType::kF32;
  std::vector<std::int64_t> shape;
  std::vector<std::uint8_t> bytes;

  std::int64_t count() const;
  std::vector<float> values() const;
};

// values as the nearest elements of dtype.
HostTensor encode_tensor(DType dtype, std::vector<std::int64_t> shape, std::span<const float> values);

// A row-major e4m3 V [b, s, h, d] in the packed layout of quantize.h: zeros where there is no token.
HostTensor pack_host_v(const HostTensor& v);

enum class Layout : std::uint8_t {
  kDense,            // contiguous
  kPadded,           // room behind channels, heads and tokens, and an offset
  kPackedQkv,        // the middle third of the heads of a larger tensor
  kTransposedHeads,  // heads outside of tokens
  kExpandedHeads,    // stride 0 over heads; the elements must not depend on the head
  kExpandedBatch,    // stride 0 over batch entries; the elements must not depend on the batch entry
  kOddSizeOne,       // contiguous, with stride 7 for dims of size 1 but the last
  kShifted,          // contiguous, one element past an aligned address
};

const char* name_of(Layout layout);

// Which dims of a 4-dim tensor are tokens and heads: [b, s, h, d] or the packed [b, h, d, s].
struct DimRoles {
  int token = 1, head = 2;
};
inline constexpr DimRoles kRowMajorRoles{1, 2}, kPackedRoles{3, 1};

struct Placement {
  std::array<std::int64_t, 4> strides{};  // elements
  std::int64_t offset = 0, size = 0;      // elements
};

Placement place(Layout layout, std::span<const std::int64_t> shape, DimRoles roles);

// What fills the memory between the elements.
enum class Gap : std::uint8_t { kZeros, kNan, kPattern };

inline constexpr std::uint8_t kPatternByte = 0x5A;

// So much memory of it.
std::vector<std::uint8_t> gap_bytes(std::size_t bytes, DType dtype, Gap gap);

class PlacedTensor {
 public:
  PlacedTensor(TestDevice& device, const HostTensor& tensor, const Placement& placement, Gap gap);

  MutableTensorView view() const;
  // The elements, as they are in the buffer now. Every byte between them must still be what `gap` put there, else
  // `changed` tells of the first that is not.
  HostTensor read(std::string& changed) const;
  // Puts back what the constructor wrote.
  void reset() { buffer_.upload(initial_.data()); }

 private:
  template <class Visit>
  void for_each_element(Visit visit) const;

  Device device_;
  HostTensor tensor_;
  Placement placement_;
  std::vector<std::uint8_t> initial_;
  Buffer buffer_;
};

}  // namespace fp8attn::test
