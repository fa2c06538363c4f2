// First pass over k and v (and q, where it has one scale per batch entry and head): statistics of every channel over
// chunks of tokens, one block a chunk.
#include <cmath>

#include "cuda/sm90/quantize/launch.h"
#include "cuda/sm90/quantize/qkv_kernels.h"
#include "cuda/sm90/quantize/qkv_rows.cuh"

namespace fp8attn::cuda {
namespace {

constexpr int kWarps = kQkvThreads / 32;

constexpr int kStages = 3;

// 8 loads of 16 bytes a thread are under way together. kRows is the number of slots of a sum (sum_slots).
struct StatisticsShapes {
  using Of64 = RowShape<8, 1, 8>;
  using Of128 = RowShape<8, 2, 4>;
  using Of256 = RowShape<16, 2, 4>;
};
constexpr int kSlotBytes = kStages * VectorRing<8 * 32, kStages>::kStageBytes;

// Statistics of a thread's channels over the rows of its slot. kFinite: elements that are not finite count as 0;
// without it infinity or NaN shows in the result.
template <class Shape, bool kCentered, bool kFinite>
struct SlotStatistics {
  RowValues<Shape> highest, lowest, sum;

  __device__ __forceinline__ SlotStatistics() {
#pragma unroll
    for (int v = 0; v < Shape::kVectors; ++v) {
#pragma unroll
      for (int e = 0; e < 8; ++e) {
        highest[v][e] = kCentered ? -INFINITY : 0.0f;
        lowest[v][e] = INFINITY;
        sum[v][e] = 0.0f;
      }
    }
  }

  __device__ __forceinline__ void add(const RowValues<Shape>& x) {
#pragma unroll
    for (int v = 0; v < Shape::kVectors; ++v) {
#pragma unroll
      for (int e = 0; e < 8; ++e) {
        const float value = kFinite ? finite_or_zero(x[v][e]) : x[v][e];
        highest[v][e] = fmaxf(highest[v][e], kCentered ? value : fabsf(value));
        if constexpr (kCentered) {
          lowest[v][e] = fminf(lowest[v][e], value);
          sum[v][e] = __fadd_rn(sum[v][e], value);
        }
      }
    }
  }

  __device__ __forceinline__ bool is_finite() const {
    bool all = true;
#pragma unroll
    for (int v = 0; v < Shape::kVectors; ++v) {
#pragma unroll
      for (int e = 0; e < 8; ++e) {
        const float value = kCentered ? sum[v][e] : highest[v][e];  // NaN is no maximum, so it counts as 0 there
        all &= (__float_as_uint(value) & 0x7FFFFFFFu) < 0x7F800000u;
      }
    }
    return all;
  }
};

// The chunk of one block.
struct Chunk {
  const std::uint16_t* head;
  std::int64_t token_stride;
  int begin, end, channels;
  bool two_blocks;
};

template <class Element, class Shape, bool kRotated, class Statistics>
__device__ __forceinline__ void collect(const Chunk& chunk, const SignFlips& flips, std::uint8_t* slots,
                                        Statistics& statistics) {
  using Stream = RowStream<Element, Shape, kStages>;
  Stream stream(slots, chunk.head, chunk.token_stride, chunk.channels, chunk.begin, chunk.end);
  int stage = 0;
#pragma unroll 1
  for (int first = chunk.begin; first < chunk.end; first += Shape::kBatchRows) {
    stream.next(stage);
    constexpr int kUnroll = Shape::kLanes == 16 ? 1 : 2;  // two would not fit into the registers of the widest rows
#pragma unroll kUnroll
    for (int r = 0; r < Shape::kBatch; ++r) {
      RowValues<Shape> x;
      stream.values(stage, r, kRotated ? &flips : nullptr, x);
      if constexpr (kRotated) rotate<Shape>(x, chunk.two_blocks);
      if (first + Shape::slot() + r * Shape::kRows < chunk.end) statistics.add(x);
    }
    stage = Stream::Ring::behind(stage);
  }
}

// Combines the slots of one statistic and writes it: within a warp pairwise, then from warp to warp. Whole block.
template <class Shape, class Combine>
__device__ __forceinline__ void write_statistic(const RowValues<Shape>& values, float start, Combine combine,
                                                int channels, float (&shared)[kWarps][kMostChannels],
                                                float* statistic) {
  const int warp = threadIdx.x / 32;
#pragma unroll
  for (int v = 0; v < Shape::kVectors; ++v) {
#pragma unroll
    for (int e = 0; e < 8; ++e) {
      float value = values[v][e];
#pragma unroll
      for (int distance = Shape::kLanes; distance < 32; distance *= 2) {
        value = combine(value, __shfl_xor_sync(0xFFFFFFFFu, value, distance));
      }
      if (threadIdx.x % 32 < Shape::kLanes) shared[warp][Shape::channel(v) + e] = value;
    }
  }
  __syncthreads();
  if (static_cast<int>(threadIdx.x) < channels) {
    float value = start;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) value = combine(value, shared[w][threadIdx.x]);
    statistic[threadIdx.x] = value;
  }
  __syncthreads();
}

template <class Shape, bool kCentered, bool kFinite>
__device__ __forceinline__ void write_all(const SlotStatistics<Shape, kCentered, kFinite>& statistics, int channels,
                                          float (&shared)[kWarps][kMostChannels], float* target) {
  const auto higher = [](float a, float b) { return fmaxf(a, b); };
  const auto lower = [](float a, float b) { return fminf(a, b); };
  const auto sum = [](float a, float b) { return __fadd_rn(a, b); };
  write_statistic<Shape>(statistics.highest, kCentered ? -INFINITY : 0.0f, higher, channels, shared,
                         target + kHighest * channels);
  if constexpr (kCentered) {
    write_statistic<Shape>(statistics.lowest, INFINITY, lower, channels, shared, target + kLowest * channels);
    write_statistic<Shape>(statistics.sum, 0.0f, sum, channels, shared, target + kSum * channels);
  }
}

// A chunk with elements that are not finite is read twice.
template <class Element, class Shape, bool kRotated, bool kCentered>
__device__ __forceinline__ void collect_and_write(const Chunk& chunk, const SignFlips& flips, std::uint8_t* slots,
                                                  float (&shared)[kWarps][kMostChannels], float* target) {
  SlotStatistics<Shape, kCentered, false> statistics;
  collect<Element, Shape, kRotated>(chunk, flips, slots, statistics);
  if (__syncthreads_and(statistics.is_finite())) return write_all(statistics, chunk.channels, shared, target);
  SlotStatistics<Shape, kCentered, true> filtered;
  collect<Element, Shape, kRotated>(chunk, flips, slots, filtered);
  write_all(filtered, chunk.channels, shared, target);
}

template <class Element>
__global__ void __launch_bounds__(kQkvThreads, 2) qkv_statistics(const __grid_constant__ QkvParams params) {
  extern __shared__ __align__(16) std::uint8_t slots[];
  __shared__ float shared[kWarps][kMostChannels];
  __shared__ __align__(16) SignFlips flips;
  cudaTriggerProgrammaticLaunchCompletion();
  const QkvJob job = qkv_job(params, false);
  const QkvOperandParams& operand = params.operand[job.operand];
  const int begin = job.tile * operand.chunk_tokens;
  const Chunk chunk{.head = static_cast<const std::uint16_t*>(operand.input) + job.batch * operand.input_batch +
                            job.head * operand.input_head,
                    .token_stride = operand.input_token,
                    .begin = begin,
                    .end = min(begin + operand.chunk_tokens, operand.tokens),
                    .channels = operand.channels,
                    .two_blocks = operand.first_block != operand.channels};
  const int kinds = operand.centered ? kCenteredStatistics : kPlainStatistics;
  const std::int64_t pair = static_cast<std::int64_t>(job.batch) * operand.heads + job.head;
  float* target = operand.statistics + (pair * operand.chunks + job.tile) * kinds * operand.channels;
  const bool rotated = operand.rotated, centered = operand.centered;
  if (rotated) fill_flips(params.signs, flips);
  with_row_shape<StatisticsShapes>(chunk.channels, [&]<class Shape>(Shape) {
    if (rotated && centered) {
      collect_and_write<Element, Shape, true, true>(chunk, flips, slots, shared, target);
    } else if (rotated) {
      collect_and_write<Element, Shape, true, false>(chunk, flips, slots, shared, target);
    } else if (centered) {
      collect_and_write<Element, Shape, false, true>(chunk, flips, slots, shared, target);
    } else {
      collect_and_write<Element, Shape, false, false>(chunk, flips, slots, shared, target);
    }
  });
}

}  // namespace

void launch_qkv_statistics(const QkvParams& params, DType dtype, Stream stream) {
  const auto kernel = dtype == DType::kBF16 ? qkv_statistics<Bf16> : qkv_statistics<Fp16>;
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSlotBytes), "prefill",
        "cudaFuncSetAttribute");
  launch_blocks(kernel, Grid{.blocks = params.job_end[2], .threads = kQkvThreads, .shared_bytes = kSlotBytes},
                Start::kBehindTheLast, stream, params);
}

}  // namespace fp8attn::cuda
