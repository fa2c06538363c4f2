#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <tuple>
#include <utility>

#include "api/dispatch.h"
#include "api/prefill_batch.h"
#include "api/qkv_quantization.h"
#include "api/view_checks.h"

namespace fp8attn {
namespace {

// Head dims that CUDA takes are multiples of this: 16-byte copies of 8-bit channels.
constexpr std::int64_t kHeadDimGrain = 16;

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
  DType dtype;  // of k and v
  VLayout v_layout;
  std::int64_t d_qk, d_v;
  PMode p_mode;
  bool short_queries;

  bool queries_fit(const PrefillVariant& row) const { return short_queries || !row.short_queries; }
  bool dtype_fits(const PrefillVariant& row) const { return row.device == device && row.dtype == dtype; }
  bool layout_fits(const PrefillVariant& row) const { return row.v_layout == v_layout; }
  // The kernels of CUDA read channels in groups of 16 and fill up what is missing.
  bool head_dims_fit(const PrefillVariant& row) const {
    if (row.head_dim_qk == 0) return true;
    return d_qk <= row.head_dim_qk && d_v <= row.head_dim_v && d_qk % kHeadDimGrain == 0 && d_v % kHeadDimGrain == 0;
  }
  bool mode_fits(const PrefillVariant& row) const {
    return device == DeviceKind::kCpu || dtype != DType::kE4M3 || row.short_queries || row.p_mode == p_mode;
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
            fmt::format("multiples of {} up to {}", kHeadDimGrain, offers(same_layout, dims_of))};
  }
  return {"p_mode", fmt::format("{} with {}", name_of(wanted.p_mode), where),
          offers(same_dims, [](const auto& row) { return std::string(name_of(row.p_mode)); })};
}

}  // namespace

Selection select_variant(const PrefillProblem& problem, std::span<const PrefillVariant> table) {
  const TensorView &q = problem.q, &v = problem.v;
  const Wanted wanted = {.device = q.device.kind,
                         .dtype = quantizes_query(problem) ? DType::kE4M3 : q.dtype,
                         .v_layout = problem.v_layout,
                         .d_qk = q.shape[q.rank - 1],
                         .d_v = v.shape[problem.v_layout == VLayout::kPacked ? 2 : v.rank - 1],
                         .p_mode = problem.p_mode,
                         .short_queries = has_short_queries(batch_of(problem))};
  const Rows rows = rows_of(wanted.device, table);
  const Rows fitting = keep(rows, [&](const PrefillVariant& row) {
    return wanted.queries_fit(row) && wanted.dtype_fits(row) && wanted.layout_fits(row) && wanted.head_dims_fit(row) &&
           wanted.mode_fits(row);
  });
  const Rows usual = keep(rows, [](const PrefillVariant& row) { return !row.short_queries; });
  if (fitting.empty()) return rows.empty() ? Selection{} : Selection{nullptr, {explain(wanted, usual)}};
  const PrefillVariant& row = **std::ranges::min_element(fitting, {}, [](const PrefillVariant* row) {
    return std::tuple(!row->short_queries, row->head_dim_qk, row->head_dim_v);
  });
  if (row.left_out_by != nullptr) {
    return {nullptr,
            {{"variant", fmt::format("{}, left out of this build", row.name),
              fmt::format("a build whose CMake option {} includes it", row.left_out_by)}}};
  }
  return {&row, {}};
}

Selection select_where_clear(const PrefillProblem& problem, std::span<const Reason> wrong,
                             std::span<const PrefillVariant> table) {
  // What the choice looks at: layouts, head dims, and values of enums.
  constexpr std::array kArguments = {"q.shape",     "k.shape",   "v.shape",         "kv_offsets",
                                     "kv_lengths",  "v_layout",  "p_mode",          "quantize.q_scale",
                                     "block_table", "q_offsets", "quantize.v_scale"};
  const bool clear = std::ranges::none_of(
      wrong, [&](const Reason& reason) { return std::ranges::find(kArguments, reason.argument) != kArguments.end(); });
  if (!clear) return {};
  return select_variant(problem.quantize ? lay_out(problem, nullptr).attention : problem, table);
}

}  // namespace fp8attn
