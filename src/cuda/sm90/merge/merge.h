// The CUDA backend of merge_attention().
#pragma once

#include "fp8attn/merge.h"

namespace fp8attn::cuda {

// Runs a validated problem whose tensors are dense: [parts, b, s_q, h_q, d_v] and so on.
void merge_attention(const MergeAttentionProblem& problem, Stream stream);

}  // namespace fp8attn::cuda
