// What the second pass makes of the statistics of the first, in shared memory.
#pragma once

#include <cfloat>
#include <cmath>
#include <cstdint>

#include "cuda/sm90/quantize/elements.h"
#include "cuda/sm90/quantize/qkv_params.h"
#include "cuda/sm90/quantize/qkv_rows.cuh"

namespace fp8attn::cuda {

// What the statistics of one batch entry and head come to, in shared memory.
struct ChannelTable {
  alignas(16) float mean[kMostChannels];     // what is subtracted; 0 where nothing is
  alignas(16) float inverse[kMostChannels];  // of the scales
  std::uint32_t largest;                     // amax of all channels
  alignas(16) SignFlips flips;
};

// Mean and largest magnitude of one channel. pair: batch entry and head.
__device__ __forceinline__ void read_channel(const QkvOperandParams& operand, std::int64_t pair, int channel,
                                             float& mean, float& amax) {
  const float factor = operand.normalisation[channel < operand.first_block ? 0 : 1];
  const int kinds = operand.centered ? kCenteredStatistics : kPlainStatistics;
  const float* statistics = operand.statistics + pair * operand.chunks * kinds * operand.channels + channel;
  float highest = operand.centered ? -INFINITY : 0.0f, lowest = INFINITY, sum = 0.0f;
#pragma unroll 8
  for (int chunk = 0; chunk < operand.chunks; ++chunk, statistics += kinds * operand.channels) {
    highest = fmaxf(highest, __ldcg(statistics + kHighest * operand.channels));
    if (!operand.centered) continue;
    lowest = fminf(lowest, __ldcg(statistics + kLowest * operand.channels));
    sum = __fadd_rn(sum, __ldcg(statistics + kSum * operand.channels));
  }
  mean = 0.0f;
  amax = 0.0f;
  if (operand.centered && operand.chunks > 0) {
    mean = finite_or_zero(__fdiv_rn(__fmul_rn(factor, sum), __int2float_rn(operand.tokens)));
    amax = fmaxf(__fsub_rn(__fmul_rn(factor, highest), mean), __fsub_rn(mean, __fmul_rn(factor, lowest)));
  } else if (!operand.centered) {
    amax = __fmul_rn(factor, highest);
  }
  amax = fminf(amax, FLT_MAX);
}

// The table of an operand with statistics; `publish`: also the scales and the mean in global memory. Whole block.
__device__ inline void fill_table(const QkvOperandParams& operand, std::int64_t pair, bool publish,
                                  ChannelTable& table) {
  if (threadIdx.x == 0) table.largest = 0;
  __syncthreads();
  const int channel = threadIdx.x;
  const bool per_channel = operand.granularity == ScaleGranularity::kChannel;
  float mean = 0.0f, amax = 0.0f;
  if (channel < operand.channels) read_channel(operand, pair, channel, mean, amax);
  const std::uint32_t largest = __reduce_max_sync(0xFFFFFFFFu, __float_as_uint(amax));
  if (channel % 32 == 0) atomicMax(&table.largest, largest);
  __syncthreads();
  const float scale = scale_from_amax(per_channel ? __float_as_uint(amax) : table.largest);
  table.mean[channel] = mean;
  table.inverse[channel] = inverse_of(scale);
  if (publish && channel < operand.channels) {
    if (operand.mean != nullptr) operand.mean[pair * operand.channels + channel] = mean;
    if (per_channel) operand.scale[pair * operand.channels + channel] = scale;
    if (!per_channel && channel == 0) operand.scale[pair] = scale;
  }
  __syncthreads();
}

// The means alone, 0 of channels that a row does not have. Whole block.
__device__ inline void fill_means(const QkvOperandParams& operand, std::int64_t pair, ChannelTable& table) {
  const int channel = threadIdx.x;
  float mean = 0.0f, amax;
  if (channel < operand.channels) read_channel(operand, pair, channel, mean, amax);
  table.mean[channel] = mean;
  __syncthreads();
}

// Entries first .. first + 7 of a part of the table.
__device__ __forceinline__ void read_table(const float* part, int first, float (&values)[8]) {
  const auto* quads = reinterpret_cast<const float4*>(part + first);
  const float4 low = quads[0], high = quads[1];
  values[0] = low.x, values[1] = low.y, values[2] = low.z, values[3] = low.w;
  values[4] = high.x, values[5] = high.y, values[6] = high.z, values[7] = high.w;
}

}  // namespace fp8attn::cuda
