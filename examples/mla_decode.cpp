// One decoding step of multi-head latent attention on a paged cache of 8-bit records, and how far it is from the same
// on a cache in bf16.
#include <fp8attn/kv_cache.h>
#include <fp8attn/mla_decode.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <numeric>
#include <random>
#include <vector>

using fp8attn::CacheFormat, fp8attn::DType, fp8attn::MutableTensorView, fp8attn::TensorView;
using fp8attn::kLatentDim, fp8attn::kMlaDim, fp8attn::kRopeDim;

constexpr std::int64_t kTokens = 1000, kPageSize = 64, kPages = 16, kHeads = 16;

// On a Hopper GPU: fp8attn::default_device(), memory from cudaMalloc, bf16 for `out`, a workspace of workspace_size()
// bytes, and a stream.
const fp8attn::Device kDevice{fp8attn::DeviceKind::kCpu};

// Random bf16 numbers: the upper halves of floats.
std::vector<std::uint16_t> random_bf16(std::int64_t count) {
  static std::mt19937 generator;
  std::normal_distribution<float> normal;
  std::vector<std::uint16_t> values(count);
  for (std::uint16_t& value : values) value = std::bit_cast<std::uint32_t>(normal(generator)) >> 16;
  return values;
}

struct Inputs {
  std::vector<std::uint16_t> q = random_bf16(kHeads * kMlaDim);            // one query token
  std::vector<std::uint16_t> latents = random_bf16(kTokens * kLatentDim);  // of the cached tokens
  std::vector<std::uint16_t> ropes = random_bf16(kTokens * kRopeDim);
};

std::vector<float> decode(const Inputs& inputs, CacheFormat format) {
  std::vector<std::uint8_t> memory(kPages * kPageSize * fp8attn::record_bytes(format));
  const auto cache = MutableTensorView::contiguous(memory.data(), fp8attn::record_dtype(format),
                                                   {kPages, kPageSize, fp8attn::record_elements(format)}, kDevice);

  // Writing: the slot where a token goes is page * page size + position. Here they follow each other.
  std::vector<std::int64_t> slots(kTokens);
  std::iota(slots.begin(), slots.end(), 0);
  fp8attn::AppendMlaProblem append;
  append.latent = TensorView::contiguous(inputs.latents.data(), DType::kBF16, {kTokens, kLatentDim}, kDevice);
  append.rope = TensorView::contiguous(inputs.ropes.data(), DType::kBF16, {kTokens, kRopeDim}, kDevice);
  append.slots = TensorView::contiguous(slots.data(), DType::kI64, {kTokens}, kDevice);
  append.cache = cache;
  append.format = format;
  fp8attn::append_mla(append);

  // Reading: one sequence, whose pages are 0, 1, 2, ...
  std::vector<std::int32_t> block_table(kPages), lengths = {kTokens};
  std::iota(block_table.begin(), block_table.end(), 0);
  std::vector<float> out(kHeads * kLatentDim);
  fp8attn::MlaDecodeProblem problem;
  problem.q = TensorView::contiguous(inputs.q.data(), DType::kBF16, {1, 1, kHeads, kMlaDim}, kDevice);
  problem.cache = cache;
  problem.format = format;
  problem.block_table = TensorView::contiguous(block_table.data(), DType::kI32, {1, kPages}, kDevice);
  problem.lengths = TensorView::contiguous(lengths.data(), DType::kI32, {1}, kDevice);
  problem.out = MutableTensorView::contiguous(out.data(), DType::kF32, {1, 1, kHeads, kLatentDim}, kDevice);
  fp8attn::mla_decode(problem);  // throws fp8attn::Error, with what is wrong, where something is
  return out;
}

int main() {
  const Inputs inputs;
  const std::vector<float> out = decode(inputs, CacheFormat::kToken128), exact = decode(inputs, CacheFormat::kBF16);
  double difference = 0, norm = 0;
  for (std::size_t i = 0; i < out.size(); ++i) {
    difference += std::pow(out[i] - exact[i], 2);
    norm += std::pow(exact[i], 2);
  }
  std::printf("relative L2 error of 8-bit attention: %.4f\n", std::sqrt(difference / norm));
}
