#include "fp8attn/kv_cache.h"
#include "fp8attn/prefill.h"

namespace fp8attn {

const char* name_of(PMode mode) {
  switch (mode) {
    case PMode::kExact: return "exact";
    case PMode::kDefault: return "default";
    case PMode::kFast: return "fast";
  }
  return "?";
}

const char* name_of(LseBase base) {
  switch (base) {
    case LseBase::kE: return "e";
    case LseBase::k2: return "2";
  }
  return "?";
}

const char* name_of(CpuArithmetic arithmetic) {
  switch (arithmetic) {
    case CpuArithmetic::kFloat32: return "float32";
    case CpuArithmetic::kFloat64: return "float64";
    case CpuArithmetic::kEmulated: return "emulated";
    case CpuArithmetic::kEmulated13: return "emulated13";
  }
  return "?";
}

const char* name_of(ScaleGranularity granularity) {
  switch (granularity) {
    case ScaleGranularity::kTensor: return "tensor";
    case ScaleGranularity::kHead: return "head";
    case ScaleGranularity::kBatchHead: return "batch-head";
    case ScaleGranularity::kTokenHead: return "token-head";
    case ScaleGranularity::kChannel: return "channel";
  }
  return "?";
}

const char* name_of(VLayout layout) {
  switch (layout) {
    case VLayout::kRowMajor: return "row-major";
    case VLayout::kPacked: return "packed";
  }
  return "?";
}

const char* name_of(CacheFormat format) {
  switch (format) {
    case CacheFormat::kBF16: return "bf16";
    case CacheFormat::kTensor: return "tensor";
    case CacheFormat::kToken128: return "token128";
    case CacheFormat::kToken: return "token";
  }
  return "?";
}

}  // namespace fp8attn
