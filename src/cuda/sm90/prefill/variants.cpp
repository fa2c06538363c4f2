#include "cuda/sm90/prefill/variants.h"

#include "api/workspace_layout.h"
#include "cuda/sm90/prefill/prepared.h"
#include "cuda/sm90/quantize/quantize.h"

namespace fp8attn::cuda {
namespace {

using Launch = void (*)(const PrefillProblem&, Workspace, Stream);
using KernelLaunch = void (*)(const PrefillProblem&, const PreparedBatch&, Stream);

std::size_t no_workspace(const PrefillProblem&) { return 0; }

// A packed V of a problem with a row-major one, in memory that begins at `data`.
MutableTensorView packed_value(const PrefillProblem& problem, void* data) {
  const auto& shape = problem.v.shape;
  return MutableTensorView::contiguous(data, DType::kE4M3, {shape[0], shape[2], shape[3], packed_length(shape[1])},
                                       problem.v.device);
}

std::size_t packed_value_bytes(const PrefillProblem& problem) {
  return align_workspace(packed_value(problem, nullptr).count());
}

template <KernelLaunch kKernel>
void launch(const PrefillProblem& problem, Workspace, Stream stream) {
  kKernel(problem, {.batch = batch_view(problem)}, stream);
}

// The tensor cores read 8-bit values with contiguous tokens only, so a row-major V is packed first. A transposition
// within the kernel would spare 2 bytes of traffic an element and cost 12 to 24% of the kernel
// (docs/kernels/prefill.md).
template <KernelLaunch kPacked>
void pack_and_launch(const PrefillProblem& problem, Workspace workspace, Stream stream) {
  const MutableTensorView packed = packed_value(problem, workspace.data);
  cuda::pack_v(problem.v, packed, stream);
  PrefillProblem with_packed = problem;
  with_packed.v = packed;
  with_packed.v_layout = VLayout::kPacked;
  kPacked(with_packed, {.batch = batch_view(problem)}, stream);
}

constexpr PrefillVariant row(const char* name, DType dtype, int head_dim, VLayout v_layout, PMode p_mode, Launch launch,
                             const char* left_out_by) {
  return {.name = name,
          .device = DeviceKind::kCuda,
          .dtype = dtype,
          .head_dim_qk = head_dim,
          .head_dim_v = head_dim == 192 ? 128 : head_dim,
          .v_layout = v_layout,
          .p_mode = p_mode,
          .left_out_by = left_out_by,
          .workspace_size = dtype == DType::kE4M3 && v_layout == VLayout::kRowMajor ? packed_value_bytes : no_workspace,
          .launch = launch};
}

}  // namespace

// instances/<function>.cu. The build defines FP8ATTN_WITH_FP8, FP8ATTN_WITH_FP16 and FP8ATTN_WITH_HEAD_DIM_<d> as 0
// or 1. PRESENT(part, dim, function) is the launcher and what left it out, if anything did.
#define DECLARE(function) void function(const PrefillProblem&, const PreparedBatch&, Stream);
#define PRESENT(part, dim, function) PRESENT_(FP8ATTN_WITH_##part, FP8ATTN_WITH_HEAD_DIM_##dim, part, function)
#define PRESENT_(part_on, dim_on, part, function) PRESENT__(part_on, dim_on, part, function)
#define PRESENT__(part_on, dim_on, part, function) PRESENT_##part_on##dim_on(part, function)
#define PRESENT_11(part, function) function, nullptr
#define PRESENT_10(part, function) nullptr, "FP8ATTN_HEAD_DIMS"
#define PRESENT_01(part, function) nullptr, "FP8ATTN_" #part
#define PRESENT_00(part, function) nullptr, "FP8ATTN_" #part

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

#define E4M3_ROWS_OF(dim, mode, Mode)                                                                 \
  row("sm90-e4m3-d" #dim "-packed-" #mode, DType::kE4M3, dim, VLayout::kPacked, PMode::Mode,          \
      PRESENT(FP8, dim, launch<prefill_e4m3_d##dim##_packed_##mode>)),                                \
      row("sm90-e4m3-d" #dim "-row-major-" #mode, DType::kE4M3, dim, VLayout::kRowMajor, PMode::Mode, \
          PRESENT(FP8, dim, pack_and_launch<prefill_e4m3_d##dim##_packed_##mode>))
#define E4M3_ROWS(dim) \
  E4M3_ROWS_OF(dim, default, kDefault), E4M3_ROWS_OF(dim, exact, kExact), E4M3_ROWS_OF(dim, fast, kFast)
#define ROW_16BIT(dim, type, Type)                                                    \
  row("sm90-" #type "-d" #dim, DType::Type, dim, VLayout::kRowMajor, PMode::kDefault, \
      PRESENT(FP16, dim, launch<prefill_##type##_d##dim>))

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
