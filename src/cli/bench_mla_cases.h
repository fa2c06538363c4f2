// What `fp8attn bench --mla` measures, and its tensors on a device.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cli/attention.h"
#include "cli/device.h"
#include "fp8attn/mla_decode.h"

namespace fp8attn::cli {

struct MlaBenchCase {
  CacheFormat format = CacheFormat::kToken128;
  std::int64_t batch = 1, heads_q = 128, seqlen_q = 1, tokens = 4096;
  std::int64_t topk = 0;  // 0: dense
  bool uneven = false;    // lengths from tokens / 8 to tokens
  std::int64_t page_size = 64;

  std::vector<std::int64_t> lengths() const;
  double seen_tokens() const;  // of all query tokens of all sequences
  double flop() const;         // 2 h_q (576 + 512) for each token that a query token sees
  // Every record that is read, once a sequence (sparse: once a query token), and q and a bf16 out once.
  double bytes() const;
  std::string name() const;  // "token128 b128 h128 s1 t4096", "... uneven", "... topk2048", "... page16"
};

// Those of a GPU, or those that a CPU finishes soon.
std::vector<MlaBenchCase> mla_bench_cases(DeviceKind device);

// The tensors of a case and its call.
class MlaBenchCall {
 public:
  // Some thousand random tokens, again and again until the cache is full; pages in random order.
  MlaBenchCall(const MlaBenchCase& item, const AttentionOptions& options);

  Support support() const { return supports(problem_); }
  void allocate_workspace();
  void launch() { mla_decode(problem_, workspace_.get()); }

  // Relative L2 of the first sequence against float64 attention of the stored tokens.
  double error() const;

 private:
  void fill_cache();
  void make_tables();
  HostTensor first_sequence() const;

  MlaBenchCase item_;
  AttentionOptions options_;
  HostTensor q_host_, scale_host_, table_host_, lengths_host_;
  std::vector<std::int64_t> chosen_;  // sparse: the token of its sequence that each index stands for
  DeviceTensor q_, cache_, scale_, table_, lengths_, indices_, out_;
  DeviceWorkspace workspace_;
  MlaDecodeProblem problem_;
};

}  // namespace fp8attn::cli
