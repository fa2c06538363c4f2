// Who computes what: made by every CTA for itself from the lengths of the moment, so that a captured graph stays right
// when they change.
#pragma once

#include <cstdint>

#include "cuda/sm90/mla_decode/params.h"
#include "cuda/sm90/ptx/warpgroup.h"

namespace fp8attn::cuda {

// A part of one tile's tokens: blocks [first, last) of a sequence.
struct MlaUnit {
  int sequence, tile;
  int length;  // tokens of the whole sequence
  int first, last;
  int slot;  // of the partial result, -1: the unit is not split
};

struct MlaPlan {
  int share;                               // of the line, for a team
  int position;                            // where the first sequence of this team begins, relative to its share
  int sequence;                            // that sequence
  static constexpr int kUnitOverhead = 3;  // of a unit, in blocks: query, first loads, output
  static constexpr int kLeastShare = 2;
};

__device__ __forceinline__ int blocks_of(int length) { return (length + 63) / 64; }

// Whole CTA of kThreads. scratch: kThreads / 32 + 1 numbers. Both in shared memory.
template <int kThreads>
__device__ void make_plan(const MlaParams& params, MlaPlan& plan, int64_t* scratch) {
  const MlaSchedule& schedule = params.schedule;
  constexpr int kWarps = kThreads / 32;
  const int per_thread = (schedule.sequences + kThreads - 1) / kThreads;
  const int begin = min(static_cast<int>(threadIdx.x) * per_thread, schedule.sequences);
  const int end = min(begin + per_thread, schedule.sequences);
  int64_t sum = 0;
  int longest = 0;
  for (int i = begin; i < end; ++i) {
    const int blocks = blocks_of(params.length(i));
    longest = max(longest, blocks);
    sum += schedule.groups * static_cast<int64_t>(blocks + MlaPlan::kUnitOverhead);
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
  if (share < MlaPlan::kLeastShare) share = MlaPlan::kLeastShare;
  // Units that are not split cost no combining: take whole ones where that is nearly as even.
  const int64_t units = static_cast<int64_t>(schedule.sequences) * schedule.groups;
  const int64_t whole = (units + schedule.teams - 1) / schedule.teams * (longest + MlaPlan::kUnitOverhead);
  if (whole >= share && whole <= share + share / 12) share = whole;

  // The thread in whose sequences this team's part begins finds where.
  const int64_t start = share * (blockIdx.x / schedule.team_size);
  if (threadIdx.x == 0) plan = {static_cast<int>(share), 0, schedule.sequences};  // beyond the end of the line
  __syncthreads();
  if (before <= start && start < before + sum) {
    int i = begin;
    for (; i < end; ++i) {
      const int64_t cost = schedule.groups * static_cast<int64_t>(blocks_of(params.length(i)) + MlaPlan::kUnitOverhead);
      if (before + cost > start) break;
      before += cost;
    }
    plan.position = static_cast<int>(before - start);
    plan.sequence = i;
  }
  __syncthreads();
}

// Where a warp stands on its walk over the units of its CTA. In shared memory: there are no registers to spare.
struct MlaWalkState {
  int share, position, sequence, group, length;
  MlaUnit unit;    // where it stands
  MlaSplit split;  // first_team: -1, or the unit is one that an earlier team began
};

// Walks the units of this CTA, one object a warp. Warps see the same.
class MlaWalk {
 public:
  __device__ MlaWalk(const MlaParams& params, const MlaPlan& plan, MlaWalkState& state)
      : params_(params), state_(state) {
    const int length = plan.sequence < params.schedule.sequences ? params.length(plan.sequence) : 0;
    if (threadIdx.x % 32 == 0) state_ = {plan.share, plan.position, plan.sequence, 0, length, {}, {}};
    __syncwarp();
  }

  // Goes on where another object stands.
  __device__ MlaWalk(const MlaParams& params, MlaWalkState& state) : params_(params), state_(state) {}

  __device__ const MlaUnit& unit() const { return state_.unit; }
  __device__ const MlaSplit& split() const { return state_.split; }

  // To the next unit. False when none is left.
  __device__ bool next() {
    const MlaSchedule& schedule = params_.schedule;
    int sequence = state_.sequence, group = state_.group, length = state_.length, position = state_.position;
    const int share = state_.share;
    __syncwarp();  // all lanes have read what the first one changes
    while (sequence < schedule.sequences && position < share) {
      const bool found = visit(sequence, group, length, position, share);
      position += MlaPlan::kUnitOverhead + blocks_of(length);
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
    const int start = position + MlaPlan::kUnitOverhead;  // of the first block
    const int blocks = blocks_of(length);
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

  const MlaParams& params_;
  MlaWalkState& state_;
};

}  // namespace fp8attn::cuda
