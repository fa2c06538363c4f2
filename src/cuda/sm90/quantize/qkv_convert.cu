// Second pass over q, k and v: e4m3 codes and scales, from the statistics of the first.
#include "cuda/sm90/quantize/launch.h"
#include "cuda/sm90/quantize/pack_tile.cuh"
#include "cuda/sm90/quantize/qkv_kernels.h"
#include "cuda/sm90/quantize/qkv_rows.cuh"
#include "cuda/sm90/quantize/qkv_table.cuh"

namespace fp8attn::cuda {
namespace {

constexpr int kStages = 3;
constexpr int kBlocks = 3;  // of a multiprocessor
static_assert(kQkvThreads == kPackThreads);

// Fewer lanes a row than in the first pass, whose registers are full of statistics: a shuffle less per element of a
// rotation.
struct ConvertShapes {
  using Of64 = RowShape<4, 2, 2>;
  using Of128 = RowShape<4, 4, 1>;
  using Of256 = RowShape<8, 4, 1>;
};

// q (kIsQuery) or k: the rows of one tile.
template <class Element, class Shape, bool kIsQuery, bool kRotated>
class RowConverter {
 public:
  __device__ __forceinline__ RowConverter(const QkvParams& params, const QkvJob& job, const ChannelTable& table)
      : params_(params),
        operand_(params.operand[kIsQuery ? kQuery : kKey]),
        table_(table),
        pair_(job.batch * operand_.heads + job.head),
        first_row_(static_cast<std::int64_t>(pair_) * operand_.tokens),
        two_blocks_(operand_.first_block != operand_.channels),
        output_(operand_.output + first_row_ * operand_.channels) {}

  __device__ __forceinline__ void run(const QkvJob& job, ChannelTable& table, std::uint8_t* slots) {
    const int first = job.tile * operand_.job_tokens, end = min(first + operand_.job_tokens, operand_.tokens);
    const auto* head = static_cast<const std::uint16_t*>(operand_.input) + job.batch * operand_.input_batch +
                       job.head * operand_.input_head;
    Stream stream(slots, head, operand_.input_token, operand_.channels, first, end);
    if constexpr (kRotated) fill_flips(params_.signs, table.flips);
    cudaGridDependencySynchronize();  // the inputs are older than the first pass, its statistics are not
    prepare(job, table);
    int stage = 0;
#pragma unroll 1
    for (int batch = first; batch < end; batch += Shape::kBatchRows) {
      stream.next(stage);
#pragma unroll 1
      for (int r = 0; r < Shape::kBatch; ++r) {
        RowValues<Shape> x;
        stream.values(stage, r, kRotated ? &table_.flips : nullptr, x);
        const int token = batch + Shape::slot() + r * Shape::kRows;
        convert(x, token, end);
        __syncwarp();  // before the codes take the place of the values
        leave(x, stream, stage, r);
        const int warp_token = batch + static_cast<int>(threadIdx.x) / 32 * Shape::kWarpRows + r * Shape::kRows;
        const auto offset = std::uint64_t{static_cast<unsigned>(warp_token)} * Shape::stride(operand_.channels);
        stream.write(stage, r, output_ + offset, end - warp_token);
      }
      stage = Stream::Ring::behind(stage);
    }
  }

 private:
  using Stream = RowStream<Element, Shape, kStages>;

  // The scale, and the mean of the keys: what k loses, and what q is multiplied by for lse_bias.
  __device__ __forceinline__ void prepare(const QkvJob& job, ChannelTable& table) {
    per_token_ = operand_.granularity == ScaleGranularity::kTokenHead;
    if (!per_token_) {
      fill_table(operand_, pair_, job.tile == 0, table);
      inverse_ = table.inverse[0];
    }
    if (kIsQuery && params_.lse_bias != nullptr) {
      const auto& key = params_.operand[kKey];
      fill_means(key, static_cast<std::int64_t>(job.batch) * key.heads + job.head / params_.queries_per_kv, table);
    }
  }

  __device__ __forceinline__ void convert(RowValues<Shape>& x, int token, int end) {
    if constexpr (kRotated) {
      rotate<Shape>(x, two_blocks_);
      each(x, [&](float& value, int v, int) {
        value = __fmul_rn(value, operand_.normalisation[two_blocks_ && v >= 2 ? 1 : 0]);
      });
    }
    if (!kIsQuery && operand_.centered) {
      each_with_mean(x, [](float& value, float mean) { value = __fsub_rn(value, mean); });
    }
    if (kIsQuery && per_token_) {
      const float scale = scale_from_amax(row_amax(x));
      inverse_ = inverse_of(scale);
      if (token < end && Shape::lane() == 0) operand_.scale[first_row_ + token] = scale;
    }
    if (kIsQuery && params_.lse_bias != nullptr) {
      float dot = 0.0f;
      each_with_mean(x, [&](float& value, float mean) { dot = fmaf(value, mean, dot); });
      dot = over_lanes(dot, [](auto a, auto b) { return a + b; });
      if (token < end && Shape::lane() == 0) params_.lse_bias[first_row_ + token] = params_.softmax_scale * dot;
    }
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

  __device__ __forceinline__ void leave(const RowValues<Shape>& x, const Stream& stream, int stage, int r) const {
#pragma unroll
    for (int v = 0; v < Shape::kVectors; ++v) {
      Vector<1, 8> codes;
#pragma unroll
      for (int e = 0; e < 8; e += 2) {
        codes.registers[e / 4] |= e4m3_pair(scaled(x[v][e], inverse_), scaled(x[v][e + 1], inverse_)) << (e % 4 * 8);
      }
      stream.leave(stage, r, v, codes);
    }
  }

  template <class Visit>
  __device__ __forceinline__ void each_with_mean(RowValues<Shape>& x, Visit visit) const {
#pragma unroll
    for (int v = 0; v < Shape::kVectors; ++v) {
      float mean[8];
      read_table(table_.mean, Shape::channel(v), mean);
#pragma unroll
      for (int e = 0; e < 8; ++e) visit(x[v][e], mean[e]);
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
  const ChannelTable& table_;
  const int pair_;  // batch entry and head
  const std::int64_t first_row_;
  const bool two_blocks_;
  std::uint8_t* const output_;  // of token 0
  bool per_token_ = false;
  float inverse_ = 1.0f;
};

template <class Element>
using ValueTile = PackTileShape<Access<Element, 8>>;
constexpr int kBatchTokens = 128;  // a quad a thread

// Batches of v in a ring: those of a tile of tokens and channels, then of its neighbour in the channels.
template <class Shape>
class ValueStream {
 public:
  using Ring = VectorRing<4 * 32, kStages - 1>;  // the tile itself lies behind it

  // head: channel 0 of token 0; begin: the first token.
  __device__ ValueStream(std::uint8_t* slots, const QkvOperandParams& operand, const std::uint16_t* head, int begin,
                         int end)
      : ring_(slots), stride_(operand.input_token), channels_(operand.channels) {
    const int token = 16 * Shape::group(0) + 2 * Shape::quarter();
    row_ = head + (begin + token) * stride_ + 8 * Shape::vector();
    left_ = end - begin - token;
#pragma unroll 1
    for (int i = 0; i < kStages - 2; ++i) fetch(i);
  }

  // Waits for the next batch, in `stage`.
  __device__ __forceinline__ void next(int stage, Quad<typename Shape::Access>& quad) {
    fetch(Ring::before(stage));
    ring_.template wait<kStages - 2>();
#pragma unroll
    for (int k = 0; k < 4; ++k) quad.rows[k].load(ring_.at(stage, k * 32 + threadIdx.x % 32));
  }

 private:
  __device__ __forceinline__ void fetch(int stage) {
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const int token = token_of_byte(0, k);
      ring_.fetch(stage, k * 32 + threadIdx.x % 32, row_ + token * stride_, token < left_);
    }
    ring_.commit();
    row_ += kBatchTokens * stride_;
    left_ -= kBatchTokens;
    if (++group_ < Shape::kGroupsPerWarp) return;
    group_ = 0;
    channel_ += Shape::kChannels;
    row_ += Shape::kChannels;
    if (channel_ < channels_) {
      row_ -= Shape::kTokens * stride_;
      left_ += Shape::kTokens;
    } else {
      row_ -= channels_;
      channel_ = 0;
    }
  }

  Ring ring_;
  const std::uint16_t* row_;  // the thread's first of the next batch
  const std::int64_t& stride_;
  int channels_, channel_ = 0, group_ = 0, left_;  // tokens from row_ on
};

// The words of a quad's channels, 0 where there is no token; tokens: of its group of 16 from the first on.
template <class Element>
__device__ __forceinline__ void centered_words(const Quad<Access<Element, 8>>& quad, const float (&mean)[8],
                                               const float (&inverse)[8], int tokens, std::uint32_t (&words)[8]) {
  using Row = Access<Element, 8>;
#pragma unroll
  for (int c = 0; c < 8; ++c) {
    const auto code = [&](int k) { return scaled(__fsub_rn(Row::real(quad.rows[k], c), mean[c]), inverse[c]); };
    words[c] = e4m3_pair(code(0), code(1)) | e4m3_pair(code(2), code(3)) << 16;
  }
  if (tokens >= 16) return;
  std::uint32_t there = 0;
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    if (token_of_byte(ValueTile<Element>::quarter(), k) < tokens) there |= 0xFFu << (8 * k);
  }
#pragma unroll
  for (int c = 0; c < 8; ++c) words[c] &= there;
}

// All channels of the tokens of one job.
template <class Element>
__device__ __forceinline__ void convert_values(const QkvOperandParams& operand, const QkvJob& job, ChannelTable& table,
                                               std::uint8_t* slots) {
  using Shape = ValueTile<Element>;
  using Stream = ValueStream<Shape>;
  const int begin = job.tile * operand.job_tokens, end = min(begin + operand.job_tokens, operand.tokens);
  const std::int64_t pair = static_cast<std::int64_t>(job.batch) * operand.heads + job.head;
  Stream stream(slots, operand,
                static_cast<const std::uint16_t*>(operand.input) + job.batch * operand.input_batch +
                    job.head * operand.input_head,
                begin, end);
  cudaGridDependencySynchronize();
  fill_table(operand, pair, job.tile == 0, table);
  auto* tile_words = reinterpret_cast<std::uint32_t*>(slots + (kStages - 1) * Stream::Ring::kStageBytes);
  std::uint8_t* output = operand.output + pair * operand.channels * operand.length;
  int stage = 0;
  for (int first = begin; first < end; first += Shape::kTokens) {
#pragma unroll 1
    for (int channel = 0; channel < operand.channels; channel += Shape::kChannels) {
      float mean[8], inverse[8];
      read_table(table.mean, channel + 8 * Shape::vector(), mean);
      read_table(table.inverse, channel + 8 * Shape::vector(), inverse);
#pragma unroll
      for (int g = 0; g < Shape::kGroupsPerWarp; ++g) {
        Quad<typename Shape::Access> quad;
        stream.next(stage, quad);
        std::uint32_t words[8];
        centered_words<Element>(quad, mean, inverse, end - first - 16 * Shape::group(g), words);
        store_words<Shape>(words, 8 * Shape::vector(), g, tile_words);
        stage = Stream::Ring::behind(stage);
      }
      __syncthreads();
      write_tile<Shape>(tile_words, output + channel * operand.length + first, operand.length, Shape::kChannels,
                        operand.length - first, true);
      __syncthreads();
    }
  }
}

template <class Element, bool kIsQuery>
__device__ __forceinline__ void convert_rows(const QkvParams& params, const QkvJob& job, ChannelTable& table,
                                             std::uint8_t* slots) {
  const QkvOperandParams& operand = params.operand[kIsQuery ? kQuery : kKey];
  with_row_shape<ConvertShapes>(operand.channels, [&]<class Shape>(Shape) {
    if (operand.rotated) {
      RowConverter<Element, Shape, kIsQuery, true>(params, job, table).run(job, table, slots);
    } else {
      RowConverter<Element, Shape, kIsQuery, false>(params, job, table).run(job, table, slots);
    }
  });
}

constexpr int kSlotBytes = kStages * VectorRing<ConvertShapes::Of64::kWarpVectors, kStages>::kStageBytes;

// Shared memory holds rows of q and k, or a tile of v.
template <class Element>
__global__ void __launch_bounds__(kQkvThreads, kBlocks) qkv_convert(const __grid_constant__ QkvParams params) {
  extern __shared__ __align__(16) std::uint8_t slots[];
  __shared__ ChannelTable table;
  cudaTriggerProgrammaticLaunchCompletion();
  const QkvJob job = qkv_job(params, true);
  if (job.operand == kValue) {
    convert_values<Element>(params.operand[kValue], job, table, slots);
  } else if (job.operand == kKey) {
    convert_rows<Element, false>(params, job, table, slots);
  } else {
    convert_rows<Element, true>(params, job, table, slots);
  }
}

}  // namespace

void launch_qkv_convert(const QkvParams& params, DType dtype, Start start, Stream stream) {
  const auto kernel = dtype == DType::kBF16 ? qkv_convert<Bf16> : qkv_convert<Fp16>;
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSlotBytes), "prefill",
        "cudaFuncSetAttribute");
  launch_blocks(kernel, Grid{.blocks = params.job_end[2], .threads = kQkvThreads, .shared_bytes = kSlotBytes}, start,
                stream, params);
}

}  // namespace fp8attn::cuda
