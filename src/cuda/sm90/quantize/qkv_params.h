// Arguments of the kernels that quantise q, k and v of one prefill. Host and device.
#pragma once

#include <cstdint>

#include "api/qkv_quantization.h"

namespace fp8attn::cuda {

inline constexpr int kQkvThreads = 256;
inline constexpr int kMostChannels = 256;

// One tensor of QkvQuantization, see there.
struct QkvOperandParams {
  const void* input;
  std::int64_t input_batch, input_token, input_head;  // strides, elements
  std::uint8_t* output;
  float* scale;
  float* mean;
  float* statistics;
  int tokens, heads, channels;
  std::int64_t length;  // of a channel of a packed output
  int chunks, chunk_tokens;
  int tiles;               // of one batch entry and head, of the pass at hand
  int job_tokens;          // of a tile of the second pass
  float normalisation[2];  // of the first and the second Hadamard matrix; 1 without any
  int first_block;         // channels of the first
  ScaleGranularity granularity;
  bool centered, rotated;
};

// Blocks [0, job_end[0]) work on operand 0, those up to job_end[1] on operand 1, and so on.
struct QkvParams {
  QkvOperandParams operand[3];
  unsigned job_end[3];
  std::uint32_t signs[kMostChannels / 32];
  float softmax_scale;
  float* lse_bias;
  int queries_per_kv;
};
inline constexpr int kQuery = 0, kKey = 1, kValue = 2;

// What one block works on.
struct QkvJob {
  int operand, batch, head, tile;
};

// Heads vary fastest: blocks that run at the same time read neighbouring heads of the same tokens. In the second pass
// the last tiles come first, which are what the first has left in the L2 cache, and q, k and v take turns, since their
// rows take different times; k and v have equally many tiles.
#ifdef __CUDACC__
__device__ inline QkvJob qkv_job(const QkvParams& params, bool second_pass) {
  unsigned index = blockIdx.x;
  QkvJob job{};
  if (second_pass) {
    const std::uint64_t queries = params.job_end[0], all = params.job_end[2];
    index = params.job_end[2] - 1 - index;
    const auto before = static_cast<unsigned>(index * queries / all);
    if ((index + 1) * queries / all > before) {
      index = before;
    } else {
      index -= before;
      job.operand = kKey + index % 2;
      index /= 2;
    }
  } else {
    while (index >= params.job_end[job.operand]) ++job.operand;
    if (job.operand > 0) index -= params.job_end[job.operand - 1];
  }
  const auto& operand = params.operand[job.operand];
  job.head = static_cast<int>(index % operand.heads);
  index /= operand.heads;
  job.tile = static_cast<int>(index % operand.tiles);
  job.batch = static_cast<int>(index / operand.tiles);
  return job;
}
#endif

}  // namespace fp8attn::cuda
