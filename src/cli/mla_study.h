// What storing a latent cache in 8 bits costs: data, ways to store it, and decoding of them.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "cli/attention.h"
#include "cli/host_tensor.h"
#include "fp8attn/mla_decode.h"

namespace fp8attn::cli {

inline constexpr std::int64_t kStudyHeads = 16;
inline constexpr std::int64_t kStudyPage = 64;  // tokens

enum class MlaDataSet : std::uint8_t {
  kNormal,     // all N(0, 1)
  kOutliers,   // and 0.1% of N(0, 100) added to the tokens
  kLargeRope,  // RoPE part of the tokens 30 times as large, that of the query as much smaller
  kRopeRules,  // RoPE part of the tokens 30 times as large, and nothing done about it: it decides the softmax
  kSmall,      // latents of sigma 0.02
  kMean,       // latents with a mean of 0.5
};

std::span<const MlaDataSet> mla_data_sets();
const char* name_of(MlaDataSet data);

// One sequence.
struct MlaTensors {
  HostTensor q;       // bf16 [1, 1, kStudyHeads, 576]
  HostTensor tokens;  // bf16 [n, 576]

  std::int64_t count() const { return tokens.shape[0]; }
};

MlaTensors mla_tensors(MlaDataSet data, std::int64_t tokens);

struct MlaStorage {
  const char* name;
  CacheFormat format;
  bool page = false;     // one e4m3 scale for all channels of the tokens of a page, in records of format token
  bool rotated = false;  // RoPE part rotated, in the cache and in the query
};

// The ways to store a cache that `compare --mla` tries, the exact one first.
std::span<const MlaStorage> mla_storages();

struct StoredMla {
  const MlaStorage* storage;
  HostTensor q;      // the query that fits the cache
  HostTensor cache;  // [pages, kStudyPage, record]
  HostTensor scale;  // f32 [1]; format tensor only
  std::int64_t tokens;
};

StoredMla store_mla(const MlaTensors& tensors, const MlaStorage& storage);

// The same with the query as kernels of e4m3 caches round it: its latent part (format tensor: all of it) to e4m3, with
// one scale a head. Held in bf16, which is within 2^-9 of that.
StoredMla with_rounded_query(StoredMla stored);

// Whether the device of `options` has a kernel for it.
Support supports_mla(const StoredMla& stored, const AttentionOptions& options);

// f32 [1, 1, kStudyHeads, 512].
HostTensor decode_mla(const StoredMla& stored, const AttentionOptions& options);

// |out - exact| / |exact|.
double relative_l2(const HostTensor& out, const HostTensor& exact);

}  // namespace fp8attn::cli
