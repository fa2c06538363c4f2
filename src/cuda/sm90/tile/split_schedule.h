// Who computes what: made by every warp for itself from the lengths of the moment, so that a captured graph stays right
// when they change.
//
// Params has a `schedule`, length(sequence), any number that says how long a sequence is, blocks_of(length), the blocks
// that this makes. The grid is a schedule's team_size by teams.
#pragma once

#include <cstdint>

#include "cuda/sm90/ptx/warpgroup.h"
#include "cuda/sm90/tile/block_scan.h"
#include "cuda/sm90/tile/split.h"

namespace fp8attn::cuda {

// A part of one tile's tokens: blocks [first, last) of a sequence.
struct SplitUnit {
  int sequence, tile;
  int length;  // of the whole sequence
  int first, last;
  int slot;  // of the partial result, -1: the unit is not split
};

// Where a warp stands on its walk over the units of its CTA. In shared memory: there are no registers to spare.
struct SplitWalkState {
  int share;                    // of the line, for a team
  int position;                 // where the next unit begins, relative to the share of this team
  int sequence, group, length;  // that unit
  SplitUnit unit;               // where it stands
  int start;                    // of the first block of the sequence, relative to the share of this team
};

// Walks the units of this CTA, one object a warp. Warps see the same.
template <class Params>
class SplitWalk {
 public:
  __device__ SplitWalk(const Params& params, SplitWalkState& state) : params_(params), state_(state) {}

  // To before the first unit of this CTA. Every warp plans for itself, without barriers.
  __device__ void plan() {
    const SplitSchedule& schedule = params_.schedule;
    const int sequences = schedule.sequences, lane = threadIdx.x % 32;
    const int per_lane = (sequences + 31) / 32;
    const int begin = min(lane * per_lane, sequences), end = min(begin + per_lane, sequences);
    int64_t sum = 0;
    int longest = 0;
#pragma unroll 1
    for (int i = begin; i < end; ++i) {
      const int blocks = params_.blocks_of(params_.length(i));
      longest = max(longest, blocks);
      sum += schedule.groups * static_cast<int64_t>(blocks + kUnitOverhead);
    }
    longest = __reduce_max_sync(0xFFFFFFFFu, longest);
    const int64_t inclusive = inclusive_scan_of_warp(sum), total = __shfl_sync(0xFFFFFFFFu, inclusive, 31);

    int64_t share = (total + schedule.teams - 1) / schedule.teams;
    if (share < kLeastShare) share = kLeastShare;
    // Units that are not split cost no combining: take whole ones where that is nearly as even.
    const int64_t units = static_cast<int64_t>(sequences) * schedule.groups;
    const int64_t whole = (units + schedule.teams - 1) / schedule.teams * (longest + kUnitOverhead);
    if (whole >= share && 12 * whole <= 13 * share) share = whole;

    if (lane == 0) {  // beyond the end of the line
      state_.share = static_cast<int>(share);
      state_.position = 0;
      state_.sequence = sequences;
      state_.group = 0;
    }
    __syncwarp();
    // The lane in whose sequences this team's part begins finds where.
    const int64_t start = share * blockIdx.y;
    int64_t before = inclusive - sum;
    if (before <= start && start < inclusive) {
      int64_t unit = 1;
      int i = begin, length = 0;
#pragma unroll 1
      for (; i < end; ++i) {
        length = params_.length(i);
        unit = params_.blocks_of(length) + kUnitOverhead;
        if (before + schedule.groups * unit > start) break;
        before += schedule.groups * unit;
      }
      const int64_t group = (start - before) / unit;
      state_.position = static_cast<int>(before + group * unit - start);
      state_.sequence = i;
      state_.group = static_cast<int>(group);
      state_.length = length;
    }
    __syncwarp();
  }

  __device__ const SplitUnit& unit() const { return state_.unit; }

  // Whether an earlier team began the unit.
  __device__ bool continues() const { return state_.unit.slot >= 0 && state_.start <= 0; }
  // For the combining kernel, of such a unit.
  __device__ Split split() const {
    const SplitUnit& unit = state_.unit;
    const int share = state_.share, start = state_.start, team = static_cast<int>(blockIdx.y);
    const int back = (share - 1 - start) / share;  // shares from the first block to this team's
    const int blocks = params_.blocks_of(unit.length), group = unit.tile / params_.schedule.team_size;
    return {unit.sequence, group, team - back, team + (start + blocks - 1) / share, start + back * share == 0 ? 0 : 1};
  }

  // To the next unit. False when none is left.
  __device__ bool next() {
    const SplitSchedule& schedule = params_.schedule;
    int sequence = state_.sequence, group = state_.group, length = state_.length, position = state_.position;
    const int share = state_.share;
    __syncwarp();  // all lanes have read what the first one changes
    while (sequence < schedule.sequences && position < share) {
      const bool found = visit(sequence, group, length, position, share);
      position += kUnitOverhead + params_.blocks_of(length);
      if (++group == schedule.groups) {
        group = 0;
        ++sequence;
        if (sequence < schedule.sequences && position < share) length = params_.length(sequence);
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
  static constexpr int kUnitOverhead = 3;  // of a unit, in blocks: query, first loads, output
  static constexpr int kLeastShare = 2;

  // Notes the unit at `position`. False where none of its blocks, or no tile, is this CTA's.
  __device__ bool visit(int sequence, int group, int length, int position, int share) {
    const int tile = group * params_.schedule.team_size + static_cast<int>(blockIdx.x);
    const int start = position + kUnitOverhead;  // of the first block
    const int blocks = params_.blocks_of(length);
    const int first = min(max(-start, 0), blocks), last = min(max(share - start, 0), blocks);
    const bool mine = blocks == 0 ? position >= 0 : last > first;
    if (!mine || tile >= params_.schedule.tiles) return false;
    if (threadIdx.x % 32 != 0) return true;
    const bool split = last - first < blocks;
    const int cta = static_cast<int>(blockIdx.y * gridDim.x + blockIdx.x);
    state_.unit = {sequence, tile, length, first, last, split ? 2 * cta + (start <= 0 ? 0 : 1) : -1};
    state_.start = start;
    return true;
  }

  const Params& params_;
  SplitWalkState& state_;
};

}  // namespace fp8attn::cuda
