// Host side of the prefill kernel: tensor maps, arguments, grid.
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "cuda/launch/check.h"
#include "cuda/launch/device.h"
#include "cuda/launch/tensor_map.h"
#include "cuda/sm90/prefill/kernel.h"
#include "cuda/sm90/prefill/prepared.h"
#include "fp8attn/prefill.h"

namespace fp8attn::cuda {

// The strides of a scale of q or k ([], [1], [h], [b, h], [b, s, h]) or of v ([], [1], [h], [b, h], [b, h, d]), and of
// what is added to out or lse (three dims, the head in the middle).
inline ScaleView scale_view(const std::optional<TensorView>& scale, bool inner_is_last) {
  if (!scale) return {};
  ScaleView view{.data = static_cast<const float*>(scale->data)};
  const auto stride = [&](int dim) { return scale->shape[dim] == 1 ? 0 : scale->strides[dim]; };
  switch (scale->rank) {
    case 1: view.head_stride = stride(0); break;
    case 2:
      view.batch_stride = stride(0);
      view.head_stride = stride(1);
      break;
    case 3:
      view.batch_stride = stride(0);
      view.head_stride = stride(inner_is_last ? 1 : 2);
      view.inner_stride = stride(inner_is_last ? 2 : 1);
      break;
    default: break;
  }
  return view;
}

template <class Traits>
PrefillMaps tensor_maps(const PrefillProblem& problem) {
  constexpr std::uint32_t kQueryChunk = Traits::QueryTile::kChunkBytes / Traits::Element::kBytes;
  constexpr std::uint32_t kKeyChunk = Traits::KeyTile::kChunkBytes / Traits::Element::kBytes;
  constexpr std::uint32_t kValueChunk = Traits::ValueTile::kChunkBytes / Traits::Element::kBytes;
  PrefillMaps maps;
  maps.query = make_tensor_map(problem.q, {kQueryChunk, 1, Traits::kWarpgroupM, 1}, "q");
  maps.out = make_tensor_map(problem.out, {Traits::OutTile::kChunkBytes / 2, 1, Traits::kWarpgroupM, 1}, "out");
  if (problem.k.shape[1] == 0) {  // no key: the maps of k and v are never used, and a map cannot be empty
    maps.key = maps.value = maps.query;
    return maps;
  }
  maps.key = make_tensor_map(problem.k, {kKeyChunk, 1, Traits::kBlockN, 1}, "k");
  if constexpr (Traits::kIsE4M3) {
    maps.value = make_tensor_map(problem.v, {kValueChunk, Traits::kHeadDimV, 1, 1}, "v");
  } else {
    maps.value = make_tensor_map(problem.v, {kValueChunk, 1, Traits::kBlockN, 1}, "v");
  }
  return maps;
}

template <class Traits>
void launch_prefill(const PrefillProblem& problem, const PreparedBatch& prepared, Stream stream) {
  if (problem.out.count() == 0) return;
  const int device = problem.q.device.index;
  const DeviceGuard guard(device, "prefill");

  PrefillParams params{};
  params.mask = {static_cast<int>(problem.q.shape[1]), static_cast<int>(problem.k.shape[1]), problem.causal};
  const std::int64_t query_tiles = (problem.q.shape[1] + Traits::kTileM - 1) / Traits::kTileM;
  const std::int64_t pairs = problem.q.shape[0] * problem.q.shape[2];
  const int grid = static_cast<int>(std::min<std::int64_t>(query_tiles * pairs, multiprocessor_count(device)));
  params.order = TileOrder(static_cast<int>(query_tiles), static_cast<int>(problem.q.shape[2]), static_cast<int>(pairs),
                           problem.causal, grid);
  params.queries_per_kv = Divisor(static_cast<int>(problem.q.shape[2] / problem.k.shape[2]));
  const double softmax_scale =
      problem.softmax_scale ? double{*problem.softmax_scale} : 1.0 / std::sqrt(double(Traits::kHeadDimQk));
  constexpr double kLargest = std::numeric_limits<float>::max();
  params.softmax_scale_log2 = static_cast<float>(std::clamp(softmax_scale * 1.4426950408889634, -kLargest, kLargest));
  params.q_scale = scale_view(problem.q_scale, false);
  params.k_scale = scale_view(problem.k_scale, false);
  params.v_scale = scale_view(problem.v_scale, true);
  params.v_mean = scale_view(problem.v_mean, true);
  params.lse_bias = scale_view(problem.lse_bias, true);
  if (problem.lse) {
    params.lse = static_cast<float*>(problem.lse->data);
    params.lse_batch_stride = problem.lse->strides[0];
    params.lse_head_stride = problem.lse->strides[1];
    params.lse_row_stride = problem.lse->strides[2];
  }
  params.out_is_fp16 = problem.out.dtype == DType::kFP16;

  const auto kernel = prefill_kernel<Traits>;
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             static_cast<int>(sizeof(typename Traits::Shared))),
        "prefill", "cudaFuncSetAttribute");
  // Not <<<>>>: its error would have to be fetched with cudaGetLastError, which may hold somebody else's.
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = Traits::kThreads;
  config.dynamicSmemBytes = sizeof(typename Traits::Shared);
  config.stream = stream;
  // The prologue runs while the kernel before is still at work; the kernel itself waits for its results (initialise()).
  cudaLaunchAttribute overlap{};
  overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  overlap.val.programmaticStreamSerializationAllowed = 1;
  config.attrs = &overlap;
  config.numAttrs = 1;
  check(cudaLaunchKernelEx(&config, kernel, tensor_maps<Traits>(problem), params), "prefill", "cudaLaunchKernelEx");
}

}  // namespace fp8attn::cuda
