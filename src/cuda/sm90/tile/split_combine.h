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

  // Whole grid. continuing: of the teams whose unit was begun by the team before, the second of its parts, what they
  // noted; both in shared memory.
  __device__ void run(Split (&continuing)[kMaxTeams], int& count) const {
    find_continuing(continuing, count);
    const int pieces = (work_.channels() + kPieceChannels - 1) / kPieceChannels, rows = work_.rows();
    const SplitSchedule& schedule = work_.schedule();
    const int items_of_unit = schedule.team_size * rows * pieces;
    const int warps = static_cast<int>(gridDim.x) * (Work::kCombineThreads / 32);
    // Neighbouring items to different multiprocessors: where there are few, all should load.
    const int warp = static_cast<int>(threadIdx.x / 32 * gridDim.x + blockIdx.x);
#pragma unroll 1
    for (int i = warp; i < count * items_of_unit; i += warps) {
      const Split& split = continuing[i / items_of_unit];
      const int item = i % items_of_unit, row = item / pieces % rows, member = item / pieces / rows;
      if (work_.has(split.group * schedule.team_size + member, row)) combine(split, member, row, item % pieces);
    }
  }

 private:
  static constexpr int kPieceChannels = 128;

  __device__ void find_continuing(Split (&continuing)[kMaxTeams], int& count) const {
    if (threadIdx.x < 32) {
      int found = 0;
      const int teams = work_.schedule().teams;
#pragma unroll 1
      for (int base = 0; base < teams; base += 32) {
        const int team = base + static_cast<int>(threadIdx.x);
        Split split{.first_team = -1};
        if (team < teams) split = work_.splits()[team];
        const bool is = split.first_team >= 0 && split.first_team == team - 1;
        const uint32_t ballot = __ballot_sync(0xFFFFFFFFu, is);
        if (is) continuing[found + __popc(ballot & ((1u << threadIdx.x) - 1))] = split;
        found += __popc(ballot);
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
    const int first_slot = 2 * (split.first_team * schedule.team_size + member), step = 2 * schedule.team_size;
    const auto log2_sum = [&](int part) {
      return part < parts ? work_.log2_sum(first_slot + part * step + (part == 0 ? split.first_slot : 0), row)
                          : -INFINITY;
    };
    const int channel = kPieceChannels * piece + 4 * lane;
    const bool exists = channel < work_.channels();
    // Partial results take less than 2^32 floats.
    const float* const source = work_.partial(first_slot, row) + (exists ? channel : 0);
    const auto of_slot = static_cast<uint32_t>(work_.partial(1, 0) - work_.partial(0, 0));
    const uint32_t stride = step * of_slot, first = split.first_slot * of_slot;  // first: where the first part is
    constexpr int kAtOnce = 16;  // parts in flight: their latency is what combining takes
    float used = 0.0f, sum = 0.0f;
    float4 value{};
#pragma unroll 1
    for (int begin = 0; begin < parts; begin += kAtOnce) {
      float4 part[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const uint32_t own = begin + i == 0 ? first : (begin + i) * stride;
        part[i] = begin + i < parts ? __ldcg(reinterpret_cast<const float4*>(source + own)) : float4{};
      }
      if (begin == 0) used = largest_of(log2_sum, parts);
      const float own_weight = ptx::exp2_float(log2_sum(begin + lane % kAtOnce) - used);
      sum += own_weight;
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const float weight = __shfl_sync(0xFFFFFFFFu, own_weight, i);
        value.x = fmaf(part[i].x, weight, value.x);
        value.y = fmaf(part[i].y, weight, value.y);
        value.z = fmaf(part[i].z, weight, value.z);
        value.w = fmaf(part[i].w, weight, value.w);
      }
    }
#pragma unroll
    for (int d = kAtOnce / 2; d > 0; d /= 2) sum += __shfl_xor_sync(0xFFFFFFFFu, sum, d);
    if (!exists) return;
    // NaN is no empty row.
    const bool empty = sum == 0.0f;
    const float factor = empty ? 0.0f : 1.0f / sum;
    const float log2_sum_of_all = empty ? -INFINITY : used + ptx::log2_float(sum);
    const float4 divided = make_float4(value.x * factor, value.y * factor, value.z * factor, value.w * factor);
    work_.store(split.sequence, split.group * schedule.team_size + member, row, channel, divided, log2_sum_of_all);
  }

  // 0 where no part has a key: any finite number gives them weights of 0.
  template <class Log2Sum>
  __device__ __forceinline__ static float largest_of(const Log2Sum& log2_sum, int parts) {
    float largest = -INFINITY;
#pragma unroll 1
    for (int part = threadIdx.x % 32; part < parts; part += 32) largest = fmaxf(largest, log2_sum(part));
#pragma unroll
    for (int d = 16; d > 0; d /= 2) largest = fmaxf(largest, __shfl_xor_sync(0xFFFFFFFFu, largest, d));
    return largest == -INFINITY ? 0.0f : largest;
  }

  const Work& work_;
};

}  // namespace fp8attn::cuda
