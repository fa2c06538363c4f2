// Attention of random q, k and v in 8 bits, and how far it is from exact attention.
#include <fp8attn/prefill.h>
#include <fp8attn/quantize.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <random>
#include <vector>

constexpr std::int64_t kBatch = 1, kTokens = 1024, kHeads = 8, kKvHeads = 2, kDim = 128;

// attention_gpu.cpp is its like on a Hopper GPU: fp8attn::default_device(), memory from cudaMalloc, bf16 for `out`, and
// a stream as the last argument of quantize() and prefill(). Only the CPU computes in double precision.
const fp8attn::Device kDevice{fp8attn::DeviceKind::kCpu};

// [batch, tokens, heads, dim]
struct Tensor {
  explicit Tensor(std::int64_t heads)
      : heads(heads), values(kBatch * kTokens * heads * kDim), codes(values.size()), scales(heads) {}
  auto real() { return view(values.data(), fp8attn::DType::kF32); }
  auto e4m3() { return view(codes.data(), fp8attn::DType::kE4M3); }
  auto scale() { return fp8attn::MutableTensorView::contiguous(scales.data(), fp8attn::DType::kF32, {heads}, kDevice); }

  std::int64_t heads;
  std::vector<float> values;
  std::vector<std::uint8_t> codes;  // values = codes * scales, one scale a head
  std::vector<float> scales;

 private:
  fp8attn::MutableTensorView view(void* data, fp8attn::DType dtype) const {
    return fp8attn::MutableTensorView::contiguous(data, dtype, {kBatch, kTokens, heads, kDim}, kDevice);
  }
};

int main() {
  Tensor q(kHeads), k(kKvHeads), v(kKvHeads), out(kHeads), exact(kHeads);
  std::mt19937 generator;
  std::normal_distribution<float> normal;
  for (Tensor* tensor : {&q, &k, &v}) {
    for (float& value : tensor->values) value = normal(generator);
    fp8attn::quantize({.input = tensor->real(), .output = tensor->e4m3(), .scale = tensor->scale()});
  }

  fp8attn::PrefillProblem problem;
  problem.q = q.e4m3();
  problem.k = k.e4m3();
  problem.v = v.e4m3();
  problem.q_scale = q.scale();
  problem.k_scale = k.scale();
  problem.v_scale = v.scale();
  problem.out = out.real();
  problem.causal = true;
  fp8attn::prefill(problem);  // throws fp8attn::Error, with what is wrong, where something is

  fp8attn::PrefillProblem reference;  // of the values before quantisation, in double precision, on the CPU
  reference.q = q.real();
  reference.k = k.real();
  reference.v = v.real();
  reference.out = exact.real();
  reference.causal = true;
  reference.cpu_arithmetic = fp8attn::CpuArithmetic::kFloat64;
  fp8attn::prefill(reference);

  double difference = 0, norm = 0;
  for (std::size_t i = 0; i < out.values.size(); ++i) {
    difference += std::pow(out.values[i] - exact.values[i], 2);
    norm += std::pow(exact.values[i], 2);
  }
  std::printf("relative L2 error of 8-bit attention: %.4f\n", std::sqrt(difference / norm));
}
