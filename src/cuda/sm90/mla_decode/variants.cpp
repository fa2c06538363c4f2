#include "cuda/sm90/mla_decode/variants.h"

#include "cuda/sm90/mla_decode/workspace.h"

namespace fp8attn::cuda {

// instances/mla_decode_<format>.cu. The build defines FP8ATTN_WITH_FP8 and FP8ATTN_WITH_FP16 as 0 or 1. PRESENT(part,
// function) is the launcher and what left it out, if anything did.
#define PRESENT(part, function) PRESENT_(FP8ATTN_WITH_##part, part, function)
#define PRESENT_(on, part, function) PRESENT__(on, part, function)
#define PRESENT__(on, part, function) PRESENT_##on(part, function)
#define PRESENT_1(part, function) function, nullptr
#define PRESENT_0(part, function) nullptr, "FP8ATTN_" #part

void mla_decode_bf16(const MlaDecodeProblem&, Workspace, Stream);
void mla_decode_tensor(const MlaDecodeProblem&, Workspace, Stream);
void mla_decode_token128(const MlaDecodeProblem&, Workspace, Stream);
void mla_decode_token(const MlaDecodeProblem&, Workspace, Stream);

namespace {

using Launch = void (*)(const MlaDecodeProblem&, Workspace, Stream);

constexpr MlaDecodeVariant row(const char* name, DType q_dtype, CacheFormat format, Addressing addressing,
                               Launch launch, const char* left_out_by) {
  return {.name = name,
          .device = DeviceKind::kCuda,
          .q_dtype = q_dtype,
          .format = format,
          .addressing = addressing,
          .left_out_by = left_out_by,
          .workspace_size = mla_workspace_size,
          .launch = launch};
}

#define ROWS(part, q_name, QType, format, Format)                                                           \
  row("sm90-mla-" q_name "-" #format "-dense", DType::QType, CacheFormat::Format, Addressing::kDense,       \
      PRESENT(part, mla_decode_##format)),                                                                  \
      row("sm90-mla-" q_name "-" #format "-sparse", DType::QType, CacheFormat::Format, Addressing::kSparse, \
          PRESENT(part, mla_decode_##format))

}  // namespace

std::span<const MlaDecodeVariant> mla_decode_variants() {
  static constexpr MlaDecodeVariant kRows[] = {
      ROWS(FP16, "bf16", kBF16, bf16, kBF16),        ROWS(FP8, "bf16", kBF16, tensor, kTensor),
      ROWS(FP8, "bf16", kBF16, token128, kToken128), ROWS(FP8, "bf16", kBF16, token, kToken),
      ROWS(FP8, "e4m3", kE4M3, tensor, kTensor),     ROWS(FP8, "e4m3", kE4M3, token128, kToken128),
      ROWS(FP8, "e4m3", kE4M3, token, kToken),
  };
  return kRows;
}

}  // namespace fp8attn::cuda
