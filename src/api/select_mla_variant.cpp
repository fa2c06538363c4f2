#include "api/select_mla_variant.h"

#include <fmt/format.h>

#include <algorithm>

#include "api/view_checks.h"

namespace fp8attn {
namespace {

std::string combination(DType q_dtype, CacheFormat format, Addressing addressing) {
  return fmt::format("{} q with a {} cache, {}", name_text(q_dtype), name_text(format), name_of(addressing));
}

// What the kind of device has.
std::string offers(DeviceKind device, std::span<const MlaDecodeVariant> rows) {
  std::vector<std::string> texts;
  for (const MlaDecodeVariant& row : rows) {
    if (row.device == device) texts.push_back(combination(row.q_dtype, row.format, row.addressing));
  }
  return texts.empty() ? "a device that has kernels of MLA decode" : or_text(texts);
}

}  // namespace

MlaSelection select_mla_variant(const MlaDecodeProblem& problem, std::span<const MlaDecodeVariant> rows) {
  const DeviceKind device = problem.q.device.kind;
  const Addressing addressing = addressing_of(problem);
  const auto row = std::ranges::find_if(rows, [&](const MlaDecodeVariant& candidate) {
    return candidate.device == device && candidate.q_dtype == problem.q.dtype && candidate.format == problem.format &&
           candidate.addressing == addressing;
  });
  if (row == rows.end()) {
    const std::string got = combination(problem.q.dtype, problem.format, addressing);
    return {nullptr, {{"q.dtype", fmt::format("{} on {}", got, name_text(device)), offers(device, rows)}}};
  }
  if (row->left_out_by != nullptr) {
    return {nullptr,
            {{"variant", fmt::format("{}, left out of this build", row->name),
              fmt::format("a build whose CMake option {} includes it", row->left_out_by)}}};
  }
  return {&*row, {}};
}

}  // namespace fp8attn
