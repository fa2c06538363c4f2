#include "data_sets.h"

#include <cmath>

#include "random.h"

namespace fp8attn::test {
namespace {

constexpr std::uint64_t kSeed = 20261130;
enum Stream : std::uint64_t { kQuery = 1, kKey, kValue, kPlace, kDirection, kMean };

// Calls set(batch, token, head, channel, normal number) for every element of a [b, s, h, d] tensor.
template <class Set>
std::vector<float> fill(std::int64_t b, std::int64_t s, std::int64_t h, std::int64_t d, Stream stream, Set set) {
  std::vector<float> values(b * s * h * d);
  const Random random(kSeed, stream);
#pragma omp parallel for schedule(static)
  for (std::int64_t token = 0; token < b * s; ++token) {
    for (std::int64_t i = token * h * d; i < (token + 1) * h * d; ++i) {
      values[i] = set(token / s, token % s, i / d % h, i % d, random.normal(i));
    }
  }
  return values;
}

// A fixed random sign per head and channel.
float direction(std::int64_t head, std::int64_t channel) {
  return Random(kSeed, kDirection).bits(head * 1024 + channel) & 1 ? 1.0f : -1.0f;
}

float outlier(Stream stream, std::int64_t i, float normal) {
  const Random place(kSeed, stream + 100);
  return place.uniform(i) < 0.001 ? normal + 10.0f * place.normal(i + 1) : normal;
}

void add_outliers(std::vector<float>& values, Stream stream) {
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = outlier(stream, i, values[i]);
}

RealTensors make_llm(const Dims& n) {
  RealTensors data;
  const auto group = n.h_q / n.h_kv;
  data.q = fill(n.b, n.s_q, n.h_q, n.d_qk, kQuery, [=](auto, auto, auto head, auto channel, float x) {
    return x + 0.3f * direction(head / group, channel);
  });
  data.k = fill(n.b, n.s_kv, n.h_kv, n.d_qk, kKey, [=](auto, auto token, auto head, auto channel, float x) {
    const float constant = channel % 32 == 5 ? 6.0f : 0.0f;
    const float sink = token == 0 ? 2.0f : 0.0f;
    return x + (constant + sink) * direction(head, channel);
  });
  data.v = fill(n.b, n.s_kv, n.h_kv, n.d_v, kValue, [](auto, auto token, auto head, auto channel, float x) {
    if (token == 0) return 0.05f * x;
    return x + 0.5f * Random(kSeed, kMean).normal(head * 1024 + channel);
  });
  return data;
}

void plant_keys(RealTensors& data, const Dims& n) {
  if (n.s_q == 0) return;
  const Random place(kSeed, kPlace);
  for (std::int64_t b = 0; b < n.b; ++b) {
    for (std::int64_t key = 0; key < n.s_kv; key += 16) {
      for (std::int64_t head = 0; head < n.h_kv; ++head) {
        const auto query = static_cast<std::int64_t>(place.bits(key * n.h_kv + head) % n.s_q);
        const float* source = &data.q[((b * n.s_q + query) * n.h_q + head * (n.h_q / n.h_kv)) * n.d_qk];
        float* target = &data.k[((b * n.s_kv + key) * n.h_kv + head) * n.d_qk];
        for (std::int64_t channel = 0; channel < n.d_qk; ++channel) target[channel] = source[channel];
      }
    }
  }
}

// Queries all of one direction and keys along it: slope(token) times sqrt(d_qk) is about the logit.
template <class Slope>
RealTensors make_sloped(const Dims& n, float query, float noise, Slope slope) {
  RealTensors data;
  data.q = fill(n.b, n.s_q, n.h_q, n.d_qk, kQuery, [=](auto, auto, auto, auto, float x) { return query + noise * x; });
  data.k = fill(n.b, n.s_kv, n.h_kv, n.d_qk, kKey,
                [=](auto, auto token, auto, auto, float x) { return slope(token) / query + noise * x; });
  data.v = fill(n.b, n.s_kv, n.h_kv, n.d_v, kValue, [](auto, auto, auto, auto, float x) { return x; });
  return data;
}

}  // namespace

const char* name_of(DataSet data) {
  static constexpr const char* kNames[] = {"normal", "mean",    "outliers",  "llm",      "peak",
                                           "equal",  "growing", "shrinking", "negative", "zeros"};
  return kNames[static_cast<int>(data)];
}

RealTensors make_data(DataSet set, const Dims& n) {
  const auto position = [=](std::int64_t token) { return static_cast<float>(token) / static_cast<float>(n.s_kv); };
  switch (set) {
    case DataSet::kLlm: return make_llm(n);
    case DataSet::kGrowing:
      return make_sloped(n, 1.0f, 0.2f, [=](auto token) { return 3.0f * position(token) - 1.5f; });
    case DataSet::kShrinking:
      return make_sloped(n, 1.0f, 0.2f, [=](auto token) { return 1.5f - 3.0f * position(token); });
    case DataSet::kNegative: return make_sloped(n, 4.0f, 0.1f, [](auto) { return -16.0f; });
    default: break;
  }
  const float scale = set == DataSet::kZeros ? 0.0f : 1.0f;
  const float mean = set == DataSet::kValueMean ? 0.5f : 0.0f;
  const auto same = [=](auto, auto, auto, auto, float x) { return scale * x; };
  RealTensors data;
  data.q = fill(n.b, n.s_q, n.h_q, n.d_qk, kQuery, same);
  data.k = fill(n.b, n.s_kv, n.h_kv, n.d_qk, kKey, same);
  data.v = fill(n.b, n.s_kv, n.h_kv, n.d_v, kValue, [=](auto, auto, auto, auto, float x) { return scale * x + mean; });
  if (set == DataSet::kEqual) {
    data.k = fill(n.b, n.s_kv, n.h_kv, n.d_qk, kKey, [](auto, auto, auto head, auto channel, float) {
      return Random(kSeed, kMean).normal(head * 1024 + channel);
    });
  }
  if (set == DataSet::kPeak) plant_keys(data, n);
  if (set == DataSet::kOutliers) {
    add_outliers(data.q, kQuery);
    add_outliers(data.k, kKey);
    add_outliers(data.v, kValue);
  }
  return data;
}

}  // namespace fp8attn::test
