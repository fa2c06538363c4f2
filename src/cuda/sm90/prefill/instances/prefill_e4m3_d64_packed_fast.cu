#include "cuda/sm90/prefill/launch.h"

namespace fp8attn::cuda {
void prefill_e4m3_d64_packed_fast(const PrefillProblem& problem, const PreparedBatch& prepared, Stream stream) {
  launch_prefill<PrefillTraits<ElementE4M3, 64, 64, PMode::kFast>>(problem, prepared, stream);
}
}  // namespace fp8attn::cuda
