// The CPU backend of the latent cache: writing, reading back, rotation of queries.
#pragma once

#include "fp8attn/kv_cache.h"

namespace fp8attn::cpu {

// Run validated problems with OpenMP over tokens; ignore the stream.
void append_mla(const AppendMlaProblem& problem, Stream stream);
void gather_mla(const GatherMlaProblem& problem, Stream stream);
void rotate_rope(const TensorView& input, const MutableTensorView& output, Stream stream);

}  // namespace fp8attn::cpu
