#include "cuda/sm90/mla_decode/launch.h"

namespace fp8attn::cuda {
void mla_decode_token(const MlaDecodeProblem& problem, Workspace workspace, Stream stream) {
  using Whole = MlaHost<MlaTraits<CacheFormat::kToken>>;
  const int rows = Whole::rows(problem);
  if (rows > 32) return Whole::launch(problem, workspace, stream);
  if (rows > 16) return MlaHost<MlaTraits<CacheFormat::kToken, 32>>::launch(problem, workspace, stream);
  MlaHost<MlaTraits<CacheFormat::kToken, 16>>::launch(problem, workspace, stream);
}
}  // namespace fp8attn::cuda
