#include "cuda/sm90/decode/variants.h"

#include "cuda/sm90/decode/workspace.h"

namespace fp8attn::cuda {

// instances/<function>.cu. The build defines FP8ATTN_WITH_FP8, FP8ATTN_WITH_FP16 and FP8ATTN_WITH_HEAD_DIM_<d> as 0
// or 1. PRESENT(part, dim, launcher) is the launcher and what left it out, if anything did.
#define DECLARE(function) void function(const PrefillProblem&, Workspace, Stream);
#define PRESENT(part, dim, function) PRESENT_(FP8ATTN_WITH_##part, FP8ATTN_WITH_HEAD_DIM_##dim, part, function)
#define PRESENT_(part_on, dim_on, part, function) PRESENT__(part_on, dim_on, part, function)
#define PRESENT__(part_on, dim_on, part, function) PRESENT_##part_on##dim_on(part, function)
#define PRESENT_11(part, function) function, nullptr
#define PRESENT_10(part, function) nullptr, "FP8ATTN_HEAD_DIMS"
#define PRESENT_01(part, function) nullptr, "FP8ATTN_" #part
#define PRESENT_00(part, function) nullptr, "FP8ATTN_" #part

// 16-bit values of 256 channels leave too few registers: those stay with the prefill kernel.
#define DIMS_16BIT(X, type) X(decode_##type##_d64) X(decode_##type##_d128) X(decode_##type##_d192)
DIMS_16BIT(DECLARE, e4m3)
DECLARE(decode_e4m3_d256)
DIMS_16BIT(DECLARE, bf16)
DIMS_16BIT(DECLARE, fp16)

namespace {

using Launch = void (*)(const PrefillProblem&, Workspace, Stream);

constexpr PrefillVariant row(const char* name, DType dtype, int head_dim, Launch launch, const char* left_out_by) {
  return {.name = name,
          .device = DeviceKind::kCuda,
          .dtype = dtype,
          .head_dim_qk = head_dim,
          .head_dim_v = head_dim == 192 ? 128 : head_dim,
          .v_layout = VLayout::kRowMajor,
          .p_mode = PMode::kExact,
          .left_out_by = left_out_by,
          .workspace_size = decode_workspace_size,
          .launch = launch,
          .short_queries = true};
}

#define ROW(part, type, Type, dim) \
  row("sm90-decode-" #type "-d" #dim, DType::Type, dim, PRESENT(part, dim, decode_##type##_d##dim))
#define ROWS(part, type, Type) ROW(part, type, Type, 64), ROW(part, type, Type, 128), ROW(part, type, Type, 192)

}  // namespace

std::span<const PrefillVariant> decode_variants() {
  static constexpr PrefillVariant kRows[] = {ROWS(FP8, e4m3, kE4M3), ROW(FP8, e4m3, kE4M3, 256),
                                             ROWS(FP16, bf16, kBF16), ROWS(FP16, fp16, kFP16)};
  return kRows;
}

}  // namespace fp8attn::cuda
