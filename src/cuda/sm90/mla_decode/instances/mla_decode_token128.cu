#include "cuda/sm90/mla_decode/launch.h"

namespace fp8attn::cuda {
void mla_decode_token128(const MlaDecodeProblem& problem, Workspace workspace, Stream stream) {
  MlaHost<MlaTraits<CacheFormat::kToken128>>::launch(problem, workspace, stream);
}
}  // namespace fp8attn::cuda
