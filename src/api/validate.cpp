#include "api/validate.h"

#include <fmt/format.h>

#include <cstdint>

namespace fp8attn {

std::vector<Reason> validate(Workspace workspace, std::size_t needed, std::span<const NamedView> tensors) {
  if (needed == 0) return {};
  std::vector<Reason> reasons;
  if (workspace.data == nullptr) {
    reasons.push_back({"workspace.data", "a null pointer", fmt::format("{} bytes on the tensors' device", needed)});
  } else if (reinterpret_cast<std::uintptr_t>(workspace.data) % kWorkspaceAlignment != 0) {
    reasons.push_back({"workspace.data", fmt::format("address {}", workspace.data),
                       fmt::format("an address that is a multiple of {} bytes", kWorkspaceAlignment)});
  }
  if (workspace.size < needed) {
    reasons.push_back({"workspace.size", fmt::format("{} bytes", workspace.size),
                       fmt::format("at least {} bytes, as workspace_size() says", needed)});
  }
  if (!reasons.empty()) return reasons;
  const auto bytes = TensorView::contiguous(workspace.data, DType::kU8, {static_cast<std::int64_t>(needed)});
  for (const NamedView& tensor : tensors) check_apart(reasons, {"workspace", bytes}, {tensor});
  return reasons;
}

}  // namespace fp8attn
