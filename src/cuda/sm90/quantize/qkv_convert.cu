// Second pass over q, k and v: e4m3 codes and scales, from the statistics of the first.
#include <algorithm>
#include <cfloat>
#include <cmath>

#include "cuda/sm90/quantize/launch.h"
#include "cuda/sm90/quantize/pack_tile.cuh"
#include "cuda/sm90/quantize/qkv_kernels.h"
#include "cuda/sm90/quantize/qkv_rows.cuh"

namespace fp8attn::cuda {
namespace {

constexpr int kStages = 3;
static_assert(kQkvThreads == kPackThreads);

// What the statistics of one batch entry and head come to, in shared memory.
struct ChannelTable {
  float mean[kMostChannels];     // what is subtracted; 0 where nothing is
  float inverse[kMostChannels];  // of the scales
  std::uint32_t largest;         // amax of all channels
};

// Mean and largest magnitude of one channel. pair: batch entry and head.
__device__ __forceinline__ void read_channel(const QkvOperandParams& operand, std::int64_t pair, int channel,
                                             float& mean, float& amax) {
  const float factor = operand.normalisation[channel < operand.first_block ? 0 : 1];
  const int kinds = operand.centered ? kCenteredStatistics : kPlainStatistics;
  const float* statistics = operand.statistics + pair * operand.chunks * kinds * operand.channels + channel;
  float highest = operand.centered ? -INFINITY : 0.0f, lowest = INFINITY, sum = 0.0f;
#pragma unroll 4
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
__device__ void fill_table(const QkvOperandParams& operand, std::int64_t pair, bool publish, ChannelTable& table) {
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
__device__ void fill_means(const QkvOperandParams& operand, std::int64_t pair, ChannelTable& table) {
  const int channel = threadIdx.x;
  float mean = 0.0f, amax;
  if (channel < operand.channels) read_channel(operand, pair, channel, mean, amax);
  table.mean[channel] = mean;
  __syncthreads();
}

// q (kIsQuery) or k: the batches of rows of one tile.
template <class Element, class Shape, bool kIsQuery, bool kRotated>
class RowConverter {
 public:
  __device__ __forceinline__ RowConverter(const QkvParams& params, const QkvJob& job)
      : params_(params),
        operand_(params.operand[kIsQuery ? kQuery : kKey]),
        pair_(static_cast<std::int64_t>(job.batch) * operand_.heads + job.head),
        signs_(params.signs) {}

  __device__ __forceinline__ void run(const QkvJob& job, ChannelTable& table, std::uint8_t* slots) {
    const int rows = operand_.job_batches * Shape::kBatchRows;
    const int first = job.tile * rows, end = min(first + rows, operand_.tokens);
    const auto* head = static_cast<const std::uint16_t*>(operand_.input) + job.batch * operand_.input_batch +
                       job.head * operand_.input_head;
    Stream stream(slots, head, operand_.input_token, operand_.channels, end);
#pragma unroll
    for (int i = 0; i < kStages - 1; ++i) stream.fetch(i, first + i * Shape::kBatchRows);
    cudaGridDependencySynchronize();  // the inputs are older than the first pass, its statistics are not
    prepare(job, table);
    int stage = 0;
#pragma unroll 1
    for (int batch = first; batch < end; batch += Shape::kBatchRows) {
      const int next = stage == 0 ? kStages - 1 : stage - 1;  // the stage that was read last
      stream.fetch(next, batch + (kStages - 1) * Shape::kBatchRows);
      stream.template wait<kStages - 1>();
      convert_batch(stream, stage, batch, end);
      stage = stage == kStages - 1 ? 0 : stage + 1;
    }
  }

 private:
  using Stream = RowStream<Element, Shape, kStages>;

  // The scale, and the mean of the keys: what k loses, and what q is multiplied by for lse_bias.
  __device__ __forceinline__ void prepare(const QkvJob& job, ChannelTable& table) {
    per_token_ = operand_.granularity == ScaleGranularity::kTokenHead;
    const bool wants_bias = kIsQuery && params_.lse_bias != nullptr;
    if (!per_token_) {
      fill_table(operand_, pair_, job.tile == 0, table);
      inverse_ = table.inverse[0];
    }
    if (wants_bias) {
      const auto& key = params_.operand[kKey];
      fill_means(key, static_cast<std::int64_t>(job.batch) * key.heads + job.head / params_.queries_per_kv, table);
      bias_ = params_.lse_bias + pair_ * operand_.tokens;
    }
#pragma unroll
    for (int v = 0; v < Shape::kVectors; ++v) {
#pragma unroll
      for (int e = 0; e < 8; ++e) mean_[v][e] = !kIsQuery || wants_bias ? table.mean[Shape::channel(v) + e] : 0.0f;
    }
  }

  __device__ __forceinline__ void convert_batch(const Stream& stream, int stage, int first, int end) {
#pragma unroll 2
    for (int r = 0; r < Shape::kBatch; ++r) {
      RowValues<Shape> x;
      stream.values(stage, r, x);
      convert(x, first + Shape::slot() + r * Shape::kRows, end);
    }
  }

  __device__ __forceinline__ void convert(RowValues<Shape>& x, int token, int end) {
    if constexpr (kRotated) {
      const bool two_blocks = operand_.first_block != operand_.channels;
      rotate<Shape>(x, signs_, two_blocks);
      each(x, [&](float& value, int v, int) {
        value = __fmul_rn(value, operand_.normalisation[two_blocks && v == 1 ? 1 : 0]);
      });
    }
    if constexpr (!kIsQuery) each(x, [&](float& value, int v, int e) { value = __fsub_rn(value, mean_[v][e]); });
    const std::int64_t row = pair_ * operand_.tokens + token;
    if (kIsQuery && per_token_) {
      const float scale = scale_from_amax(row_amax(x));
      inverse_ = inverse_of(scale);
      if (token < end && Shape::lane() == 0) operand_.scale[row] = scale;
    }
    if (kIsQuery && bias_ != nullptr) {
      float dot = 0.0f;
      each(x, [&](float& value, int v, int e) { dot = fmaf(value, mean_[v][e], dot); });
      dot = over_lanes(dot, [](auto a, auto b) { return a + b; });
      if (token < end && Shape::lane() == 0) bias_[token] = params_.softmax_scale * dot;
    }
    if (token < end) store(x, row);
  }

  // The bits of the largest finite magnitude of the row. An element that is not finite is rare: it is looked for in the
  // maximum, which ignores NaN, and only then in every element.
  __device__ __forceinline__ static std::uint32_t row_amax(RowValues<Shape>& x) {
    constexpr std::uint32_t kInfinity = 0x7F800000u;
    const auto larger = [](auto a, auto b) { return max(a, b); };
    float highest = 0.0f;
    each(x, [&](float& value, int, int) { highest = fmaxf(highest, fabsf(value)); });
    std::uint32_t amax = over_lanes(__float_as_uint(highest), larger);
    if (__any_sync(0xFFFFFFFFu, amax >= kInfinity)) {
      amax = 0;
      each(x, [&](float& value, int, int) { amax = max(amax, finite_magnitude(value)); });
      amax = over_lanes(amax, larger);
    }
    return amax;
  }

  __device__ __forceinline__ void store(const RowValues<Shape>& x, std::int64_t row) const {
#pragma unroll
    for (int v = 0; v < Shape::kVectors; ++v) {
      const int channel = Shape::channel(v);
      if (channel >= operand_.channels) break;
      Vector<1, 8> codes;
#pragma unroll
      for (int e = 0; e < 8; e += 2) {
        codes.registers[e / 4] |= e4m3_pair(scaled(x[v][e], inverse_), scaled(x[v][e + 1], inverse_)) << (e % 4 * 8);
      }
      codes.store(operand_.output + row * operand_.channels + channel);
    }
  }

  template <class Visit>
  __device__ __forceinline__ static void each(RowValues<Shape>& x, Visit visit) {
#pragma unroll
    for (int v = 0; v < Shape::kVectors; ++v) {
#pragma unroll
      for (int e = 0; e < 8; ++e) visit(x[v][e], v, e);
    }
  }

  // One value of all lanes of a row, in each of them.
  template <class Value, class Combine>
  __device__ __forceinline__ static Value over_lanes(Value value, Combine combine) {
#pragma unroll
    for (int distance = 1; distance < Shape::kLanes; distance *= 2) {
      value = combine(value, __shfl_xor_sync(0xFFFFFFFFu, value, distance));
    }
    return value;
  }

  const QkvParams& params_;
  const QkvOperandParams& operand_;
  const std::int64_t pair_;
  const ThreadSigns<Shape> signs_;
  bool per_token_ = false;
  float inverse_ = 1.0f;
  float* bias_ = nullptr;  // of token 0
  RowValues<Shape> mean_;
};

template <class Element>
using ValueTile = PackTileShape<Access<Element, 8>>;

// The words of a quad's channels; tokens: of its group of 16 from the first on.
template <class Element>
__device__ __forceinline__ void centered_words(const Quad<Access<Element, 8>>& quad, const float* mean,
                                               const float* inverse, int tokens, std::uint32_t (&words)[8]) {
  using Row = Access<Element, 8>;
  const int quarter = ValueTile<Element>::quarter();
#pragma unroll
  for (int c = 0; c < 8; ++c) {
    const auto code = [&](int k) {  // 0 where there is no token
      const float value = scaled(__fsub_rn(Row::real(quad.rows[k], c), mean[c]), inverse[c]);
      return token_of_byte(quarter, k) < tokens ? value : 0.0f;
    };
    words[c] = e4m3_pair(code(0), code(1)) | e4m3_pair(code(2), code(3)) << 16;
  }
}

// A tile of v, kTokens tokens after kTokens tokens.
template <class Element>
__device__ __forceinline__ void convert_values(const QkvOperandParams& operand, const QkvJob& job, ChannelTable& table,
                                               std::uint32_t* tile_words) {
  using Shape = ValueTile<Element>;
  const int channel_tiles = operand.channels / Shape::kChannels;
  const int first_channel = job.tile % channel_tiles * Shape::kChannels, lane_channel = 8 * Shape::vector();
  const int rows = operand.job_batches * Shape::kTokens, begin = job.tile / channel_tiles * rows;
  const int end = min(begin + rows, operand.tokens);
  const std::int64_t pair = static_cast<std::int64_t>(job.batch) * operand.heads + job.head;
  const auto* source = static_cast<const std::uint16_t*>(operand.input) + job.batch * operand.input_batch +
                       job.head * operand.input_head + first_channel + lane_channel;
  std::uint8_t* output = operand.output + (pair * operand.channels + first_channel) * operand.length;
  const auto rows_from = [&](int first) {
    return StridedRows<std::uint16_t>{source + first * operand.input_token, operand.input_token, end - first};
  };
  LaneQuads<Shape> lane{};
  lane.load(rows_from(begin), 0);
  cudaGridDependencySynchronize();
  fill_table(operand, pair, job.tile < channel_tiles, table);
  float mean[8], inverse[8];
#pragma unroll
  for (int c = 0; c < 8; ++c) {
    mean[c] = table.mean[first_channel + lane_channel + c];
    inverse[c] = table.inverse[first_channel + lane_channel + c];
  }
#pragma unroll 1
  for (int first = begin; first < end; first += Shape::kTokens) {
#pragma unroll
    for (int g = 0; g < Shape::kGroupsPerWarp; ++g) {
      std::uint32_t words[8];
      centered_words<Element>(lane.quads[g], mean, inverse, end - first - 16 * Shape::group(g), words);
      store_words<Shape>(words, lane_channel, g, tile_words);
    }
    const int next = first + Shape::kTokens;  // on its way while this one is written
    if (next < end) lane.load(rows_from(next), 0);
    __syncthreads();
    write_tile<Shape>(tile_words, output + first, operand.length, Shape::kChannels, operand.length - first, true);
    __syncthreads();
  }
}

template <class Element, bool kIsQuery>
__device__ __forceinline__ void convert_rows(const QkvParams& params, const QkvJob& job, ChannelTable& table,
                                             std::uint8_t* slots) {
  const QkvOperandParams& operand = params.operand[kIsQuery ? kQuery : kKey];
  with_row_shape(operand.channels, [&]<class Shape>(Shape) {
    if (operand.rotated) {
      RowConverter<Element, Shape, kIsQuery, true>(params, job).run(job, table, slots);
    } else {
      RowConverter<Element, Shape, kIsQuery, false>(params, job).run(job, table, slots);
    }
  });
}

constexpr int kSlotBytes = kStages * RowStream<Bf16, Rows64, kStages>::kStageBytes;
static_assert(kSlotBytes >= ValueTile<Bf16>::kChannels * ValueTile<Bf16>::kTokens);

// Shared memory holds rows of q and k, or a tile of v.
template <class Element>
__global__ void __launch_bounds__(kQkvThreads, 2) qkv_convert(const __grid_constant__ QkvParams params) {
  extern __shared__ __align__(16) std::uint8_t slots[];
  __shared__ ChannelTable table;
  cudaTriggerProgrammaticLaunchCompletion();
  const QkvJob job = qkv_job(params, true);
  if (job.operand == kValue) {
    convert_values<Element>(params.operand[kValue], job, table, reinterpret_cast<std::uint32_t*>(slots));
  } else if (job.operand == kKey) {
    convert_rows<Element, false>(params, job, table, slots);
  } else {
    convert_rows<Element, true>(params, job, table, slots);
  }
}

}  // namespace

int qkv_convert_tiles(const QkvOperandParams& operand, bool is_value) {
  // One at least, which writes the scales where there is no token.
  const auto tiles_of = [&](int rows) {
    const std::int64_t tile = static_cast<std::int64_t>(operand.job_batches) * rows;
    return static_cast<int>(std::max<std::int64_t>((operand.tokens + tile - 1) / tile, 1));
  };
  if (is_value) return tiles_of(ValueTile<Bf16>::kTokens) * (operand.channels / ValueTile<Bf16>::kChannels);
  if (operand.channels == 64) return tiles_of(Rows64::kBatchRows);
  return tiles_of(operand.channels == 128 ? Rows128::kBatchRows : Rows256::kBatchRows);
}

void launch_qkv_convert(const QkvParams& params, DType dtype, Start start, Stream stream) {
  const auto kernel = dtype == DType::kBF16 ? qkv_convert<Bf16> : qkv_convert<Fp16>;
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSlotBytes), "prefill",
        "cudaFuncSetAttribute");
  launch_blocks(kernel, Grid{.blocks = params.job_end[2], .threads = kQkvThreads, .shared_bytes = kSlotBytes}, start,
                stream, params);
}

}  // namespace fp8attn::cuda
