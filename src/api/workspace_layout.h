// Where the parts of a workspace begin.
#pragma once

#include <cstddef>
#include <cstdint>

namespace fp8attn {

// Alignment of a workspace and of each of its parts, bytes.
inline constexpr std::size_t kWorkspaceAlignment = 256;

// Bytes that a part of `bytes` bytes takes up.
constexpr std::size_t align_workspace(std::int64_t bytes) {
  return (static_cast<std::size_t>(bytes) + kWorkspaceAlignment - 1) / kWorkspaceAlignment * kWorkspaceAlignment;
}

// Hands out the parts of a workspace one after the other. Without data: counts them only.
class Carver {
 public:
  explicit Carver(void* data) : data_(static_cast<std::uint8_t*>(data)) {}

  void* take(std::int64_t bytes) {
    void* part = data_ == nullptr ? nullptr : data_ + used_;
    used_ += align_workspace(bytes);
    return part;
  }
  float* take_floats(std::int64_t count) {
    return static_cast<float*>(take(count * static_cast<std::int64_t>(sizeof(float))));
  }
  std::size_t used() const { return used_; }

 private:
  std::uint8_t* data_;
  std::size_t used_ = 0;
};

}  // namespace fp8attn
