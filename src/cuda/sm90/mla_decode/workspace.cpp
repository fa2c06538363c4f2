#include "cuda/sm90/mla_decode/workspace.h"

#include <algorithm>
#include <cstdint>
#include <limits>

#include "cuda/launch/device.h"

namespace fp8attn::cuda {

// A team of CTAs takes as many tiles of a sequence at a time as leaves least of the device idle.
MlaSchedule make_mla_schedule(const MlaDecodeProblem& problem, int multiprocessors) {
  constexpr int kLargestTeam = 4;
  const auto& shape = problem.q.shape;
  const bool sparse = problem.indices.has_value();
  const std::int64_t rows = sparse ? shape[2] : shape[1] * shape[2];
  const int tiles = static_cast<int>((rows + kMlaTileRows - 1) / kMlaTileRows);
  MlaSchedule best{.sequences = static_cast<int>(sparse ? shape[0] * shape[1] : shape[0]), .tiles = tiles};
  double least = std::numeric_limits<double>::max();
  for (int size = std::min(kLargestTeam, tiles); size > 0; --size) {
    const int groups = (tiles + size - 1) / size, teams = std::max(1, multiprocessors / size);
    const double time = static_cast<double>(groups) / teams;
    if (time > least * 0.999) continue;
    least = time;
    best.groups = groups, best.team_size = size, best.teams = teams;
  }
  return best;
}

MlaWorkspaceLayout::MlaWorkspaceLayout(const MlaSchedule& schedule) {
  // Two partial results a CTA.
  const std::size_t rows = std::size_t{2} * schedule.teams * schedule.team_size * kMlaTileRows;
  const auto aligned = [](std::size_t bytes) { return (bytes + 255) / 256 * 256; };
  partial_lse = aligned(schedule.teams * sizeof(MlaSplit));
  partial_out = partial_lse + aligned(rows * sizeof(float));
  size = partial_out + rows * kLatentDim * sizeof(float);
}

std::size_t mla_workspace_size(const MlaDecodeProblem& problem) {
  if (problem.out.count() == 0) return 0;
  return MlaWorkspaceLayout(make_mla_schedule(problem, multiprocessor_count(problem.q.device.index))).size;
}

}  // namespace fp8attn::cuda
