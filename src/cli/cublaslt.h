// cuBLASLt's fp8 matrix product, printed beside the yardstick. The library is looked for at run time.
#pragma once

#include <string>

namespace fp8attn::cli {

struct CublasLtResult {
  double tflops = 0;    // 0: not measured
  std::string problem;  // why not
};

// e4m3 x e4m3 -> bf16, 8192 x 8192 x 8192, fast accumulation, random data: `warm_ms` of launches, then at least
// `timed_ms`. Everything that goes wrong ends in `problem`.
CublasLtResult measure_cublaslt_tflops(int device, double warm_ms, double timed_ms);

}  // namespace fp8attn::cli
