// Host side of the MLA decode kernels: tensor maps, arguments, workspace, launches.
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "cuda/launch/check.h"
#include "cuda/launch/device.h"
#include "cuda/launch/tensor_map.h"
#include "cuda/sm90/mla_decode/combine.h"
#include "cuda/sm90/mla_decode/kernel.h"
#include "cuda/sm90/mla_decode/workspace.h"
#include "cuda/sm90/prefill/prepared.h"
#include "fp8attn/mla_decode.h"

namespace fp8attn::cuda {

template <class Traits>
struct MlaHost {
  static bool sparse(const MlaDecodeProblem& problem) { return problem.indices.has_value(); }
  // Of a sequence: pairs of a query token and a head. With indices each query token is a sequence.
  static int rows(const MlaDecodeProblem& problem) {
    return static_cast<int>((sparse(problem) ? 1 : problem.q.shape[1]) * problem.q.shape[2]);
  }

  // Tokens of a TMA box: a page or 64, where that fits the swizzle and the block. 0: threads gather the tokens.
  static int box_rows(const MlaDecodeProblem& problem) {
    const TensorView& cache = problem.cache;
    const std::int64_t page_size = cache.shape[1];
    if (sparse(problem) || cache.shape[0] == 0 || cache.strides[0] == 0 || cache.strides[1] == 0) return 0;
    if (page_size % 64 == 0) return 64;
    return page_size == 8 || page_size == 16 || page_size == 32 ? static_cast<int>(page_size) : 0;
  }

  static MlaMaps tensor_maps(const MlaDecodeProblem& problem) {
    const TensorView& cache = problem.cache;
    const auto rows = static_cast<std::uint32_t>(box_rows(problem));
    const std::int64_t element = size_of(cache.dtype);
    // The part of every record from byte `offset`, `bytes` long.
    const auto map = [&](int offset, int bytes, int chunk) {
      TensorView part = cache;
      part.data = static_cast<const std::uint8_t*>(cache.data) + offset;
      part.rank = 4;
      part.shape = {1, cache.shape[0], cache.shape[1], bytes / element};
      part.strides = {0, cache.strides[0], cache.strides[1], 1};
      return make_tensor_map(part, {static_cast<std::uint32_t>(chunk / element), rows, 1, 1}, "cache", "mla_decode");
    };
    MlaMaps maps;
    maps.latent = map(0, Traits::kLatentBytes, Traits::LatentTile::kChunkBytes);
    maps.rope = map(Traits::kLatentBytes + Traits::kScaleBytes, Traits::kRopeBytes, Traits::RopeTile::kChunkBytes);
    maps.scale = Traits::kTokenScales ? map(Traits::kLatentBytes, Traits::kScaleBytes, Traits::kScaleBytes) : maps.rope;
    return maps;
  }

  static MlaParams parameters(const MlaDecodeProblem& problem, const MlaSchedule& schedule, Workspace workspace) {
    const TensorView &q = problem.q, &cache = problem.cache;
    MlaParams params{};
    params.query = static_cast<const std::uint8_t*>(q.data);
    for (int i = 0; i < 3; ++i) params.query_strides[i] = q.strides[i] * size_of(q.dtype);
    params.query_is_e4m3 = q.dtype == DType::kE4M3;
    params.query_scale = query_scale(problem.q_scale);
    if (problem.cache_scale) params.cache_scale = static_cast<const float*>(problem.cache_scale->data);
    const double scale = problem.softmax_scale ? double{*problem.softmax_scale} : 1.0 / std::sqrt(double(kMlaDim));
    constexpr double kLargest = std::numeric_limits<float>::max();
    params.softmax_scale_log2 = static_cast<float>(std::clamp(scale * 1.4426950408889634, -kLargest, kLargest));

    params.cache = static_cast<const std::uint8_t*>(cache.data);
    params.page_stride = cache.strides[0] * size_of(cache.dtype);
    params.record_stride = cache.strides[1] * size_of(cache.dtype);
    params.pages = static_cast<int>(cache.shape[0]);
    params.page_size = Divisor(static_cast<int>(cache.shape[1]));
    params.sparse = sparse(problem);
    params.box_rows = box_rows(problem);
    params.causal = problem.causal;
    params.queries = params.sparse ? 1 : static_cast<int>(q.shape[1]);
    params.heads = Divisor(static_cast<int>(q.shape[2]));
    params.sequence_tokens = Divisor(params.sparse ? static_cast<int>(q.shape[1]) : 1);
    params.rows = rows(problem);
    params.tokens = index_view(params.sparse ? *problem.indices : *problem.block_table);
    const std::optional<TensorView>& lengths = params.sparse ? problem.topk_length : problem.lengths;
    if (lengths) params.lengths = index_view(*lengths);
    const std::int64_t capacity =
        params.sparse ? problem.indices->shape[2] : problem.block_table->shape[1] * cache.shape[1];
    params.max_length = static_cast<int>(std::min<std::int64_t>(capacity, std::numeric_limits<int>::max() - 64));

    params.schedule = schedule;
    params.out = problem.out.data;
    for (int i = 0; i < 3; ++i) params.out_strides[i] = problem.out.strides[i];
    params.out_is_fp16 = problem.out.dtype == DType::kFP16;
    if (problem.lse) {
      params.lse = static_cast<float*>(problem.lse->data);
      for (int i = 0; i < 3; ++i) params.lse_strides[i] = problem.lse->strides[i];
    }
    if (problem.attention_sink) {
      params.sink = static_cast<const float*>(problem.attention_sink->data);
      params.sink_stride = problem.attention_sink->strides[0];
    }
    const MlaWorkspaceLayout layout(schedule);
    auto* base = static_cast<std::uint8_t*>(workspace.data);
    params.splits = reinterpret_cast<MlaSplit*>(base + layout.splits);
    params.partial_lse = reinterpret_cast<float*>(base + layout.partial_lse);
    params.partial_out = reinterpret_cast<float*>(base + layout.partial_out);
    return params;
  }

  // The strides of a scale [], [h], [b, h] or [b, s, h].
  static ScaleView query_scale(const std::optional<TensorView>& scale) {
    if (!scale) return {};
    ScaleView view{.data = static_cast<const float*>(scale->data)};
    const auto stride = [&](int dim) { return scale->shape[dim] == 1 ? 0 : scale->strides[dim]; };
    if (scale->rank >= 1) view.head_stride = stride(scale->rank - 1);
    if (scale->rank >= 2) view.batch_stride = stride(0);
    if (scale->rank == 3) view.inner_stride = stride(1);
    return view;
  }

  using Combined = MlaTraits<Traits::kFormat>;  // the parts of all kernels of a format are alike

  static void launch(const MlaDecodeProblem& problem, Workspace workspace, Stream stream) {
    if (problem.out.count() == 0) return;
    constexpr const char* kOperation = "mla_decode";
    const int device = problem.q.device.index;
    const DeviceGuard guard(device, kOperation);
    const int multiprocessors = multiprocessor_count(device);
    const MlaSchedule plan = make_mla_schedule(problem, multiprocessors);
    const MlaParams params = parameters(problem, plan, workspace);
    const MlaMaps maps = params.box_rows > 0 ? tensor_maps(problem) : MlaMaps{};

    const auto kernel = mla_decode_kernel<Traits>;
    check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, Traits::kSharedBytes), kOperation,
          "cudaFuncSetAttribute");
    cudaLaunchConfig_t config{};
    config.gridDim = dim3(plan.team_size, plan.teams);
    config.blockDim = Traits::kThreads;
    config.dynamicSmemBytes = Traits::kSharedBytes;
    config.stream = stream;
    // The CTAs of a kernel are there when the last of the kernel's before leave.
    cudaLaunchAttribute early{};
    early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    early.val.programmaticStreamSerializationAllowed = 1;
    config.attrs = &early;
    config.numAttrs = 1;
    check(cudaLaunchKernelEx(&config, kernel, maps, params), kOperation, "cudaLaunchKernelEx");

    config.gridDim = multiprocessors;
    config.blockDim = MlaCombineWork<Combined>::kCombineThreads;
    config.dynamicSmemBytes = 0;
    check(cudaLaunchKernelEx(&config, mla_combine_kernel<Combined>, params), kOperation, "cudaLaunchKernelEx");
  }
};

}  // namespace fp8attn::cuda
