#include "cuda/sm90/prefill/launch.h"

namespace fp8attn::cuda {
void prefill_fp16_d192(const PrefillProblem& problem, const PreparedBatch& prepared, Stream stream) {
  launch_prefill<PrefillTraits<ElementFP16, 192, 128>>(problem, prepared, stream);
}
}  // namespace fp8attn::cuda
