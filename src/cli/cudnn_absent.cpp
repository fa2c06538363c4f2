// cuDNN's side of the benchmark in a build without it: no case of it runs.
#include <stdexcept>

#include "cli/cudnn.h"

namespace fp8attn::cli {

std::unique_ptr<BenchSubject> cudnn_subject(const BenchCase&, const Layer&, Device) {
  throw std::runtime_error("this build has no cuDNN (FP8ATTN_BENCH_CUDNN is OFF)");
}

}  // namespace fp8attn::cli
