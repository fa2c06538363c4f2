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

  // Whole grid. continuing: the numbers of all teams; both in shared memory.
  __device__ void run(int16_t (&continuing)[kMaxTeams], int& count) const {
    find_continuing(continuing, count);
    const int pieces = (work_.channels() + kPieceChannels - 1) / kPieceChannels, rows = work_.rows();
    const SplitSchedule& schedule = work_.schedule();
    const int items_of_unit = schedule.team_size * rows * pieces;
    const int warps = static_cast<int>(gridDim.x) * (Work::kCombineThreads / 32);
    const int warp = static_cast<int>(blockIdx.x) * (Work::kCombineThreads / 32) + static_cast<int>(threadIdx.x / 32);
    for (int i = warp; i < count * items_of_unit; i += warps) {
      const Split split = work_.splits()[continuing[i / items_of_unit]];
      const int item = i % items_of_unit, row = item / pieces % rows, member = item / pieces / rows;
      if (work_.has(split.group * schedule.team_size + member, row)) combine(split, member, row, item % pieces);
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
  // their share of the sum.
  __device__ __forceinline__ void combine(const Split& split, int member, int row, int piece) const {
    const SplitSchedule& schedule = work_.schedule();
    const int lane = threadIdx.x % 32, parts = split.last_team - split.first_team + 1;
    const auto slot = [&](int part) {
      return 2 * ((split.first_team + part) * schedule.team_size + member) + (part == 0 ? split.first_slot : 0);
    };
    const int channel = kPieceChannels * piece + 4 * lane;
    const bool exists = channel < work_.channels();
    constexpr int kAtOnce = 16;  // parts in flight: their latency is what combining takes
    float4 part[kAtOnce];
    const auto load = [&](int begin) {
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        if (begin + i >= parts || !exists) continue;
        part[i] = __ldcg(reinterpret_cast<const float4*>(work_.partial(slot(begin + i), row) + channel));
      }
    };
    load(0);
    float largest = -INFINITY;
    for (int part = lane; part < parts; part += 32) largest = fmaxf(largest, work_.log2_sum(slot(part), row));
#pragma unroll
    for (int d = 16; d > 0; d /= 2) largest = fmaxf(largest, __shfl_xor_sync(0xFFFFFFFFu, largest, d));
    const float used = largest == -INFINITY ? 0.0f : largest;

    float sum = 0.0f;
    float4 value{};
    for (int begin = 0; begin < parts; begin += kAtOnce) {
      const int mine = begin + lane % kAtOnce;
      const float own_weight = mine < parts ? ptx::exp2_float(work_.log2_sum(slot(mine), row) - used) : 0.0f;
      if (begin > 0) load(begin);
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const float weight = __shfl_sync(0xFFFFFFFFu, own_weight, i);
        if (begin + i >= parts || !exists) continue;
        sum += weight;
        value.x = fmaf(part[i].x, weight, value.x);
        value.y = fmaf(part[i].y, weight, value.y);
        value.z = fmaf(part[i].z, weight, value.z);
        value.w = fmaf(part[i].w, weight, value.w);
      }
    }
    if (!exists) return;
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
