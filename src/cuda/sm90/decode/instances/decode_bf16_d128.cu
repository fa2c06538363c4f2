#include "cuda/sm90/decode/launch.h"

namespace fp8attn::cuda {
void decode_bf16_d128(const PrefillProblem& problem, Workspace workspace, Stream stream) {
  launch_decode<DecodeTraits<DecodeBF16, 128, 128>>(problem, workspace, stream);
}
}  // namespace fp8attn::cuda
