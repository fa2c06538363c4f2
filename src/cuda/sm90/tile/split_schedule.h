// Who computes what: made by every CTA for itself from the lengths of the moment, so that a captured graph stays right
// when they change.
//
// Params has a `schedule`, length(sequence), any number that says how long a sequence is, and blocks_of(length), the
// blocks that this makes.
#pragma once

#include <cstdint>

#include "cuda/sm90/ptx/warpgroup.h"
#include "cuda/sm90/tile/split.h"

namespace fp8attn::cuda {

// A part of one tile's tokens: blocks [first, last) of a sequence.
struct SplitUnit {
  int sequence, tile;
  int length;  // of the whole sequence
  int first, last;
  int slot;  // of the partial result, -1: the unit is not split
};

struct SplitPlan {
  int share;                               // of the line, for a team
  int position;                            // where the first unit of this team begins, relative to its share
  int sequence, group;                     // that unit
  static constexpr int kUnitOverhead = 3;  // of a unit, in blocks: query, first loads, output
  static constexpr int kLeastShare = 2;
};

// Whole CTA of kThreads. scratch: kThreads / 32 + 1 numbers. Both in shared memory. counts: false where no sequence is
// to be looked at, and the plan is for nothing.
template <int kThreads, class Params>
__device__ void make_plan(const Params& params, SplitPlan& plan, int64_t* scratch, bool counts = true) {
  const SplitSchedule& schedule = params.schedule;
  const int sequences = counts ? schedule.sequences : 0;
  constexpr int kWarps = kThreads / 32;
  const int per_thread = (sequences + kThreads - 1) / kThreads;
  const int begin = min(static_cast<int>(threadIdx.x) * per_thread, sequences);
  const int end = min(begin + per_thread, sequences);
  int64_t sum = 0;
  int longest = 0;
  for (int i = begin; i < end; ++i) {
    const int blocks = params.blocks_of(params.length(i));
    longest = max(longest, blocks);
    sum += schedule.groups * static_cast<int64_t>(blocks + SplitPlan::kUnitOverhead);
  }
  // An inclusive scan over the warp, then over the warps.
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  int64_t inclusive = sum;
#pragma unroll
  for (int d = 1; d < 32; d *= 2) {
    const int64_t below = __shfl_up_sync(0xFFFFFFFFu, inclusive, d);
    if (lane >= d) inclusive += below;
  }
  longest = __reduce_max_sync(0xFFFFFFFFu, longest);
  if (lane == 31) scratch[warp] = inclusive;
  if (threadIdx.x == 0) scratch[kWarps] = 0;
  __syncthreads();
  if (lane == 0) {
    atomicMax(reinterpret_cast<unsigned long long*>(&scratch[kWarps]), static_cast<unsigned long long>(longest));
  }
  int64_t total = 0, before = inclusive - sum;
#pragma unroll
  for (int w = 0; w < kWarps; ++w) {
    if (w < warp) before += scratch[w];
    total += scratch[w];
  }
  __syncthreads();
  longest = static_cast<int>(scratch[kWarps]);

  int64_t share = (total + schedule.teams - 1) / schedule.teams;
  if (share < SplitPlan::kLeastShare) share = SplitPlan::kLeastShare;
  // Units that are not split cost no combining: take whole ones where that is nearly as even.
  const int64_t units = static_cast<int64_t>(sequences) * schedule.groups;
  const int64_t whole = (units + schedule.teams - 1) / schedule.teams * (longest + SplitPlan::kUnitOverhead);
  if (whole >= share && whole <= share + share / 12) share = whole;

  // The thread in whose sequences this team's part begins finds where.
  const int64_t start = share * (blockIdx.x / schedule.team_size);
  if (threadIdx.x == 0) plan = {static_cast<int>(share), 0, sequences, 0};  // beyond the end of the line
  __syncthreads();
  if (before <= start && start < before + sum) {
    int i = begin;
    int64_t unit = 1;
    for (; i < end; ++i) {
      unit = params.blocks_of(params.length(i)) + SplitPlan::kUnitOverhead;
      if (before + schedule.groups * unit > start) break;
      before += schedule.groups * unit;
    }
    const int64_t group = (start - before) / unit;
    plan.position = static_cast<int>(before + group * unit - start);
    plan.sequence = i;
    plan.group = static_cast<int>(group);
  }
  __syncthreads();
}

// Where a warp stands on its walk over the units of its CTA. In shared memory: there are no registers to spare.
struct SplitWalkState {
  int share, position, sequence, group, length;
  SplitUnit unit;  // where it stands
  Split split;     // first_team: -1, or the unit is one that an earlier team began
};

// Walks the units of this CTA, one object a warp. Warps see the same.
template <class Params>
class SplitWalk {
 public:
  __device__ SplitWalk(const Params& params, const SplitPlan& plan, SplitWalkState& state)
      : params_(params), state_(state) {
    const int length = plan.sequence < params.schedule.sequences ? params.length(plan.sequence) : 0;
    if (threadIdx.x % 32 == 0) state_ = {plan.share, plan.position, plan.sequence, plan.group, length, {}, {}};
    __syncwarp();
  }

  // Goes on where another object stands.
  __device__ SplitWalk(const Params& params, SplitWalkState& state) : params_(params), state_(state) {}

  __device__ const SplitUnit& unit() const { return state_.unit; }
  __device__ const Split& split() const { return state_.split; }

  // To the next unit. False when none is left.
  __device__ bool next() {
    const SplitSchedule& schedule = params_.schedule;
    int sequence = state_.sequence, group = state_.group, length = state_.length, position = state_.position;
    const int share = state_.share;
    __syncwarp();  // all lanes have read what the first one changes
    while (sequence < schedule.sequences && position < share) {
      const bool found = visit(sequence, group, length, position, share);
      position += SplitPlan::kUnitOverhead + params_.blocks_of(length);
      if (++group == schedule.groups) {
        group = 0;
        ++sequence;
        if (sequence < schedule.sequences) length = ptx::launder_reference(params_).length(sequence);
      }
      if (!found) continue;
      if (threadIdx.x % 32 == 0) {
        state_.sequence = sequence;
        state_.group = group;
        state_.length = length;
        state_.position = position;
      }
      __syncwarp();
      return true;
    }
    return false;
  }

 private:
  // Notes the unit at `position`. False where none of its blocks, or no tile, is this CTA's.
  __device__ bool visit(int sequence, int group, int length, int position, int share) {
    const int team_size = ptx::launder(params_.schedule.team_size);  // or a division is kept in a register
    const int team = static_cast<int>(blockIdx.x) / team_size;
    const int tile = group * team_size + static_cast<int>(blockIdx.x) - team * team_size;
    const int start = position + SplitPlan::kUnitOverhead;  // of the first block
    const int blocks = params_.blocks_of(length);
    const int first = min(max(-start, 0), blocks), last = min(max(share - start, 0), blocks);
    const bool mine = blocks == 0 ? position >= 0 : last > first;
    if (!mine || tile >= params_.schedule.tiles) return false;
    if (threadIdx.x % 32 != 0) return true;
    const bool split = last - first < blocks;
    state_.unit = {sequence, tile, length,
                   first,    last, split ? 2 * static_cast<int>(blockIdx.x) + (start <= 0 ? 0 : 1) : -1};
    state_.split.first_team = -1;
    if (split && start <= 0) {
      const int back = (share - 1 - start) / share;  // shares from the first block to this team's
      state_.split = {sequence, group, team - back, team + (start + blocks - 1) / share,
                      start + back * share == 0 ? 0 : 1};
    }
    return true;
  }

  const Params& params_;
  SplitWalkState& state_;
};

}  // namespace fp8attn::cuda
