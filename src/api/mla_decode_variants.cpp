#include "api/mla_decode_variants.h"

#include "cpu/mla_decode.h"

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

}  // namespace

const char* name_of(Addressing addressing) {
  switch (addressing) {
    case Addressing::kDense: return "dense";
    case Addressing::kSparse: return "sparse";
  }
  return "?";
}

std::span<const MlaDecodeVariant> mla_decode_variants() { return kCpuRows; }

}  // namespace fp8attn
