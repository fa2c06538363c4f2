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

}  // namespace fp8attn
