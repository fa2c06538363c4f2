// Host side of the prefill kernel: tensor maps, arguments, grid.
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdint>

#include "cuda/launch/check.h"
#include "cuda/launch/device.h"
#include "cuda/launch/tensor_map.h"
#include "cuda/sm90/prefill/arguments.h"
#include "cuda/sm90/prefill/kernel.h"
#include "cuda/sm90/prefill/prepared.h"
#include "fp8attn/prefill.h"

namespace fp8attn::cuda {

template <class Traits>
PrefillMaps tensor_maps(const PrefillProblem& problem, const PrefillParams& params) {
  constexpr std::uint32_t kQueryChunk = Traits::QueryTile::kChunkBytes / Traits::Element::kBytes;
  constexpr std::uint32_t kKeyChunk = Traits::KeyTile::kChunkBytes / Traits::Element::kBytes;
  constexpr std::uint32_t kValueChunk = Traits::ValueTile::kChunkBytes / Traits::Element::kBytes;
  PrefillMaps maps;
  maps.query = make_tensor_map(with_entries(problem.q), {kQueryChunk, 1, Traits::kWarpgroupM, 1}, "q");
  maps.out = maps.query;  // not used where output is not 16 bits
  if (is_16bit(problem.out.dtype)) {
    maps.out = make_tensor_map(with_entries(problem.out),
                               {Traits::OutTile::kChunkBytes / 2, 1, Traits::OutTile::kRows, 1}, "out");
  }
  const auto rows = static_cast<std::uint32_t>(params.box_blocks * Traits::kBlockN);
  maps.key = make_tensor_map(loadable(problem.k, problem), {kKeyChunk, 1, rows, 1}, "k");
  if constexpr (Traits::kIsE4M3) {
    maps.value = make_tensor_map(loadable(problem.v, problem), {kValueChunk, Traits::kHeadDimV, 1, 1}, "v");
  } else {
    maps.value = make_tensor_map(loadable(problem.v, problem), {kValueChunk, 1, rows, 1}, "v");
  }
  return maps;
}

// Whether the kernel without code for the rest will do.
inline bool is_plain(const PrefillProblem& problem, const PrefillParams& params) {
  return !params.batch.uneven() && params.keys == Placement::kEntries && params.values == Placement::kEntries &&
         params.window_left < 0 && params.softcap_factor == 0.0f && params.sink.data == nullptr &&
         is_16bit(problem.out.dtype);
}

template <class Traits>
void launch_kernel(const PrefillProblem& problem, PrefillParams& params, Stream stream) {
  const int heads = static_cast<int>(problem.q.shape[problem.q.rank - 2]), sequences = params.batch.sequences;
  const int query_tiles = (params.batch.query_capacity + Traits::kTileM - 1) / Traits::kTileM;
  const std::int64_t pairs = std::int64_t{sequences} * heads;
  const bool listed = params.list.entries != nullptr;
  const std::int64_t tiles = listed ? std::int64_t{params.list.capacity} * heads : query_tiles * pairs;
  const int grid = static_cast<int>(std::min<std::int64_t>(tiles, multiprocessor_count(problem.q.device.index)));
  if (!listed) params.order = TileOrder(query_tiles, heads, static_cast<int>(pairs), problem.causal, grid);

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
  check(cudaLaunchKernelEx(&config, kernel, tensor_maps<Traits>(problem, params), params), "prefill",
        "cudaLaunchKernelEx");
}

template <class Traits>
void launch_prefill(const PrefillProblem& problem, const PreparedBatch& prepared, Stream stream) {
  if (problem.out.count() == 0) return;
  const DeviceGuard guard(problem.q.device.index, "prefill");

  PrefillParams params{};
  set_batch(params, problem, prepared);
  const bool long_pages = params.batch.page_size % (Traits::kShortStep * Traits::kBlockN) == 0;
  params.box_blocks = params.keys != Placement::kPages || long_pages ? Traits::kShortStep : 1;
  set_tensors(params, problem);
  params.list = prepared.tiles;
  const int heads = static_cast<int>(problem.q.shape[problem.q.rank - 2]);
  params.queries_per_kv = Divisor(heads / static_cast<int>(problem.k.shape[problem.k.rank - 2]));
  if (is_plain(problem, params)) {
    launch_kernel<typename Traits::Plain>(problem, params, stream);
  } else {
    launch_kernel<Traits>(problem, params, stream);
  }
}

}  // namespace fp8attn::cuda
