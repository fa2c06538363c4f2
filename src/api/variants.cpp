#include "api/variants.h"

#include <vector>

#include "cpu/prefill.h"
#ifdef FP8ATTN_WITH_CUDA
#include "cuda/sm90/decode/variants.h"
#include "cuda/sm90/prefill/variants.h"
#endif

namespace fp8attn {
namespace {

constexpr PrefillVariant cpu_row(const char* name, DType dtype, VLayout v_layout) {
  return {.name = name,
          .device = DeviceKind::kCpu,
          .dtype = dtype,
          .head_dim_qk = 0,
          .head_dim_v = 0,
          .v_layout = v_layout,
          .p_mode = PMode::kDefault,
          .left_out_by = nullptr,
          .workspace_size = [](const PrefillProblem&) -> std::size_t { return 0; },
          .launch = cpu::prefill};
}

constexpr PrefillVariant kCpuRows[] = {
    cpu_row("cpu-e4m3-row-major", DType::kE4M3, VLayout::kRowMajor),
    cpu_row("cpu-e4m3-packed", DType::kE4M3, VLayout::kPacked),
    cpu_row("cpu-bf16-row-major", DType::kBF16, VLayout::kRowMajor),
    cpu_row("cpu-fp16-row-major", DType::kFP16, VLayout::kRowMajor),
    cpu_row("cpu-f32-row-major", DType::kF32, VLayout::kRowMajor),
};

std::vector<PrefillVariant> all_rows() {
  std::vector<PrefillVariant> rows(std::begin(kCpuRows), std::end(kCpuRows));
#ifdef FP8ATTN_WITH_CUDA
  for (const std::span<const PrefillVariant> cuda_rows : {cuda::prefill_variants(), cuda::decode_variants()}) {
    rows.insert(rows.end(), cuda_rows.begin(), cuda_rows.end());
  }
#endif
  return rows;
}

}  // namespace

std::span<const PrefillVariant> prefill_variants() {
  static const std::vector<PrefillVariant> rows = all_rows();
  return rows;
}

}  // namespace fp8attn
