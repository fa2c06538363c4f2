#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdint>
#include <cuda/ptx>
#include <stdexcept>
#include <string>

#include "cli/yardstick.h"
#include "cuda/sm90/ptx/half2.h"
#include "cuda/sm90/ptx/matrix.h"
#include "cuda/sm90/ptx/wgmma.h"
#include "cuda/sm90/ptx/wgmma_control.h"
#include "cuda/sm90/tile/shared_tile.h"

namespace fp8attn::cli {
namespace {

using cuda::SharedTile;
namespace ptx = cuda::ptx;

constexpr int kWarpgroups = 2, kThreads = 128 * kWarpgroups;
constexpr int kN = 256, kDepth = 128;  // one A tile of 64 x 128 a warpgroup, one B tile of 256 x 128
constexpr int kChainsPerLaunch = 4096;
using TileA = SharedTile<64, kDepth>;
using TileB = SharedTile<kN, kDepth>;
constexpr int kSharedBytes = kWarpgroups * TileA::kBytes + TileB::kBytes + 1024;

// A uniform random number in (0, 1).
__device__ float uniform(uint32_t index) {
  uint32_t x = index * 0x9E3779B9u + 0x7F4A7C15u;
  x = (x ^ (x >> 16)) * 0x85EBCA6Bu;
  x = (x ^ (x >> 13)) * 0xC2B2AE35u;
  return ((x ^ (x >> 16)) + 0.5f) * 0x1p-32f;
}

// Two normal random e4m3 codes (Box-Muller). Zeros would draw less power, hence run at a higher clock than attention
// ever does.
__device__ uint16_t random_codes(uint32_t index) {
  const float radius = sqrtf(-2.0f * logf(uniform(2 * index))), angle = 2.0f * uniform(2 * index + 1);
  return ptx::e4m3x2_from_half2(ptx::half2_from_floats(radius * cospif(angle), radius * sinpif(angle)));
}

__global__ void __launch_bounds__(kThreads, 1) yardstick_kernel(float* sink) {
  extern __shared__ uint8_t dynamic_shared[];
  const uint32_t base = (ptx::shared_address(dynamic_shared) + 1023) & ~1023u;
  uint8_t* data = dynamic_shared + (base - ptx::shared_address(dynamic_shared));
  for (int i = threadIdx.x; i < (kWarpgroups * TileA::kBytes + TileB::kBytes) / 2; i += kThreads) {
    reinterpret_cast<uint16_t*>(data)[i] = random_codes(i);
  }
  ::cuda::ptx::fence_proxy_async(::cuda::ptx::space_shared);
  __syncthreads();

  const uint32_t a = base + threadIdx.x / 128 * TileA::kBytes, b = base + kWarpgroups * TileA::kBytes;
  float accumulator[kN / 2];
#pragma unroll
  for (float& value : accumulator) value = 0.0f;
#pragma unroll 1
  for (int chain = 0; chain < kChainsPerLaunch; ++chain) {
    ptx::pin(accumulator);
    ptx::wgmma_fence();
#pragma unroll
    for (int k = 0; k < kDepth; k += 32) {
      ptx::wgmma_e4m3_f32_n256_ss_add(accumulator, TileA::k_major_descriptor(a, k), TileB::k_major_descriptor(b, k));
    }
    ptx::wgmma_commit();
    ptx::wgmma_wait<0>();
  }
  ptx::pin(accumulator);
  if (accumulator[0] == 1.0e30f) sink[threadIdx.x] = accumulator[0];  // never: keeps the products alive
}

void check(cudaError_t status, const char* call) {
  if (status == cudaSuccess) return;
  throw std::runtime_error(std::string("yardstick: ") + call + ": " + cudaGetErrorString(status));
}

}  // namespace

double measure_yardstick_tflops(int device, double warm_ms, double timed_ms) {
  int multiprocessors = 0;
  check(cudaSetDevice(device), "cudaSetDevice");
  check(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device), "cudaDeviceGetAttribute");
  check(cudaFuncSetAttribute(yardstick_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes),
        "cudaFuncSetAttribute");
  float* sink = nullptr;
  check(cudaMalloc(&sink, kThreads * sizeof(float)), "cudaMalloc");
  cudaEvent_t start, stop;
  check(cudaEventCreate(&start), "cudaEventCreate");
  check(cudaEventCreate(&stop), "cudaEventCreate");
  const auto time_launches = [&](int launches) {
    check(cudaEventRecord(start), "cudaEventRecord");
    for (int i = 0; i < launches; ++i) yardstick_kernel<<<multiprocessors, kThreads, kSharedBytes>>>(sink);
    check(cudaGetLastError(), "launch");
    check(cudaEventRecord(stop), "cudaEventRecord");
    check(cudaEventSynchronize(stop), "cudaEventSynchronize");
    float ms = 0.0f;
    check(cudaEventElapsedTime(&ms, start, stop), "cudaEventElapsedTime");
    return static_cast<double>(ms);
  };
  time_launches(1);
  const double one = time_launches(2) / 2;
  time_launches(std::max(1, static_cast<int>(warm_ms / one)));
  const int launches = std::max(1, static_cast<int>(timed_ms / one) + 1);
  const double ms = time_launches(launches);
  check(cudaEventDestroy(start), "cudaEventDestroy");
  check(cudaEventDestroy(stop), "cudaEventDestroy");
  check(cudaFree(sink), "cudaFree");
  const double flop = 2.0 * 64 * kN * kDepth * kWarpgroups * kChainsPerLaunch * multiprocessors * launches;
  return flop / (ms * 1e-3) * 1e-12;
}

}  // namespace fp8attn::cli
