// How the work of a call is divided among CTAs, and the workspace that follows from it. Host code.
#pragma once

#include <cstddef>

#include "cuda/sm90/tile/split.h"
#include "fp8attn/mla_decode.h"

namespace fp8attn::cuda {

inline constexpr int kMlaTileRows = 64;  // query rows of a tile

using MlaSchedule = SplitSchedule;
using MlaSplit = Split;

// For a device with that many multiprocessors.
MlaSchedule make_mla_schedule(const MlaDecodeProblem& problem, int multiprocessors);

// Offsets into the workspace, in bytes.
struct MlaWorkspaceLayout {
  std::size_t splits = 0, partial_lse, partial_out, size;
  explicit MlaWorkspaceLayout(const MlaSchedule& schedule);
};

std::size_t mla_workspace_size(const MlaDecodeProblem& problem);

}  // namespace fp8attn::cuda
