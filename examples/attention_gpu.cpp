// 8-bit attention on a Hopper GPU of bf16 tensors in memory and on a stream of the caller's, and how far it is from
// exact attention, which the CPU computes.
#include <cuda_runtime_api.h>
#include <fp8attn/prefill.h>
#include <fp8attn/quantize.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <random>
#include <stdexcept>
#include <vector>

using fp8attn::DType;
using View = fp8attn::MutableTensorView;

constexpr std::int64_t kBatch = 1, kTokens = 1024, kHeads = 8, kKvHeads = 2, kDim = 128;

void check(cudaError_t status) {
  if (status != cudaSuccess) throw std::runtime_error(cudaGetErrorString(status));
}

class GpuMemory {
 public:
  explicit GpuMemory(std::size_t bytes) { check(cudaMalloc(&data_, bytes)); }
  ~GpuMemory() { cudaFree(data_); }
  GpuMemory(const GpuMemory&) = delete;
  GpuMemory& operator=(const GpuMemory&) = delete;
  void* data() const { return data_; }

 private:
  void* data_ = nullptr;
};

float from_bf16(std::uint16_t bits) { return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16); }
std::uint16_t to_bf16(float value) { return static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(value) >> 16); }

std::vector<std::uint16_t> random_bf16(std::int64_t heads) {
  static std::mt19937 generator;
  std::normal_distribution<float> normal;
  std::vector<std::uint16_t> values(kBatch * kTokens * heads * kDim);
  for (std::uint16_t& value : values) value = to_bf16(normal(generator));
  return values;
}

// A bf16 tensor of the host, on the GPU in 8 bits: real = stored * scale, one scale a head.
struct Quantised {
  Quantised(const std::vector<std::uint16_t>& host, std::int64_t heads, fp8attn::VLayout layout, fp8attn::Device device,
            cudaStream_t stream)
      : input(host.size() * sizeof host[0]), codes(host.size()), scales(heads * sizeof(float)) {
    const bool packed = layout == fp8attn::VLayout::kPacked;
    stored = packed ? View::contiguous(codes.data(), DType::kE4M3,
                                       {kBatch, heads, kDim, fp8attn::packed_length(kTokens)}, device)
                    : View::contiguous(codes.data(), DType::kE4M3, {kBatch, kTokens, heads, kDim}, device);
    scale = View::contiguous(scales.data(), DType::kF32, {heads}, device);
    check(cudaMemcpyAsync(input.data(), host.data(), host.size() * sizeof host[0], cudaMemcpyHostToDevice, stream));
    const View bf16 = View::contiguous(input.data(), DType::kBF16, {kBatch, kTokens, heads, kDim}, device);
    fp8attn::quantize({.input = bf16, .output = stored, .scale = scale, .layout = layout}, {}, stream);
  }

  GpuMemory input, codes, scales;  // kTokens is a multiple of 16, so a packed v is no longer than v
  View stored, scale;
};

// Exact attention of the bf16 tensors, in double precision.
std::vector<float> exact_attention(std::vector<std::uint16_t>& q, std::vector<std::uint16_t>& k,
                                   std::vector<std::uint16_t>& v) {
  std::vector<float> out(q.size());
  const fp8attn::Device cpu{fp8attn::DeviceKind::kCpu};
  fp8attn::PrefillProblem problem;
  problem.q = View::contiguous(q.data(), DType::kBF16, {kBatch, kTokens, kHeads, kDim}, cpu);
  problem.k = View::contiguous(k.data(), DType::kBF16, {kBatch, kTokens, kKvHeads, kDim}, cpu);
  problem.v = View::contiguous(v.data(), DType::kBF16, {kBatch, kTokens, kKvHeads, kDim}, cpu);
  problem.out = View::contiguous(out.data(), DType::kF32, {kBatch, kTokens, kHeads, kDim}, cpu);
  problem.causal = true;
  problem.cpu_arithmetic = fp8attn::CpuArithmetic::kFloat64;
  fp8attn::prefill(problem);
  return out;
}

int main() {
  const fp8attn::Device device = fp8attn::default_device();
  if (device.kind != fp8attn::DeviceKind::kCuda) {
    std::puts("no usable GPU (fp8attn info says why)");
    return 77;
  }
  check(cudaSetDevice(device.index));
  cudaStream_t stream = nullptr;
  check(cudaStreamCreate(&stream));

  std::vector<std::uint16_t> host_q = random_bf16(kHeads), host_k = random_bf16(kKvHeads),
                             host_v = random_bf16(kKvHeads);
  const Quantised q(host_q, kHeads, fp8attn::VLayout::kRowMajor, device, stream);
  const Quantised k(host_k, kKvHeads, fp8attn::VLayout::kRowMajor, device, stream);
  const Quantised v(host_v, kKvHeads, fp8attn::VLayout::kPacked, device, stream);
  std::vector<std::uint16_t> out(host_q.size());
  const GpuMemory gpu_out(out.size() * sizeof out[0]);

  fp8attn::PrefillProblem problem;
  problem.q = q.stored;
  problem.k = k.stored;
  problem.v = v.stored;
  problem.q_scale = q.scale;
  problem.k_scale = k.scale;
  problem.v_scale = v.scale;
  problem.out = View::contiguous(gpu_out.data(), DType::kBF16, {kBatch, kTokens, kHeads, kDim}, device);
  problem.v_layout = fp8attn::VLayout::kPacked;
  problem.causal = true;
  const std::size_t workspace_bytes = fp8attn::workspace_size(problem);
  const GpuMemory workspace(workspace_bytes);
  fp8attn::prefill(problem, {workspace.data(), workspace_bytes}, stream);
  check(cudaMemcpyAsync(out.data(), gpu_out.data(), out.size() * sizeof out[0], cudaMemcpyDeviceToHost, stream));
  check(cudaStreamSynchronize(stream));
  check(cudaStreamDestroy(stream));

  const std::vector<float> exact = exact_attention(host_q, host_k, host_v);
  double difference = 0, norm = 0;
  for (std::size_t i = 0; i < out.size(); ++i) {
    difference += std::pow(from_bf16(out[i]) - exact[i], 2);
    norm += std::pow(exact[i], 2);
  }
  std::printf("relative L2 error of 8-bit attention: %.4f\n", std::sqrt(difference / norm));
}
