// Named data sets for q, k and v, as real numbers before any quantisation. The same dims give the same numbers.
#pragma once

#include <cstdint>
#include <vector>

namespace fp8attn::test {

struct Dims {
  std::int64_t b = 1, s_q = 64, s_kv = 64, h_q = 2, h_kv = 2, d_qk = 64, d_v = 64;
};

enum class DataSet : std::uint8_t {
  kNormal,     // N01: all N(0, 1)
  kValueMean,  // N01 with a V mean of 0.5
  kOutliers,   // OUT: N01 plus 0.1% of sigma 10
  kLlm,        // LLM: constant channels in K, aligned q, a V mean per channel, a sink token
  kPeak,       // PEAK: every 16th key is a query
  kEqual,      // all keys of a head alike: ties everywhere
  kGrowing,    // logits grow with the key's position
  kShrinking,  // logits fall with the key's position, so that the maximum grows for who walks backwards
  kNegative,   // all logits near -16 sqrt(d_qk)
  kZeros,      // nothing but zeros
};

const char* name_of(DataSet data);

struct RealTensors {
  std::vector<float> q, k, v;  // [b, s, h, d]
};

RealTensors make_data(DataSet data, const Dims& dims);

}  // namespace fp8attn::test
