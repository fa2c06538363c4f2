// Combines the partial results of split units.
#pragma once

#include <cstdint>

#include "cuda/sm90/mla_decode/params.h"
#include "cuda/sm90/mla_decode/softmax.h"
#include "cuda/sm90/mla_decode/store.h"
#include "cuda/sm90/ptx/copy.h"
#include "cuda/sm90/tile/split_combine.h"

namespace fp8attn::cuda {

template <class Traits>
struct MlaCombineWork {
  static constexpr int kCombineThreads = 256;
  const MlaParams& params;

  __device__ const SplitSchedule& schedule() const { return params.schedule; }
  __device__ const Split* splits() const { return params.splits; }
  __device__ int rows() const { return min(Traits::kTileM, params.rows); }
  __device__ bool has(int tile, int row) const { return tile * Traits::kTileM + row < params.rows; }
  __device__ static constexpr int channels() { return Traits::kLatent; }
  __device__ float log2_sum(int slot, int row) const {
    return params.partial_lse[static_cast<int64_t>(slot) * Traits::kTileM + row];
  }
  __device__ const float* partial(int slot, int row) const { return partial_row<Traits>(params, slot, row); }

  __device__ void store(int sequence, int tile, int local, int channel, const float4& value, float log2_sum) const {
    const int row = tile * Traits::kTileM + local;
    if (channel == 0) store_lse(params, sequence, row, log2_sum);
    const float factor = share_beside_sink(params, sequence, row, log2_sum);
    *reinterpret_cast<uint2*>(output_address(params, sequence, row, channel)) =
        make_uint2(pack_output(params.out_is_fp16, value.x * factor, value.y * factor),
                   pack_output(params.out_is_fp16, value.z * factor, value.w * factor));
  }
};

template <class Traits>
__global__ void __launch_bounds__(MlaCombineWork<Traits>::kCombineThreads)
    mla_combine_kernel(const __grid_constant__ MlaParams params) {
  __shared__ Split continuing[kMaxTeams];
  __shared__ int count;
  ptx::launch_dependents();
  ptx::wait_for_previous_grid();
  const MlaCombineWork<Traits> work{params};
  SplitCombine<MlaCombineWork<Traits>>(work).run(continuing, count);
}

}  // namespace fp8attn::cuda
