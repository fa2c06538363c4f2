#include "cuda/sm90/decode/launch.h"

namespace fp8attn::cuda {
void decode_bf16_d64(const PrefillProblem& problem, Workspace workspace, Stream stream) {
  launch_decode<DecodeTraits<DecodeBF16, 64, 64>>(problem, workspace, stream);
}
}  // namespace fp8attn::cuda
