#include "api/mla_decode_variants.h"

#include <vector>

#include "cpu/mla_decode.h"
#ifdef FP8ATTN_WITH_CUDA
#include "cuda/sm90/mla_decode/variants.h"
#endif

namespace fp8attn {
namespace {

constexpr MlaDecodeVariant cpu_row(const char* name, DType q_dtype, CacheFormat format, Addressing addressing) {
  return {.name = name,
          .device = DeviceKind::kCpu,
          .q_dtype = q_dtype,
          .format = format,
          .addressing = addressing,
          .left_out_by = nullptr,
          .workspace_size = [](const MlaDecodeProblem&) -> std::size_t { return 0; },
          .launch = cpu::mla_decode};
}

#define CPU_ROWS(q_name, QType, format_name, Format)                                                          \
  cpu_row("cpu-mla-" q_name "-" format_name "-dense", DType::QType, CacheFormat::Format, Addressing::kDense), \
      cpu_row("cpu-mla-" q_name "-" format_name "-sparse", DType::QType, CacheFormat::Format, Addressing::kSparse)

constexpr MlaDecodeVariant kCpuRows[] = {
    CPU_ROWS("bf16", kBF16, "bf16", kBF16),         CPU_ROWS("bf16", kBF16, "tensor", kTensor),
    CPU_ROWS("bf16", kBF16, "token128", kToken128), CPU_ROWS("bf16", kBF16, "token", kToken),
    CPU_ROWS("e4m3", kE4M3, "bf16", kBF16),         CPU_ROWS("e4m3", kE4M3, "tensor", kTensor),
    CPU_ROWS("e4m3", kE4M3, "token128", kToken128), CPU_ROWS("e4m3", kE4M3, "token", kToken),
};

std::vector<MlaDecodeVariant> all_rows() {
  std::vector<MlaDecodeVariant> rows(std::begin(kCpuRows), std::end(kCpuRows));
#ifdef FP8ATTN_WITH_CUDA
  const std::span<const MlaDecodeVariant> cuda_rows = cuda::mla_decode_variants();
  rows.insert(rows.end(), cuda_rows.begin(), cuda_rows.end());
#endif
  return rows;
}

}  // namespace

const char* name_of(Addressing addressing) {
  switch (addressing) {
    case Addressing::kDense: return "dense";
    case Addressing::kSparse: return "sparse";
  }
  return "?";
}

std::span<const MlaDecodeVariant> mla_decode_variants() {
  static const std::vector<MlaDecodeVariant> rows = all_rows();
  return rows;
}

}  // namespace fp8attn
