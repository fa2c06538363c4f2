#include "cuda/sm90/prefill/variants.h"

#include "cuda/sm90/prefill/prepare.h"

namespace fp8attn::cuda {
namespace {

using Launch = void (*)(const PrefillProblem&, Workspace, Stream);
using KernelLaunch = void (*)(const PrefillProblem&, const PreparedBatch&, Stream);

template <bool kIsE4M3, int kHeadDim>
std::size_t workspace_size(const PrefillProblem& problem) {
  return prepare(problem, prefill_shape(kIsE4M3, kHeadDim), nullptr).bytes;
}

template <KernelLaunch kKernel, bool kIsE4M3, int kHeadDim>
void launch(const PrefillProblem& problem, Workspace workspace, Stream stream) {
  const Preparation preparation = prepare(problem, prefill_shape(kIsE4M3, kHeadDim), workspace.data);
  run(preparation, stream);
  kKernel(preparation.problem, preparation.prepared, stream);
}

using WorkspaceSize = std::size_t (*)(const PrefillProblem&);

constexpr PrefillVariant row(const char* name, DType dtype, int head_dim, VLayout v_layout, PMode p_mode,
                             WorkspaceSize workspace_size, Launch launch, const char* left_out_by) {
  return {.name = name,
          .device = DeviceKind::kCuda,
          .dtype = dtype,
          .head_dim_qk = head_dim,
          .head_dim_v = head_dim == 192 ? 128 : head_dim,
          .v_layout = v_layout,
          .p_mode = p_mode,
          .left_out_by = left_out_by,
          .workspace_size = workspace_size,
          .launch = launch};
}

}  // namespace

// instances/<function>.cu. The build defines FP8ATTN_WITH_FP8, FP8ATTN_WITH_FP16 and FP8ATTN_WITH_HEAD_DIM_<d> as 0
// or 1. PRESENT(part, dim, launcher) is the launcher and what left it out, if anything did.
#define DECLARE(function) void function(const PrefillProblem&, const PreparedBatch&, Stream);
#define PRESENT(part, dim, ...) PRESENT_(FP8ATTN_WITH_##part, FP8ATTN_WITH_HEAD_DIM_##dim, part, __VA_ARGS__)
#define PRESENT_(part_on, dim_on, part, ...) PRESENT__(part_on, dim_on, part, __VA_ARGS__)
#define PRESENT__(part_on, dim_on, part, ...) PRESENT_##part_on##dim_on(part, __VA_ARGS__)
#define PRESENT_11(part, ...) __VA_ARGS__, nullptr
#define PRESENT_10(part, ...) nullptr, "FP8ATTN_HEAD_DIMS"
#define PRESENT_01(part, ...) nullptr, "FP8ATTN_" #part
#define PRESENT_00(part, ...) nullptr, "FP8ATTN_" #part

#define E4M3_FUNCTIONS(X, dim)            \
  X(prefill_e4m3_d##dim##_packed_exact)   \
  X(prefill_e4m3_d##dim##_packed_default) \
  X(prefill_e4m3_d##dim##_packed_fast)
E4M3_FUNCTIONS(DECLARE, 64)
E4M3_FUNCTIONS(DECLARE, 128)
E4M3_FUNCTIONS(DECLARE, 192)
E4M3_FUNCTIONS(DECLARE, 256)
DECLARE(prefill_bf16_d64)
DECLARE(prefill_bf16_d128)
DECLARE(prefill_fp16_d64)
DECLARE(prefill_fp16_d128)
DECLARE(prefill_bf16_d192)
DECLARE(prefill_fp16_d192)
DECLARE(prefill_bf16_d256)
DECLARE(prefill_fp16_d256)

#define E4M3_ROW(dim, layout, Layout, mode, Mode)                                               \
  row("sm90-e4m3-d" #dim "-" layout "-" #mode, DType::kE4M3, dim, VLayout::Layout, PMode::Mode, \
      workspace_size<true, dim>, PRESENT(FP8, dim, launch<prefill_e4m3_d##dim##_packed_##mode, true, dim>))
#define E4M3_ROWS_OF(dim, mode, Mode) \
  E4M3_ROW(dim, "packed", kPacked, mode, Mode), E4M3_ROW(dim, "row-major", kRowMajor, mode, Mode)
#define E4M3_ROWS(dim) \
  E4M3_ROWS_OF(dim, default, kDefault), E4M3_ROWS_OF(dim, exact, kExact), E4M3_ROWS_OF(dim, fast, kFast)
#define ROW_16BIT(dim, type, Type)                                                                                \
  row("sm90-" #type "-d" #dim, DType::Type, dim, VLayout::kRowMajor, PMode::kDefault, workspace_size<false, dim>, \
      PRESENT(FP16, dim, launch<prefill_##type##_d##dim, false, dim>))

std::span<const PrefillVariant> prefill_variants() {
  static constexpr PrefillVariant kRows[] = {
      E4M3_ROWS(64),
      E4M3_ROWS(128),
      E4M3_ROWS(192),
      E4M3_ROWS(256),
      ROW_16BIT(64, bf16, kBF16),
      ROW_16BIT(64, fp16, kFP16),
      ROW_16BIT(128, bf16, kBF16),
      ROW_16BIT(128, fp16, kFP16),
      ROW_16BIT(192, bf16, kBF16),
      ROW_16BIT(192, fp16, kFP16),
      ROW_16BIT(256, bf16, kBF16),
      ROW_16BIT(256, fp16, kFP16),
  };
  return kRows;
}

}  // namespace fp8attn::cuda
