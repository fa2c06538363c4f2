#include "cuda/sm90/decode/workspace.h"

#include <algorithm>

#include "api/prefill_batch.h"
#include "api/workspace_layout.h"
#include "cuda/launch/device.h"

namespace fp8attn::cuda {

// A unit is a sequence and a key head, whose rows all lie in one tile. Teams read heads that lie next to each other at
// the same time: of 8 heads of 128 bytes 33.4 us instead of 40.2 at batch 1, 32768 tokens, 149 instead of 193 at batch
// 64, 4096 tokens. They leave little of the device idle.
SplitSchedule make_decode_schedule(const PrefillProblem& problem, int multiprocessors) {
  const PrefillBatch batch = batch_of(problem);
  const int heads = static_cast<int>(batch.h_kv);
  int size = std::min({8, heads, multiprocessors});
  while (heads % size != 0 || multiprocessors % size > multiprocessors / 16) --size;
  return {.sequences = static_cast<int>(batch.b),
          .groups = heads / size,
          .team_size = size,
          .teams = multiprocessors / size,
          .tiles = heads};
}

DecodeWorkspaceLayout::DecodeWorkspaceLayout(const PrefillProblem& problem, const SplitSchedule& schedule) {
  // Two partial results a CTA.
  const PrefillBatch batch = batch_of(problem);
  const std::int64_t rows = 2 * schedule.teams * schedule.team_size * (batch.query_capacity * batch.h_q / batch.h_kv);
  const std::int64_t float_bytes = sizeof(float);
  partial_lse = align_workspace(schedule.teams * static_cast<std::int64_t>(sizeof(Split)));
  partial_out = partial_lse + align_workspace(rows * float_bytes);
  size = partial_out + align_workspace(rows * batch.d_v * float_bytes);
}

std::size_t decode_workspace_size(const PrefillProblem& problem) {
  if (problem.out.count() == 0) return 0;
  return DecodeWorkspaceLayout(problem, make_decode_schedule(problem, multiprocessor_count(problem.q.device.index)))
      .size;
}

}  // namespace fp8attn::cuda
