// Merges partial results of attention: every element is read and written once, by one launch.
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <bit>
#include <cstdint>

#include "cuda/launch/check.h"
#include "cuda/sm90/merge/merge.h"
#include "cuda/sm90/ptx/half2.h"
#include "cuda/sm90/quantize/elements.h"
#include "cuda/sm90/quantize/launch.h"
#include "cuda/sm90/tile/tile_order.h"

namespace fp8attn::cuda {
namespace {

constexpr int kThreads = 256, kBlocksPerMultiprocessor = 4;
constexpr int kAtOnce = 2;   // parts whose rows are under way together
constexpr int kVectors = 2;  // of a row that a lane has at a time

// Strides in elements; dims: batch, token, head.
struct RowStrides {
  std::int64_t batch, token, head;

  __device__ std::int64_t offset(int b, int t, int h) const { return b * batch + t * token + h * head; }
};

struct MergeParams {
  const void* outs;
  const float* lses;
  std::int64_t outs_part, lses_part;  // strides
  RowStrides outs_row, lses_row, out_row, lse_row;
  void* out;
  float* lse;  // null: not wanted
  DType out_dtype;
  float octaves;  // in one of the lses' base
  int parts, tokens, heads, channels;
  // A block merges rows of neighbouring tokens, whose lses are neighbours in memory, and of neighbouring heads.
  int lanes_log2, block_tokens_log2;  // lanes of a row; tokens of a block
  Divisor head_blocks, token_blocks;
};

// What parts weigh in one row.
class RowWeights {
 public:
  __device__ RowWeights(const MergeParams& params, const float* lse_of_part) : params_(params), lse_(lse_of_part) {
#pragma unroll 4
    for (int part = 0; part < params.parts; ++part) top_ = fmaxf(top_, lse(part));
#pragma unroll 2
    for (int part = 0; part < params.parts; ++part) sum_ += unscaled(part);
    inverse_ = 1.0f / sum_;
  }

  // 0 where the part has seen no key, 1 where no other has. NaN where an lse of the row is NaN or infinity.
  __device__ float weight(int part) const {
    const float value = unscaled(part);
    return value == 0.0f ? 0.0f : value * inverse_;
  }
  __device__ bool nothing() const { return sum_ == 0.0f; }
  __device__ float log_sum() const { return nothing() ? -INFINITY : top_ + log2f(sum_) / params_.octaves; }

 private:
  __device__ float lse(int part) const { return __ldg(lse_ + part * params_.lses_part); }
  __device__ float unscaled(int part) const {
    const float value = lse(part);
    return value == -INFINITY ? 0.0f : ptx::exp2_float((value - top_) * params_.octaves);
  }

  const MergeParams& params_;
  const float* lse_;
  float top_ = -INFINITY, sum_ = 0.0f, inverse_;
};

__device__ std::uint32_t pair_of(float low, float high, DType dtype) {
  if (dtype == DType::kBF16) {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    return static_cast<std::uint32_t>(__bfloat16_as_ushort(pair.x)) |
           static_cast<std::uint32_t>(__bfloat16_as_ushort(pair.y)) << 16;
  }
  const __half2 pair = __floats2half2_rn(low, high);
  return static_cast<std::uint32_t>(__half_as_ushort(pair.x)) | static_cast<std::uint32_t>(__half_as_ushort(pair.y))
                                                                    << 16;
}

// Neighbours of a row that begins at a multiple of 16 bytes, from channel `first` on.
template <int kCount>
__device__ void store(const float (&values)[kCount], DType dtype, void* row, int first) {
  if (dtype == DType::kF32) {
    float* target = static_cast<float*>(row) + first;
    if constexpr (kCount == 1) {
      *target = values[0];
    } else {
#pragma unroll
      for (int i = 0; i < kCount; i += 4) {
        *reinterpret_cast<float4*>(target + i) = make_float4(values[i], values[i + 1], values[i + 2], values[i + 3]);
      }
    }
    return;
  }
  Vector<2, kCount> packed;
#pragma unroll
  for (int i = 0; i < kCount; i += 2) {
    packed.registers[i / 2] = pair_of(values[i], i + 1 < kCount ? values[i + 1] : 0.0f, dtype);
  }
  packed.store(static_cast<std::uint16_t*>(row) + first);
}

// kVectors vectors of kAtOnce parts of a row.
template <class Access>
struct PartsOfRow {
  typename Access::Values values[kAtOnce][kVectors];

  // Parts from `part` on and channels from `first` on, one vector `step` channels behind the other.
  __device__ void load(const MergeParams& params, const typename Access::Storage* row, int part, int first, int step) {
#pragma unroll
    for (int p = 0; p < kAtOnce; ++p) {
#pragma unroll
      for (int v = 0; v < kVectors; ++v) {
        const int channel = first + v * step;
        if (part + p < params.parts && channel < params.channels) {
          values[p][v].load_last(row + (part + p) * params.outs_part + channel);
        }
      }
    }
  }

  // A part without keys may hold anything, and is left out.
  __device__ void add(const MergeParams& params, const RowWeights& weights, int part,
                      float (&sum)[kVectors][Access::kCount]) const {
#pragma unroll
    for (int p = 0; p < kAtOnce; ++p) {
      const float weight = part + p < params.parts ? weights.weight(part + p) : 0.0f;
      if (weight == 0.0f) continue;
#pragma unroll
      for (int v = 0; v < kVectors; ++v) {
#pragma unroll
        for (int c = 0; c < Access::kCount; ++c) sum[v][c] = fmaf(weight, Access::real(values[p][v], c), sum[v][c]);
      }
    }
  }
};

template <class Access>
__global__ void __launch_bounds__(kThreads, kBlocksPerMultiprocessor)
    merge_kernel(const __grid_constant__ MergeParams params) {
  const int lane = threadIdx.x & ((1 << params.lanes_log2) - 1), row = threadIdx.x >> params.lanes_log2;
  const int blocks = static_cast<int>(blockIdx.x), over_heads = params.head_blocks.divide(blocks);
  const int batch = params.token_blocks.divide(over_heads);
  const int head_block = blocks - over_heads * params.head_blocks.divisor();
  const int token_block = over_heads - batch * params.token_blocks.divisor();
  const int token = (token_block << params.block_tokens_log2) + (row & ((1 << params.block_tokens_log2) - 1));
  const int block_heads = kThreads >> (params.lanes_log2 + params.block_tokens_log2);
  const int head = head_block * block_heads + (row >> params.block_tokens_log2);
  if (token >= params.tokens || head >= params.heads) return;

  const auto* source =
      static_cast<const typename Access::Storage*>(params.outs) + params.outs_row.offset(batch, token, head);
  const int step = Access::kCount << params.lanes_log2;
  // The first rows are on their way while the weights are worked out.
  PartsOfRow<Access> parts;
  parts.load(params, source, 0, lane * Access::kCount, step);
  const RowWeights weights(params, params.lses + params.lses_row.offset(batch, token, head));
  if (params.lse != nullptr && lane == 0) {
    params.lse[params.lse_row.offset(batch, token, head)] = weights.log_sum();
  }
  const std::int64_t element = params.out_dtype == DType::kF32 ? 4 : 2;
  auto* target = static_cast<std::uint8_t*>(params.out) + params.out_row.offset(batch, token, head) * element;
  for (int first = lane * Access::kCount; first < params.channels; first += kVectors * step) {
    float sum[kVectors][Access::kCount];
#pragma unroll
    for (auto& vector : sum) {
#pragma unroll
      for (float& value : vector) value = weights.nothing() ? 0.0f : -0.0f;  // -0 leaves the sign of a zero as it is
    }
#pragma unroll 1
    for (int part = 0; part < params.parts; part += kAtOnce) {
      if (part > 0 || first > step) parts.load(params, source, part, first, step);
      parts.add(params, weights, part, sum);
    }
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      const int channel = first + v * step;
      if (channel < params.channels) store(sum[v], params.out_dtype, target, channel);
    }
  }
}

// `batch`: the dim of the batches. Tokens and heads follow, or, of lses, heads and tokens.
RowStrides output_strides(const TensorView& view, int batch) {
  return {view.strides[batch], view.strides[batch + 1], view.strides[batch + 2]};
}
RowStrides lse_strides(const TensorView& view, int batch) {
  return {view.strides[batch], view.strides[batch + 2], view.strides[batch + 1]};
}

template <class Access>
void launch(MergeParams params, std::int64_t batches, Stream stream) {
  const auto vectors = static_cast<unsigned>(params.channels / Access::kCount);
  const unsigned lanes = std::min(32u, std::bit_ceil((vectors + kVectors - 1) / kVectors));
  const unsigned block_tokens = params.tokens < 8 ? 1 : 8;
  const int block_heads = static_cast<int>(kThreads / lanes / block_tokens);
  params.lanes_log2 = std::countr_zero(lanes);
  params.block_tokens_log2 = std::countr_zero(block_tokens);
  params.head_blocks = Divisor((params.heads + block_heads - 1) / block_heads);
  params.token_blocks = Divisor(static_cast<int>((params.tokens + block_tokens - 1) / block_tokens));
  cudaLaunchConfig_t config{};
  config.gridDim = static_cast<unsigned>(batches * params.token_blocks.divisor() * params.head_blocks.divisor());
  config.blockDim = kThreads;
  config.stream = stream;
  check(cudaLaunchKernelEx(&config, merge_kernel<Access>, params), "merge_attention", "cudaLaunchKernelEx");
}

}  // namespace

void merge_attention(const MergeAttentionProblem& problem, Stream stream) {
  const DeviceGuard guard(problem.out.device.index, "merge_attention");
  const auto& [outs, lses, out, lse, lse_base] = problem;
  MergeParams params{.outs = outs.data,
                     .lses = static_cast<const float*>(lses.data),
                     .outs_part = outs.strides[0],
                     .lses_part = lses.strides[0],
                     .outs_row = output_strides(outs, 1),
                     .lses_row = lse_strides(lses, 1),
                     .out_row = output_strides(out, 0),
                     .lse_row = lse ? lse_strides(*lse, 0) : RowStrides{},
                     .out = out.data,
                     .lse = lse ? static_cast<float*>(lse->data) : nullptr,
                     .out_dtype = out.dtype,
                     .octaves = lse_base == LseBase::k2 ? 1.0f : 1.44269504f,
                     .parts = static_cast<int>(outs.shape[0]),
                     .tokens = static_cast<int>(out.shape[1]),
                     .heads = static_cast<int>(out.shape[2]),
                     .channels = static_cast<int>(out.shape[3])};
  const bool vectors = params.channels * size_of(outs.dtype) % 16 == 0;
  with_access(outs.dtype, vectors, [&]<class Access>(Access) { launch<Access>(params, out.shape[0], stream); });
}

}  // namespace fp8attn::cuda
