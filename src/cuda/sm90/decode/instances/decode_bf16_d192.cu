#include "cuda/sm90/decode/launch.h"

namespace fp8attn::cuda {
void decode_bf16_d192(const PrefillProblem& problem, Workspace workspace, Stream stream) {
  launch_decode<DecodeTraits<DecodeBF16, 192, 128>>(problem, workspace, stream);
}
}  // namespace fp8attn::cuda
