// The end of a unit: what the warps of a CTA have of it becomes output rows and lse, or a partial result.
#pragma once

#include <cstdint>

#include "cuda/sm90/decode/params.h"
#include "cuda/sm90/decode/traits.h"
#include "cuda/sm90/ptx/half2.h"
#include "cuda/sm90/ptx/warpgroup.h"
#include "cuda/sm90/tile/probability.h"

namespace fp8attn::cuda {

// All consumer warps. Parts are added in the order of the warps.
template <class Traits>
class DecodeFinish {
 public:
  using Shared = typename Traits::Shared;

  __device__ DecodeFinish(Shared& shared, const DecodeParams& params, const SplitUnit& unit, int warp, int lane)
      : shared_(shared), params_(params), unit_(unit), warp_(warp), lane_(lane) {}

  template <int kTiles>
  __device__ __forceinline__ void run(const float (&output)[kTiles][4], const float (&maximum)[2],
                                      const float (&sum)[2]) {
    publish(maximum, sum);
    meet();  // the sums of all warps are there, and nobody reads what was exchanged at the end of the unit before
    float factor[2];
    weigh(maximum, factor);
#pragma unroll
    for (int first = 0; first < Traits::kHeadDimV; first += kChannels) {
      if (first > 0) meet();  // all have added up the channels before
      exchange(output, first, factor);
      meet();  // the channels of all warps are there
      add_up(first);
    }
    if constexpr (Traits::kQueryInShared) meet();  // the next query may be put where the output was
  }

 private:
  static constexpr int kChannels = Traits::kExchangeChannels;
  static constexpr int kBarrier = 1;

  // All consumer threads.
  __device__ static void meet() { ptx::named_barrier_sync<Traits::kConsumerThreads>(kBarrier); }

  __device__ int local_row(int i) const { return lane_ / 4 + 8 * i; }

  __device__ void publish(const float (&maximum)[2], const float (&sum)[2]) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      float total = sum[i] + __shfl_xor_sync(0xFFFFFFFFu, sum[i], 1);
      total += __shfl_xor_sync(0xFFFFFFFFu, total, 2);
      if (lane_ % 4 == 0) {
        shared_.maximum[warp_][local_row(i)] = maximum[i];
        shared_.sum[warp_][local_row(i)] = total;
      }
    }
  }

  // What the output of this warp is multiplied with. The first warp of a row tile stores lse.
  __device__ void weigh(const float (&maximum)[2], float (&factor)[2]) const {
    const int tiles = params_.row_tiles, tile = warp_ & (tiles - 1);  // a power of two
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      float largest = -INFINITY, sum = 0.0f;
      // Four neighbouring lanes have the row, each looks at every fourth warp.
      constexpr int kLanes = 4;
      const auto is_of_tile = [&](int warp) { return (warp & (tiles - 1)) == tile; };
#pragma unroll
      for (int first = 0; first < Traits::kConsumerWarps; first += kLanes) {
        const int warp = first + lane_ % kLanes;
        if (is_of_tile(warp)) largest = fmaxf(largest, shared_.maximum[warp][local_row(i)]);
      }
      largest = fmaxf(largest, __shfl_xor_sync(0xFFFFFFFFu, largest, 1));
      largest = fmaxf(largest, __shfl_xor_sync(0xFFFFFFFFu, largest, 2));
      const float used = largest == -INFINITY ? 0.0f : largest;
#pragma unroll
      for (int first = 0; first < Traits::kConsumerWarps; first += kLanes) {
        const int warp = first + lane_ % kLanes;
        if (!is_of_tile(warp)) continue;
        const float weight = ptx::exp2_float(shared_.maximum[warp][local_row(i)] - used);
        sum = fmaf(shared_.sum[warp][local_row(i)], weight, sum);
      }
      sum += __shfl_xor_sync(0xFFFFFFFFu, sum, 1);
      sum += __shfl_xor_sync(0xFFFFFFFFu, sum, 2);
      // NaN is no empty row.
      const bool empty = sum == 0.0f;
      const float log2_sum = empty ? -INFINITY : used - kProbabilityTopLog2 + ptx::log2_float(sum);
      factor[i] = empty ? 0.0f : ptx::exp2_float(maximum[i] - used) / sum;
      // For add_up(), beside the channels: the sums may be of the next unit by then.
      if (lane_ % 4 == 0) shared_.exchange[warp_][local_row(i)][kChannels] = empty ? 1.0f : 0.0f;
      const int index = tile * kRowTile + local_row(i);
      if (index >= params_.rows) continue;
      const DecodeParams::Row row = params_.row(unit_.tile, index);
      const bool leads = warp_ == tile && lane_ % 4 == 0;
      if (unit_.slot >= 0) {
        if (leads) params_.partial_log2_sum(unit_.slot, index) = log2_sum;
      } else {
        if (leads) store_lse(params_, unit_.sequence, row, log2_sum);
        factor[i] *= share_beside_sink(params_, row.head, log2_sum);
      }
    }
  }

  // Channels [first, first + kChannels) of this warp's rows.
  template <int kTiles>
  __device__ __forceinline__ void exchange(const float (&output)[kTiles][4], int first, const float (&factor)[2]) {
    constexpr int kOfPiece = 16 / Traits::Element::kBytes;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if ((warp_ & (params_.row_tiles - 1)) * kRowTile + local_row(i) >= params_.rows) continue;
      float* row = shared_.exchange[warp_][local_row(i)];
#pragma unroll
      for (int channel = 0; channel < kChannels; channel += kOfPiece) {
        Traits::Element::store_piece(row + channel, output, (first + channel) / kOfPiece, i, lane_ % 4, factor[i]);
      }
    }
  }

  // A thread four channels of a row.
  __device__ __forceinline__ void add_up(int first) {
    constexpr int kFours = kChannels / 4;
    // Or what all groups of channels have in common is kept in registers beside the output.
    const int thread = ptx::launder(32 * warp_ + lane_), tiles = params_.row_tiles;
#pragma unroll 1
    for (int item = thread; item < params_.rows * kFours; item += Traits::kConsumerThreads) {
      const int index = item / kFours, four = item % kFours, channel = first + 4 * four;
      if (channel >= params_.call.head_dim_v) continue;
      const int tile = index / kRowTile, local = index % kRowTile;
      float value[4] = {};
      const bool empty = shared_.exchange[tile][local][kChannels] != 0.0f;
      for (int warp = tile; warp < Traits::kConsumerWarps; warp += tiles) {
        const float4 part = *reinterpret_cast<const float4*>(&shared_.exchange[warp][local][4 * four]);
        value[0] += part.x, value[1] += part.y, value[2] += part.z, value[3] += part.w;
      }
      if (unit_.slot >= 0) {
        *reinterpret_cast<float4*>(params_.partial_row(unit_.slot, index) + channel) =
            make_float4(value[0], value[1], value[2], value[3]);
      } else {
        store_output(params_, unit_.sequence, unit_.tile, params_.row(unit_.tile, index), channel, value, empty);
      }
    }
  }

  Shared& shared_;
  const DecodeParams& params_;
  const SplitUnit& unit_;
  const int warp_, lane_;
};

}  // namespace fp8attn::cuda
