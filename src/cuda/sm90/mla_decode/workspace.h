// How the work of a call is divided among CTAs, and the workspace that follows from it. Host code.
#pragma once

#include <cstddef>

#include "fp8attn/mla_decode.h"

namespace fp8attn::cuda {

inline constexpr int kMlaTileRows = 64;  // query rows of a tile

// The work is a line of units, one a (sequence, group of tiles), each as long as its blocks of tokens and a constant
// for its beginning and end. Teams of CTAs take equal parts of the line, each CTA of a team one tile of the group, so
// that tiles that read the same tokens do so at the same time.
struct MlaSchedule {
  int sequences, groups, team_size, teams, tiles;
};

// One a team: the unit whose blocks it continues, for the combining kernel.
struct MlaSplit {
  int sequence, group;
  int first_team, last_team;  // who have parts of it; first_team is -1 where there is no such unit
  int first_slot;             // 0 or 1: which of its two partial results the first team's is
};

// For a device with that many multiprocessors.
MlaSchedule make_mla_schedule(const MlaDecodeProblem& problem, int multiprocessors);

// Offsets into the workspace, in bytes.
struct MlaWorkspaceLayout {
  std::size_t splits = 0, partial_lse, partial_out, size;
  explicit MlaWorkspaceLayout(const MlaSchedule& schedule);
};

std::size_t mla_workspace_size(const MlaDecodeProblem& problem);

}  // namespace fp8attn::cuda
