#include "cuda/sm90/mla_decode/launch.h"

namespace fp8attn::cuda {
void mla_decode_tensor(const MlaDecodeProblem& problem, Workspace workspace, Stream stream) {
  MlaHost<MlaTraits<CacheFormat::kTensor>>::launch(problem, workspace, stream);
}
}  // namespace fp8attn::cuda
