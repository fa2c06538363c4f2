// How the work of a decode call is divided among CTAs, and the workspace that follows from it. Host code.
#pragma once

#include <cstddef>

#include "cuda/sm90/tile/split.h"
#include "fp8attn/prefill.h"

namespace fp8attn::cuda {

// For a device with that many multiprocessors.
SplitSchedule make_decode_schedule(const PrefillProblem& problem, int multiprocessors);

// Offsets into the workspace, in bytes.
struct DecodeWorkspaceLayout {
  std::size_t splits = 0, partial_lse, partial_out, size;
  DecodeWorkspaceLayout(const PrefillProblem& problem, const SplitSchedule& schedule);
};

std::size_t decode_workspace_size(const PrefillProblem& problem);

}  // namespace fp8attn::cuda
