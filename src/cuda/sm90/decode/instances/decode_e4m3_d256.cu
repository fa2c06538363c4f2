#include "cuda/sm90/decode/launch.h"

namespace fp8attn::cuda {
void decode_e4m3_d256(const PrefillProblem& problem, Workspace workspace, Stream stream) {
  launch_decode<DecodeTraits<DecodeE4M3, 256, 256>>(problem, workspace, stream);
}
}  // namespace fp8attn::cuda
