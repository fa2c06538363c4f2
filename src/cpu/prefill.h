// The CPU backend of prefill: any head dims, every dtype and scale granularity, four arithmetics (docs/kernels/cpu.md).
#pragma once

#include "fp8attn/prefill.h"

namespace fp8attn::cpu {

// Runs a validated problem with OpenMP over sequences, heads and query tiles. Needs no workspace and ignores the
// stream; returns when the output is written. Memory: one tile of floats a thread, whatever the lengths.
void prefill(const PrefillProblem& problem, Workspace workspace, Stream stream);

}  // namespace fp8attn::cpu
