// Host side of the decode kernels: tensor maps, arguments, workspace, launches.
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdint>

#include "cuda/launch/check.h"
#include "cuda/launch/device.h"
#include "cuda/launch/tensor_map.h"
#include "cuda/sm90/decode/combine.h"
#include "cuda/sm90/decode/kernel.h"
#include "cuda/sm90/decode/workspace.h"
#include "cuda/sm90/prefill/arguments.h"
#include "cuda/sm90/prefill/prepared.h"
#include "fp8attn/prefill.h"

namespace fp8attn::cuda {

// Of a view [b, s, h, d] or [pages, page_size, h, d].
inline BytesView bytes_view(const TensorView& view) {
  const std::int64_t element = size_of(view.dtype);
  return {static_cast<const std::uint8_t*>(view.data), view.strides[0] * element, view.strides[1] * element,
          view.strides[2] * element};
}

// Whether TMA copies tokens out of pages of this size: a block of 64 or 32 tokens is whole boxes of whole rows of the
// swizzle then.
constexpr bool loads_boxes(int page_size) {
  return page_size % 64 == 0 || page_size == 32 || page_size == 16 || page_size == 8;
}

template <class Traits>
DecodeMaps decode_maps(const PrefillProblem& problem, int box_rows) {
  const auto map = [&](const TensorView& view, int chunk_bytes, const char* name) {
    const auto channels = static_cast<std::uint32_t>(chunk_bytes / Traits::Element::kBytes);
    return make_tensor_map(loadable(view, problem), {channels, 1, static_cast<std::uint32_t>(box_rows), 1}, name);
  };
  return {.key = map(problem.k, Traits::KeyTile::kChunkBytes, "k"),
          .value = map(problem.v, Traits::ValueTile::kChunkBytes, "v")};
}

template <class Traits>
DecodeParams decode_params(const PrefillProblem& problem, const SplitSchedule& schedule, Workspace workspace) {
  const PrefillBatch batch = batch_of(problem);
  DecodeParams params{};
  set_batch(params.call, problem, {.batch = batch_view(problem)});
  set_tensors(params.call, problem);
  params.call.queries_per_kv = Divisor(static_cast<int>(batch.h_q / batch.h_kv));
  params.query = bytes_view(problem.q);
  params.query_dtype = problem.q.dtype;
  params.key = bytes_view(problem.k);
  params.value = bytes_view(problem.v);
  params.head_dim_qk = static_cast<int>(batch.d_qk);
  params.queries = static_cast<int>(batch.query_capacity);
  params.rows = static_cast<int>(batch.query_capacity * batch.h_q / batch.h_kv);
  params.row_tiles = params.rows <= kRowTile ? 1 : params.rows <= 2 * kRowTile ? 2 : 4;
  params.block_shift = Traits::kBlockTokens == 64 ? 6 : 5;
  params.gathers = params.call.batch.paged() && !loads_boxes(params.call.batch.page_size);
  const int page_size = params.call.batch.page_size;
  params.box_rows = params.call.batch.paged() ? std::min(page_size, Traits::kBlockTokens) : Traits::kBlockTokens;
  params.schedule = schedule;
  const DecodeWorkspaceLayout layout(problem, schedule);
  auto* base = static_cast<std::uint8_t*>(workspace.data);
  params.splits = reinterpret_cast<Split*>(base + layout.splits);
  params.partial_lse = reinterpret_cast<float*>(base + layout.partial_lse);
  params.partial_out = reinterpret_cast<float*>(base + layout.partial_out);
  return params;
}

template <class Traits>
void launch_decode(const PrefillProblem& problem, Workspace workspace, Stream stream) {
  if (problem.out.count() == 0) return;
  const int device = problem.q.device.index;
  const DeviceGuard guard(device, "prefill");
  const int multiprocessors = multiprocessor_count(device);
  const SplitSchedule schedule = make_decode_schedule(problem, multiprocessors);
  const DecodeParams params = decode_params<Traits>(problem, schedule, workspace);
  const DecodeMaps maps = params.gathers ? DecodeMaps{} : decode_maps<Traits>(problem, params.box_rows);

  const auto kernel = decode_kernel<Traits>;
  constexpr int kSharedBytes = sizeof(typename Traits::Shared);
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes), "prefill",
        "cudaFuncSetAttribute");
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(schedule.team_size, schedule.teams);
  config.blockDim = Traits::kThreads;
  config.dynamicSmemBytes = kSharedBytes;
  config.stream = stream;
  // The prologue runs while the kernel before is still at work; the kernel itself waits for its results.
  cudaLaunchAttribute overlap{};
  overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  overlap.val.programmaticStreamSerializationAllowed = 1;
  config.attrs = &overlap;
  config.numAttrs = 1;
  check(cudaLaunchKernelEx(&config, kernel, maps, params), "prefill", "cudaLaunchKernelEx");
  launch_decode_combine(params, multiprocessors, stream);
}

}  // namespace fp8attn::cuda
