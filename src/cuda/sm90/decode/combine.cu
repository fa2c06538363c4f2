#include "cuda/launch/check.h"
#include "cuda/sm90/decode/combine.h"
#include "cuda/sm90/ptx/copy.h"
#include "cuda/sm90/tile/split_combine.h"

namespace fp8attn::cuda {
namespace {

struct DecodeCombineWork {
  static constexpr int kCombineThreads = 128;
  const DecodeParams& params;

  __device__ const SplitSchedule& schedule() const { return params.schedule; }
  __device__ const Split* splits() const { return params.splits; }
  __device__ int rows() const { return params.rows; }
  __device__ static constexpr bool has(int, int) { return true; }
  __device__ int channels() const { return params.call.head_dim_v; }
  __device__ float log2_sum(int slot, int row) const { return params.partial_log2_sum(slot, row); }
  __device__ const float* partial(int slot, int row) const { return params.partial_row(slot, row); }

  __device__ void store(int sequence, int kv_head, int index, int channel, const float4& value, float log2_sum) const {
    const DecodeParams::Row row = params.row(kv_head, index);
    if (channel == 0) store_lse(params, sequence, row, log2_sum);
    const float share = share_beside_sink(params, row.head, log2_sum);
    float four[4] = {value.x * share, value.y * share, value.z * share, value.w * share};
    store_output(params, sequence, kv_head, row, channel, four, log2_sum == -INFINITY);
  }
};

__global__ void __launch_bounds__(DecodeCombineWork::kCombineThreads)
    decode_combine_kernel(const __grid_constant__ DecodeParams params) {
  __shared__ Split continuing[kMaxTeams];
  __shared__ int count;
  ptx::launch_dependents();
  ptx::wait_for_previous_grid();
  const DecodeCombineWork work{params};
  SplitCombine<DecodeCombineWork>(work).run(continuing, count);
}

}  // namespace

void launch_decode_combine(const DecodeParams& params, int ctas, cudaStream_t stream) {
  cudaLaunchConfig_t config{};
  config.gridDim = ctas;
  config.blockDim = DecodeCombineWork::kCombineThreads;
  config.stream = stream;
  // Its CTAs are there when the last of the first kernel's leave.
  cudaLaunchAttribute early{};
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  config.attrs = &early;
  config.numAttrs = 1;
  check(cudaLaunchKernelEx(&config, decode_combine_kernel, params), "prefill", "cudaLaunchKernelEx");
}

}  // namespace fp8attn::cuda
