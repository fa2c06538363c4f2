// Combines the partial results of split units, in the order of the tokens.
#pragma once

#include <cstdint>

#include "cuda/sm90/mla_decode/params.h"
#include "cuda/sm90/mla_decode/softmax.h"
#include "cuda/sm90/mla_decode/store.h"
#include "cuda/sm90/ptx/copy.h"
#include "cuda/sm90/ptx/half2.h"

namespace fp8attn::cuda {

inline constexpr int kCombineThreads = 256;
inline constexpr int kMaxTeams = 1024;  // one a CTA at most

// 128 channels of a row of a split unit by one warp. Parts are those of consecutive teams, weighted with their share of
// the sum.
template <class Traits>
__device__ __forceinline__ void combine_piece(const MlaParams& params, const MlaSplit& split, int member, int local,
                                              int piece, int lane) {
  const MlaSchedule& schedule = params.schedule;
  const int row = (split.group * schedule.team_size + member) * Traits::kTileM + local;
  const int parts = split.last_team - split.first_team + 1;
  const auto slot = [&](int part) {
    return 2 * ((split.first_team + part) * schedule.team_size + member) + (part == 0 ? split.first_slot : 0);
  };
  const auto lse = [&](int part) {
    return params.partial_lse[static_cast<int64_t>(slot(part)) * Traits::kTileM + local];
  };
  float largest = -INFINITY;
  for (int part = lane; part < parts; part += 32) largest = fmaxf(largest, lse(part));
#pragma unroll
  for (int d = 16; d > 0; d /= 2) largest = fmaxf(largest, __shfl_xor_sync(0xFFFFFFFFu, largest, d));
  const float used = largest == -INFINITY ? 0.0f : largest;

  const int channel = 128 * piece + 4 * lane;
  float sum = 0.0f;
  float4 value{};
  constexpr int kAtOnce = 16;  // parts in flight: their latency is what combining takes
  for (int begin = 0; begin < parts; begin += kAtOnce) {
    const int mine = begin + lane % kAtOnce;
    const float own_weight = mine < parts ? ptx::exp2_float(lse(mine) - used) : 0.0f;
    float4 part[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      if (begin + i >= parts) continue;
      part[i] = __ldcg(reinterpret_cast<const float4*>(partial_row<Traits>(params, slot(begin + i), local) + channel));
    }
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
  }
  const float log2_sum = sum > 0.0f ? used + ptx::log2_float(sum) : -INFINITY;
  float factor = sum > 0.0f ? 1.0f / sum : 0.0f;
  if (piece == 0 && lane == 0) store_lse(params, split.sequence, row, log2_sum);
  factor *= share_beside_sink(params, split.sequence, row, log2_sum);
  *reinterpret_cast<uint2*>(output_address(params, split.sequence, row, channel)) =
      make_uint2(pack_output(params.out_is_fp16, value.x * factor, value.y * factor),
                 pack_output(params.out_is_fp16, value.z * factor, value.w * factor));
}

template <class Traits>
__global__ void __launch_bounds__(kCombineThreads) mla_combine_kernel(const __grid_constant__ MlaParams params) {
  __shared__ int16_t continuing[kMaxTeams];  // teams whose unit was begun by the team before: the second of its parts
  __shared__ int count;
  const MlaSchedule& schedule = params.schedule;
  ptx::wait_for_previous_grid();
  if (threadIdx.x < 32) {
    int found = 0;
    for (int base = 0; base < schedule.teams; base += 32) {
      const int team = base + static_cast<int>(threadIdx.x);
      const bool is = team < schedule.teams && team > 0 && params.splits[team].first_team == team - 1;
      const uint32_t ballot = __ballot_sync(0xFFFFFFFFu, is);
      if (is) continuing[found + __popc(ballot & ((1u << threadIdx.x) - 1))] = static_cast<int16_t>(team);
      found += __popc(ballot);
    }
    if (threadIdx.x == 0) count = found;
  }
  __syncthreads();
  const int rows_of_tile = min(Traits::kTileM, params.rows);
  constexpr int kPieces = Traits::kLatent / 128;
  const int items_of_unit = schedule.team_size * rows_of_tile * kPieces;
  const int warps = static_cast<int>(gridDim.x) * (kCombineThreads / 32);
  const int warp = static_cast<int>(blockIdx.x) * (kCombineThreads / 32) + static_cast<int>(threadIdx.x / 32);
  for (int i = warp; i < count * items_of_unit; i += warps) {
    const MlaSplit split = params.splits[continuing[i / items_of_unit]];
    const int item = i % items_of_unit, local = item / kPieces % rows_of_tile, member = item / kPieces / rows_of_tile;
    if ((split.group * schedule.team_size + member) * Traits::kTileM + local < params.rows) {
      combine_piece<Traits>(params, split, member, local, item % kPieces, static_cast<int>(threadIdx.x % 32));
    }
  }
}

}  // namespace fp8attn::cuda
