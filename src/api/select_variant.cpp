#include <fmt/format.h>

#include <algorithm>

#include "api/dispatch.h"
#include "api/view_checks.h"

namespace fp8attn {
namespace {

using Rows = std::vector<const PrefillVariant*>;

Rows rows_of(DeviceKind device, std::span<const PrefillVariant> table) {
  Rows rows;
  for (const PrefillVariant& row : table) {
    if (row.device == device) rows.push_back(&row);
  }
  return rows;
}

Rows keep(const Rows& rows, auto predicate) {
  Rows kept;
  std::ranges::copy_if(rows, std::back_inserter(kept), [&](const PrefillVariant* row) { return predicate(*row); });
  return kept;
}

// What the rows offer, each alternative once, in table order.
std::string offers(const Rows& rows, auto text_of) {
  std::vector<std::string> texts;
  for (const PrefillVariant* row : rows) {
    const std::string text = text_of(*row);
    if (std::ranges::find(texts, text) == texts.end()) texts.push_back(text);
  }
  return or_text(texts);
}

struct Wanted {
  DeviceKind device;
  DType dtype;
  VLayout v_layout;
  std::int64_t d_qk, d_v;
  PMode p_mode;

  bool dtype_fits(const PrefillVariant& row) const { return row.device == device && row.dtype == dtype; }
  bool layout_fits(const PrefillVariant& row) const { return row.v_layout == v_layout; }
  bool head_dims_fit(const PrefillVariant& row) const {
    return (row.head_dim_qk == 0 || row.head_dim_qk == d_qk) && (row.head_dim_v == 0 || row.head_dim_v == d_v);
  }
  bool mode_fits(const PrefillVariant& row) const {
    return device == DeviceKind::kCpu || dtype != DType::kE4M3 || row.p_mode == p_mode;
  }
};

// Why none of the device's rows fits: narrows them down, one property after the other, to the first that nothing has.
Reason explain(const Wanted& wanted, const Rows& rows) {
  const std::string where = fmt::format("{} on {}", name_text(wanted.dtype), name_of(wanted.device));

  const Rows same_dtype = keep(rows, [&](const auto& row) { return wanted.dtype_fits(row); });
  if (same_dtype.empty()) {
    return {"q.dtype", where, offers(rows, [](const auto& row) { return std::string(name_of(row.dtype)); })};
  }
  const Rows same_layout = keep(same_dtype, [&](const auto& row) { return wanted.layout_fits(row); });
  if (same_layout.empty()) {
    return {"v_layout", fmt::format("{} with {}", name_of(wanted.v_layout), where),
            offers(same_dtype, [](const auto& row) { return std::string(name_of(row.v_layout)); })};
  }
  const Rows same_dims = keep(same_layout, [&](const auto& row) { return wanted.head_dims_fit(row); });
  if (same_dims.empty()) {
    const auto dims_of = [](const auto& row) { return fmt::format("{} and {}", row.head_dim_qk, row.head_dim_v); };
    return {"q.shape", fmt::format("head dims {} (q, k) and {} (v) with {}", wanted.d_qk, wanted.d_v, where),
            offers(same_layout, dims_of)};
  }
  return {"p_mode", fmt::format("{} with {}", name_of(wanted.p_mode), where),
          offers(same_dims, [](const auto& row) { return std::string(name_of(row.p_mode)); })};
}

}  // namespace

Selection select_variant(const PrefillProblem& problem, std::span<const PrefillVariant> table) {
  const Wanted wanted = {.device = problem.q.device.kind,
                         .dtype = problem.q.dtype,
                         .v_layout = problem.v_layout,
                         .d_qk = problem.q.shape[3],
                         .d_v = problem.v.shape[problem.v_layout == VLayout::kPacked ? 2 : 3],
                         .p_mode = problem.p_mode};
  const auto row = std::ranges::find_if(table, [&](const PrefillVariant& candidate) {
    return wanted.dtype_fits(candidate) && wanted.layout_fits(candidate) && wanted.head_dims_fit(candidate) &&
           wanted.mode_fits(candidate);
  });
  if (row == table.end()) {
    const Rows rows = rows_of(wanted.device, table);
    return rows.empty() ? Selection{} : Selection{nullptr, {explain(wanted, rows)}};
  }
  if (row->left_out_by != nullptr) {
    return {nullptr,
            {{"variant", fmt::format("{}, left out of this build", row->name),
              fmt::format("a build whose CMake option {} includes it", row->left_out_by)}}};
  }
  return {&*row, {}};
}

}  // namespace fp8attn
