#include "cuda/sm90/prefill/launch.h"

namespace fp8attn::cuda {
void prefill_e4m3_d256_packed_default(const PrefillProblem& problem, const PreparedBatch& prepared, Stream stream) {
  launch_prefill<PrefillTraits<ElementE4M3, 256, 256, PMode::kDefault>>(problem, prepared, stream);
}
}  // namespace fp8attn::cuda
