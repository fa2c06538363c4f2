// How kernels that split sequences among CTAs divide their work. Host and device.
#pragma once

namespace fp8attn::cuda {

// The work is a line of units, one a (sequence, group of tiles), each as long as its blocks of tokens and a constant
// for its beginning and end. Teams of CTAs take equal parts of the line, each CTA of a team one tile of the group, so
// that tiles that read the same tokens do so at the same time.
struct SplitSchedule {
  int sequences, groups, team_size, teams, tiles;
};

// One a team: the unit whose blocks it continues, for the combining kernel.
struct Split {
  int sequence, group;
  int first_team, last_team;  // who have parts of it; first_team is -1 where there is no such unit
  int first_slot;             // 0 or 1: which of its two partial results the first team's is
};

}  // namespace fp8attn::cuda
