// One MLA decode test case: what is computed, on which data, and the inputs that follow from that.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "fp8attn/mla_decode.h"
#include "placed_tensor.h"
#include "prefill_case.h"

namespace fp8attn::test {

enum class MlaData : std::uint8_t {
  kNormal,     // all N(0, 1)
  kValueMean,  // N(0, 1) with a latent mean of 0.5
  kOutliers,   // N(0, 1) plus 0.1% of sigma 10
  kLargeRope,  // RoPE parts 30 times the latents
  kRopeOnly,   // latents of 0: only the RoPE part decides
  kSmall,      // latents of sigma 0.02
  kPeak,       // every 50th token is the (first) query of a head, so that single tokens outweigh their rows
  kGrowing,    // tokens grow with their position
};

const char* name_of(MlaData data);

struct MlaCase {
  std::string name;  // starts with the class of test-contract: "A_", "B_", ...
  std::int64_t s_q = 1, h_q = 16;
  std::vector<std::int64_t> lengths = {300};  // of each sequence; sparse: its tokens in the cache
  std::int64_t page_size = 64;
  CacheFormat format = CacheFormat::kToken128;
  DType q_dtype = DType::kBF16, out_dtype = DType::kBF16, index_dtype = DType::kI32;
  std::optional<std::int64_t> topk = {};  // sparse: indices of each query
  bool topk_lengths = false;              // sparse: fewer for every other query
  bool causal = false, sinks = false;
  ScaleForm q_scale = ScaleForm::kNone;  // kScalar, kHead, kBatchHead or kTokenHead
  MlaData data = MlaData::kNormal;
  std::optional<float> softmax_scale = {};
  CpuArithmetic arithmetic = CpuArithmetic::kEmulated;
  std::uint64_t page_seed = 1;  // which pages the tokens lie in

  std::int64_t batch() const { return static_cast<std::int64_t>(lengths.size()); }
  bool sparse() const { return topk.has_value(); }
  // The same as prefill's, for what judges outputs.
  PrefillCase shape() const;
};

std::ostream& operator<<(std::ostream& stream, const MlaCase& test);

struct MlaInputs {
  HostTensor q;                                  // [b, s_q, h_q, 576]
  HostScale q_scale;                             // [b, s_q, h_q] where the case has one
  std::vector<std::vector<float>> tokens;        // of each sequence: [length, 576], bf16 numbers, before storage
  std::vector<std::vector<std::int64_t>> slots;  // of each sequence: where its tokens lie
  std::int64_t pages = 0, max_pages = 0;
  std::vector<std::int64_t> block_table;  // [b, max_pages], -1 where no page is needed
  std::vector<std::int64_t> indices;      // [b, s_q, topk] slots
  std::vector<std::int64_t> picked;       // the same as token numbers of the sequence, -1 for none
  std::vector<std::int64_t> topk_length;  // [b, s_q]
  std::vector<float> sinks;               // [h_q]
  float cache_scale = 1.0f;
  std::vector<std::uint8_t> cache;  // [pages, page_size, record]; zeros where no token lies
};

MlaInputs make_mla_inputs(const MlaCase& test);

// Writes the tokens into the cache as append_mla() does on the CPU.
void store_tokens(const MlaCase& test, MlaInputs& inputs);

// Tokens of sequence `batch` as the cache holds them, [length, 576].
std::vector<double> stored_tokens(const MlaCase& test, const MlaInputs& inputs, std::int64_t batch);

}  // namespace fp8attn::test
