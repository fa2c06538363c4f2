#include "cuda/sm90/prefill/variants.h"

namespace fp8attn::cuda {
namespace {

using Launch = void (*)(const PrefillProblem&, Workspace, Stream);

std::size_t no_workspace(const PrefillProblem&) { return 0; }

constexpr PrefillVariant row(const char* name, DType dtype, int head_dim, VLayout v_layout, PMode p_mode, Launch launch,
                             const char* left_out_by) {
  return {.name = name,
          .device = DeviceKind::kCuda,
          .dtype = dtype,
          .head_dim_qk = head_dim,
          .head_dim_v = head_dim,
          .v_layout = v_layout,
          .p_mode = p_mode,
          .left_out_by = left_out_by,
          .workspace_size = no_workspace,
          .launch = launch};
}

}  // namespace

// instances/<function>.cu. The build defines FP8ATTN_WITH_FP8, FP8ATTN_WITH_FP16 and FP8ATTN_WITH_HEAD_DIM_<d> as 0
// or 1. PRESENT(part, dim, function) is the launcher and what left it out, if anything did.
#define DECLARE(function) void function(const PrefillProblem&, Workspace, Stream);
#define PRESENT(part, dim, function) PRESENT_(FP8ATTN_WITH_##part, FP8ATTN_WITH_HEAD_DIM_##dim, part, function)
#define PRESENT_(part_on, dim_on, part, function) PRESENT__(part_on, dim_on, part, function)
#define PRESENT__(part_on, dim_on, part, function) PRESENT_##part_on##dim_on(part, function)
#define PRESENT_11(part, function) function, nullptr
#define PRESENT_10(part, function) nullptr, "FP8ATTN_HEAD_DIMS"
#define PRESENT_01(part, function) nullptr, "FP8ATTN_" #part
#define PRESENT_00(part, function) nullptr, "FP8ATTN_" #part

#define E4M3_FUNCTIONS(X, dim)               \
  X(prefill_e4m3_d##dim##_packed_exact)      \
  X(prefill_e4m3_d##dim##_packed_default)    \
  X(prefill_e4m3_d##dim##_packed_fast)       \
  X(prefill_e4m3_d##dim##_row_major_exact)   \
  X(prefill_e4m3_d##dim##_row_major_default) \
  X(prefill_e4m3_d##dim##_row_major_fast)
E4M3_FUNCTIONS(DECLARE, 64)
E4M3_FUNCTIONS(DECLARE, 128)
DECLARE(prefill_bf16_d64)
DECLARE(prefill_bf16_d128)
DECLARE(prefill_fp16_d64)
DECLARE(prefill_fp16_d128)

#define LAYOUT_NAME_packed "packed"
#define LAYOUT_NAME_row_major "row-major"
#define E4M3_ROW(dim, layout, Layout, mode, Mode)                                                             \
  row("sm90-e4m3-d" #dim "-" LAYOUT_NAME_##layout "-" #mode, DType::kE4M3, dim, VLayout::Layout, PMode::Mode, \
      PRESENT(FP8, dim, prefill_e4m3_d##dim##_##layout##_##mode))
#define E4M3_ROWS(dim)                                                                                     \
  E4M3_ROW(dim, packed, kPacked, default, kDefault), E4M3_ROW(dim, packed, kPacked, exact, kExact),        \
      E4M3_ROW(dim, packed, kPacked, fast, kFast), E4M3_ROW(dim, row_major, kRowMajor, default, kDefault), \
      E4M3_ROW(dim, row_major, kRowMajor, exact, kExact), E4M3_ROW(dim, row_major, kRowMajor, fast, kFast)
#define ROW_16BIT(dim, type, Type)                                                    \
  row("sm90-" #type "-d" #dim, DType::Type, dim, VLayout::kRowMajor, PMode::kDefault, \
      PRESENT(FP16, dim, prefill_##type##_d##dim))

std::span<const PrefillVariant> prefill_variants() {
  static constexpr PrefillVariant kRows[] = {
      E4M3_ROWS(64),
      E4M3_ROWS(128),
      ROW_16BIT(64, bf16, kBF16),
      ROW_16BIT(64, fp16, kFP16),
      ROW_16BIT(128, bf16, kBF16),
      ROW_16BIT(128, fp16, kFP16),
  };
  return kRows;
}

}  // namespace fp8attn::cuda
