// The CPU backend of MLA decode: every format and addressing, four arithmetics (docs/kernels/mla_decode.md).
#pragma once

#include "fp8attn/mla_decode.h"

namespace fp8attn::cpu {

// Runs a validated problem with OpenMP over sequences and tiles of query rows. Needs no workspace and ignores the
// stream; returns when the output is written. Memory: one tile of floats a thread, whatever the lengths.
void mla_decode(const MlaDecodeProblem& problem, Workspace workspace, Stream stream);

}  // namespace fp8attn::cpu
