// A prompt that arrives in chunks: each attends to a paged cache of 8-bit keys and values, itself included. How far
// that is from exact attention of the whole prompt.
#include <fp8attn/e4m3.h>
#include <fp8attn/prefill.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <random>
#include <vector>

using fp8attn::DType, fp8attn::MutableTensorView, fp8attn::TensorView;

constexpr std::int64_t kTokens = 1000, kChunk = 256, kHeads = 8, kKvHeads = 2, kDim = 128;
constexpr std::int64_t kPageSize = 16, kPages = 64;

// Random numbers that bf16 represents.
std::vector<float> random_values(std::int64_t count) {
  static std::mt19937 generator;
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (float& value : values)
    value = std::bit_cast<float>(std::bit_cast<std::uint32_t>(normal(generator)) & 0xFFFF0000u);
  return values;
}

// Attention of the whole prompt in double precision.
std::vector<float> exact_attention(const std::vector<float>& q, const std::vector<float>& k,
                                   const std::vector<float>& v) {
  std::vector<float> out(q.size());
  fp8attn::PrefillProblem problem;
  problem.q = TensorView::contiguous(q.data(), DType::kF32, {1, kTokens, kHeads, kDim});
  problem.k = TensorView::contiguous(k.data(), DType::kF32, {1, kTokens, kKvHeads, kDim});
  problem.v = TensorView::contiguous(v.data(), DType::kF32, {1, kTokens, kKvHeads, kDim});
  problem.out = MutableTensorView::contiguous(out.data(), DType::kF32, {1, kTokens, kHeads, kDim});
  problem.causal = true;
  problem.cpu_arithmetic = fp8attn::CpuArithmetic::kFloat64;
  fp8attn::prefill(problem);
  return out;
}

int main() {
  const std::vector<float> q = random_values(kTokens * kHeads * kDim);
  const std::vector<float> k = random_values(kTokens * kKvHeads * kDim), v = random_values(k.size());
  std::vector<std::uint16_t> q_bf16(q.size());  // the upper halves of floats
  std::ranges::transform(q, q_bf16.begin(), [](float value) { return std::bit_cast<std::uint32_t>(value) >> 16; });
  std::vector<float> out(q.size());

  std::vector<std::uint8_t> key_pages(kPages * kPageSize * kKvHeads * kDim), value_pages(key_pages.size());
  std::vector<std::int32_t> block_table(kPages), length(1);
  for (std::int32_t i = 0; i < kPages; ++i) block_table[i] = i * 37 % kPages;  // pages in any order

  fp8attn::PrefillProblem problem;
  problem.k = TensorView::contiguous(key_pages.data(), DType::kE4M3, {kPages, kPageSize, kKvHeads, kDim});
  problem.v = TensorView::contiguous(value_pages.data(), DType::kE4M3, {kPages, kPageSize, kKvHeads, kDim});
  problem.block_table = TensorView::contiguous(block_table.data(), DType::kI32, {1, kPages});
  problem.kv_lengths = TensorView::contiguous(length.data(), DType::kI32, {1});
  problem.causal = true;  // the last query of a chunk sees every token so far
  for (std::int64_t begin = 0; begin < kTokens; begin += kChunk) {
    const std::int64_t count = std::min(kChunk, kTokens - begin), row = kKvHeads * kDim;
    for (std::int64_t token = begin; token < begin + count; ++token) {
      const std::int64_t slot = block_table[token / kPageSize] * kPageSize + token % kPageSize;
      for (std::int64_t i = 0; i < row; ++i) {
        key_pages[slot * row + i] = fp8attn::e4m3_from_float(k[token * row + i]);
        value_pages[slot * row + i] = fp8attn::e4m3_from_float(v[token * row + i]);
      }
    }
    length[0] = static_cast<std::int32_t>(begin + count);
    const std::int64_t first = begin * kHeads * kDim;
    problem.q = TensorView::contiguous(&q_bf16[first], DType::kBF16, {1, count, kHeads, kDim});
    problem.out = MutableTensorView::contiguous(&out[first], DType::kF32, {1, count, kHeads, kDim});
    fp8attn::prefill(problem);  // throws fp8attn::Error, with what is wrong, where something is
  }

  const std::vector<float> exact = exact_attention(q, k, v);
  double difference = 0, norm = 0;
  for (std::size_t i = 0; i < out.size(); ++i) {
    difference += std::pow(out[i] - exact[i], 2);
    norm += std::pow(exact[i], 2);
  }
  std::printf("relative L2 error of 8-bit attention: %.4f\n", std::sqrt(difference / norm));
}
