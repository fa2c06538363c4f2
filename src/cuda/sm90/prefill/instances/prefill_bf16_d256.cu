#include "cuda/sm90/prefill/launch.h"

namespace fp8attn::cuda {
void prefill_bf16_d256(const PrefillProblem& problem, const PreparedBatch& prepared, Stream stream) {
  launch_prefill<PrefillTraits<ElementBF16, 256, 256>>(problem, prepared, stream);
}
}  // namespace fp8attn::cuda
