// Combines the partial results of split units, in the order of the tokens.
#pragma once

#include <cstdint>

#include "cuda/sm90/ptx/copy.h"
#include "cuda/sm90/ptx/half2.h"
#include "cuda/sm90/tile/split.h"

namespace fp8attn::cuda {

inline constexpr int kMaxTeams = 1024;  // one a CTA at most

// Work says what the kernels differ in:
//   kCombineThreads
//   schedule(), splits()             as the kernel before used them
//   rows()                           of a tile
//   has(tile, row)                   whether the tile has that row
//   channels()                       of a row
//   log2_sum(slot, row)              of exp(logits) of a part, base 2
//   partial(slot, row)               a part's output, divided by its sum
//   store(sequence, tile, row, channel, value, log2_sum)   four channels of the whole, divided by its sum; log2_sum is
//                                    -infinity where the row sees no key
template <class Work>
class SplitCombine {
 public:
  __device__ explicit SplitCombine(const Work& work) : work_(work) {}

  // Whole grid. continuing: the numbers of all teams; both in shared memory. Waits for the kernel before, and goes
  // through a unit that rehearses until then (split_schedule.h).
  __device__ void run(int16_t (&continuing)[kMaxTeams], int& count) const {
    const int pieces = (work_.channels() + kPieceChannels - 1) / kPieceChannels, rows = work_.rows();
    const SplitSchedule& schedule = work_.schedule();
    const int items_of_unit = schedule.team_size * rows * pieces;
    const int warps = static_cast<int>(gridDim.x) * (Work::kCombineThreads / 32);
    // Neighbouring items to different multiprocessors: where there are few, all should load.
    const int warp = static_cast<int>(threadIdx.x / 32 * gridDim.x + blockIdx.x);
#pragma unroll 1
    for (int pass = 0; pass < 2; ++pass) {
      if (pass > 0) {
        ptx::wait_for_previous_grid();
        find_continuing(continuing, count);
      }
      const int items = pass == 0 ? warps : count * items_of_unit;
#pragma unroll 1
      for (int i = warp; i < items; i += warps) {
        const Split split = pass == 0 ? Split{-1, 0, 0, -1, 0} : work_.splits()[continuing[i / items_of_unit]];
        const int item = i % items_of_unit, row = item / pieces % rows, member = item / pieces / rows;
        if (work_.has(split.group * schedule.team_size + member, row)) combine(split, member, row, item % pieces);
      }
    }
  }

 private:
  static constexpr int kPieceChannels = 128;

  // Teams whose unit was begun by the team before: the second of its parts.
  __device__ void find_continuing(int16_t (&continuing)[kMaxTeams], int& count) const {
    if (threadIdx.x < 32) {
      int found = 0;
      constexpr int kAtOnce = 4;  // loads in flight
      const int teams = work_.schedule().teams;
      for (int base = 0; base < teams; base += 32 * kAtOnce) {
        const int first = base + static_cast<int>(threadIdx.x);
        int before[kAtOnce];
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) {
          const int team = first + 32 * i;
          before[i] = team > 0 && team < teams ? work_.splits()[team].first_team : -1;
        }
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) {
          const int team = first + 32 * i;
          const bool is = before[i] >= 0 && before[i] == team - 1;
          const uint32_t ballot = __ballot_sync(0xFFFFFFFFu, is);
          if (is) continuing[found + __popc(ballot & ((1u << threadIdx.x) - 1))] = static_cast<int16_t>(team);
          found += __popc(ballot);
        }
      }
      if (threadIdx.x == 0) count = found;
    }
    __syncthreads();
  }

  // kPieceChannels channels of a row of a split unit by one warp. Parts are those of consecutive teams, weighted with
  // their share of the sum. One short loop: instructions that run once cost more than the loads that they issue.
  __device__ __forceinline__ void combine(const Split& split, int member, int row, int piece) const {
    const SplitSchedule& schedule = work_.schedule();
    const int lane = threadIdx.x % 32, parts = split.last_team - split.first_team + 1;
    const int first_slot = 2 * (split.first_team * schedule.team_size + member), step = 2 * schedule.team_size;
    const int channel = kPieceChannels * piece + 4 * lane;
    const bool exists = channel < work_.channels();
    // Of the second part and on; the first one may be its team's second.
    const float* source = work_.partial(first_slot, row) + (exists ? channel : 0);
    const int64_t stride = work_.partial(step, 0) - work_.partial(0, 0);
    const int64_t ahead = split.first_slot * (work_.partial(1, 0) - work_.partial(0, 0));
    constexpr int kAtOnce = 16;  // parts in flight: their latency is what combining takes
    float used = 0.0f, sum = 0.0f;  // used: the largest logarithm so far
    float4 value{};
    int begin = 0;
#pragma unroll 1
    do {
      float4 part[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        if (begin + i < parts) part[i] = __ldcg(reinterpret_cast<const float4*>(source + (i == 0 && begin == 0 ? ahead : 0)));
        source += stride;
      }
      const int mine = begin + lane % kAtOnce;
      const float own_sum =
          mine < parts ? work_.log2_sum(first_slot + mine * step + (mine == 0 ? split.first_slot : 0), row) : -INFINITY;
      float largest = own_sum;
#pragma unroll
      for (int d = kAtOnce / 2; d > 0; d /= 2) largest = fmaxf(largest, __shfl_xor_sync(0xFFFFFFFFu, largest, d));
      // Parts without keys before the first one with keys have weights of 0 relative to anything.
      const float before = sum == 0.0f ? -INFINITY : used;
      largest = fmaxf(largest, before);
      used = largest == -INFINITY ? 0.0f : largest;
      const float rescale = ptx::exp2_float(before - used), own_weight = ptx::exp2_float(own_sum - used);
      sum *= rescale;
      value = make_float4(value.x * rescale, value.y * rescale, value.z * rescale, value.w * rescale);
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const float weight = __shfl_sync(0xFFFFFFFFu, own_weight, i);
        if (begin + i >= parts) continue;
        sum += weight;
        value.x = fmaf(part[i].x, weight, value.x);
        value.y = fmaf(part[i].y, weight, value.y);
        value.z = fmaf(part[i].z, weight, value.z);
        value.w = fmaf(part[i].w, weight, value.w);
      }
      begin += kAtOnce;
    } while (begin < parts);
    if (!exists || split.sequence < 0) return;
    // NaN is no empty row.
    const bool empty = sum == 0.0f;
    const float factor = empty ? 0.0f : 1.0f / sum;
    const float log2_sum = empty ? -INFINITY : used + ptx::log2_float(sum);
    const float4 divided = make_float4(value.x * factor, value.y * factor, value.z * factor, value.w * factor);
    work_.store(split.sequence, split.group * schedule.team_size + member, row, channel, divided, log2_sum);
  }

  const Work& work_;
};

}  // namespace fp8attn::cuda
