// Host side of the two passes over q, k and v.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include "cuda/launch/check.h"
#include "cuda/launch/device.h"
#include "cuda/sm90/quantize/qkv_kernels.h"
#include "cuda/sm90/quantize/quantize.h"

namespace fp8attn::cuda {
namespace {

constexpr int kConvertJobs = 8;  // of a multiprocessor

QkvOperandParams operand_params(const QkvOperand& operand) {
  const TensorView& input = operand.input;
  const std::int64_t channels = input.shape[3], first = operand.rotated ? first_rotated_block(channels) : channels;
  const auto normalisation = [&](std::int64_t block) {
    return operand.rotated && block > 0 ? static_cast<float>(1.0 / std::sqrt(static_cast<double>(block))) : 1.0f;
  };
  return {.input = input.data,
          .input_batch = input.strides[0],
          .input_token = input.strides[1],
          .input_head = input.strides[2],
          .output = static_cast<std::uint8_t*>(operand.output.data),
          .scale = static_cast<float*>(operand.scale.data),
          .mean = operand.mean,
          .statistics = operand.statistics,
          .tokens = static_cast<int>(input.shape[1]),
          .heads = static_cast<int>(input.shape[2]),
          .channels = static_cast<int>(channels),
          .length = packed_length(input.shape[1]),
          .chunks = static_cast<int>(operand.chunks),
          .chunk_tokens = static_cast<int>(operand.chunk_tokens),
          .tiles = 0,
          .job_tokens = 1,
          .normalisation = {normalisation(first), normalisation(channels - first)},
          .first_block = static_cast<int>(first),
          .granularity = operand.granularity,
          .centered = operand.centered,
          .rotated = operand.rotated};
}

// One block a tile, tiles[i] of each batch entry and head of operand i.
void set_jobs(QkvParams& params, const QkvQuantization& work, const int (&tiles)[3]) {
  const QkvOperand* operands[3] = {&work.q, &work.k, &work.v};
  std::int64_t jobs = 0;
  for (int i = 0; i < 3; ++i) {
    params.operand[i].tiles = tiles[i];
    jobs += operands[i]->input.shape[0] * operands[i]->input.shape[2] * tiles[i];
    params.job_end[i] = static_cast<unsigned>(jobs);
  }
  if (jobs > std::numeric_limits<int>::max()) {
    throw Error("prefill", "q.shape", std::to_string(jobs) + " tiles of q, k and v to quantise",
                "at most 2147483647, which are more than 60 TB");
  }
}

// Longer tiles read the statistics less often; there must be enough of them to keep every multiprocessor busy to the
// end. One at least, which writes the scales where there is no token.
void set_convert_jobs(QkvParams& params, const QkvQuantization& work) {
  const std::int64_t wanted = kConvertJobs * multiprocessor_count(work.q.input.device.index);
  for (int tokens : {1024, 512, 256}) {
    int tiles[3];
    for (int i = 0; i < 3; ++i) {
      QkvOperandParams& operand = params.operand[i];
      operand.job_tokens = tokens;
      tiles[i] = std::max(1, static_cast<int>((static_cast<std::int64_t>(operand.tokens) + tokens - 1) / tokens));
    }
    set_jobs(params, work, tiles);
    if (params.job_end[2] >= wanted) return;
  }
}

}  // namespace

void quantize_qkv(const QkvQuantization& work, Stream stream) {
  const DeviceGuard guard(work.q.input.device.index, "prefill");
  QkvParams params{};
  params.operand[kQuery] = operand_params(work.q);
  params.operand[kKey] = operand_params(work.k);
  params.operand[kValue] = operand_params(work.v);
  std::ranges::copy(work.signs, params.signs);
  params.softmax_scale = work.softmax_scale;
  params.lse_bias = work.lse_bias;
  params.queries_per_kv = static_cast<int>(work.q.input.shape[2] / work.k.input.shape[2]);
  auto& [query, key, value] = params.operand;
  set_jobs(params, work, {query.chunks, key.chunks, value.chunks});
  const bool has_statistics = params.job_end[2] > 0;
  if (has_statistics) launch_qkv_statistics(params, work.q.input.dtype, stream);
  set_convert_jobs(params, work);
  launch_qkv_convert(params, work.q.input.dtype, has_statistics ? Start::kEarly : Start::kBehindTheLast, stream);
}

}  // namespace fp8attn::cuda
