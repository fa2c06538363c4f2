#include "cuda/sm90/prefill/launch.h"

namespace fp8attn::cuda {
void prefill_bf16_d128(const PrefillProblem& problem, const PreparedBatch& prepared, Stream stream) {
  launch_prefill<PrefillTraits<ElementBF16, 128, 128>>(problem, prepared, stream);
}
}  // namespace fp8attn::cuda
