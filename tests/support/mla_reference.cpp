#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "codec.h"
#include "mla_run.h"

namespace fp8attn::test {
namespace {

double dot(const double* a, const double* b) {
  double sum = 0;
#pragma omp simd reduction(+ : sum)
  for (std::int64_t i = 0; i < kMlaDim; ++i) sum += a[i] * b[i];
  return sum;
}

// The kernels' scale of `count` channels of a bf16 query that become e4m3: amax / 448, or, beside RoPE channels in
// bf16, the power of two that brings the sum of the magnitudes to between 64 and 128.
float query_rounding_scale(const double* query, std::int64_t count, bool power_of_two) {
  double amax = 0, sum = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    amax = std::max(amax, std::abs(query[i]));
    sum += std::abs(query[i]);
  }
  if (amax == 0) return 1.0f;
  return static_cast<float>(power_of_two ? std::exp2(std::ceil(std::log2(sum)) - 7) : amax / 448);
}

void quantise_query(double* query, std::int64_t count, bool power_of_two) {
  const float scale = query_rounding_scale(query, count, power_of_two);
  for (std::int64_t i = 0; i < count; ++i) {
    std::uint8_t code;
    encode(DType::kE4M3, static_cast<float>(query[i]) / scale, &code);
    query[i] = double{scale} * decode(DType::kE4M3, &code);
  }
}

std::vector<double> queries_of(const MlaCase& test, const MlaInputs& inputs, MlaTruth truth) {
  const std::vector<float> stored = inputs.q.values();
  std::vector<double> queries(stored.begin(), stored.end());
  for (std::int64_t row = 0; row < test.batch() * test.s_q * test.h_q; ++row) {
    double* query = &queries[row * kMlaDim];
    if (test.q_scale != ScaleForm::kNone) {
      const float scale = inputs.q_scale.at(row / test.h_q / test.s_q, row % test.h_q, row / test.h_q % test.s_q);
      for (std::int64_t i = 0; i < kMlaDim; ++i) query[i] *= scale;
    }
    const bool rounds = truth == MlaTruth::kStoredQuantised && test.q_dtype == DType::kBF16;
    if (rounds && test.format != CacheFormat::kBF16) {
      const bool all_channels = test.format == CacheFormat::kTensor;
      quantise_query(query, all_channels ? kMlaDim : kLatentDim, !all_channels);
    }
  }
  return queries;
}

// Writes 512 channels, returns the log of the sum of exp(logits).
double attend(const MlaCase& test, const double* query, const double* tokens, const std::vector<std::int64_t>& seen,
              double sink, double* out) {
  std::fill_n(out, kLatentDim, 0.0);
  if (seen.empty()) return -std::numeric_limits<double>::infinity();
  const double scale = test.softmax_scale ? double{*test.softmax_scale} : 1.0 / std::sqrt(576.0);
  std::vector<double> logits;
  for (std::int64_t token : seen) logits.push_back(dot(query, tokens + token * kMlaDim) * scale);
  const double top = *std::ranges::max_element(logits);
  double sum = 0;
  for (std::size_t i = 0; i < seen.size(); ++i) {
    const double weight = std::exp(logits[i] - top);
    sum += weight;
    const double* value = tokens + seen[i] * kMlaDim;
    for (std::int64_t c = 0; c < kLatentDim; ++c) out[c] += weight * value[c];
  }
  const double denominator = sum + std::exp(sink - top);
  for (std::int64_t c = 0; c < kLatentDim; ++c) out[c] /= denominator;
  return std::log(sum) + top;
}

}  // namespace

std::vector<std::int64_t> visible_tokens(const MlaCase& test, const MlaInputs& inputs, std::int64_t batch,
                                         std::int64_t query) {
  std::vector<std::int64_t> tokens;
  if (test.sparse()) {
    const std::int64_t row = batch * test.s_q + query;
    for (std::int64_t i = 0; i < inputs.topk_length[row]; ++i) {
      const std::int64_t token = inputs.picked[row * *test.topk + i];
      if (token >= 0) tokens.push_back(token);
    }
    return tokens;
  }
  // The last query sees all tokens, each one before it one token less.
  const std::int64_t hidden = test.causal ? test.s_q - 1 - query : 0;
  tokens.resize(std::max<std::int64_t>(0, test.lengths[batch] - hidden));
  std::iota(tokens.begin(), tokens.end(), 0);
  return tokens;
}

Reference make_mla_reference(const MlaCase& test, const MlaInputs& inputs, MlaTruth truth, std::int64_t hidden) {
  Reference reference{{}, test.h_q, kLatentDim, {}, {}};
  for (std::int64_t row = 0; row < test.s_q; ++row) reference.rows.push_back(row);
  const std::int64_t rows = test.batch() * test.h_q * test.s_q;
  reference.out.resize(rows * kLatentDim);
  reference.lse.resize(rows);
  const std::vector<double> queries = queries_of(test, inputs, truth);
  for (std::int64_t batch = 0; batch < test.batch(); ++batch) {
    std::vector<double> tokens(inputs.tokens[batch].begin(), inputs.tokens[batch].end());
    if (truth != MlaTruth::kInputs) tokens = stored_tokens(test, inputs, batch);
#pragma omp parallel for schedule(dynamic)
    for (std::int64_t i = 0; i < test.h_q * test.s_q; ++i) {
      const std::int64_t head = i / test.s_q, query = i % test.s_q, row = batch * test.h_q * test.s_q + i;
      std::vector<std::int64_t> seen = visible_tokens(test, inputs, batch, query);
      seen.resize(std::max<std::int64_t>(0, static_cast<std::int64_t>(seen.size()) - hidden));
      const double sink = test.sinks ? inputs.sinks[head] : -std::numeric_limits<double>::infinity();
      reference.lse[row] = attend(test, &queries[((batch * test.s_q + query) * test.h_q + head) * kMlaDim],
                                  tokens.data(), seen, sink, &reference.out[row * kLatentDim]);
    }
  }
  return reference;
}

}  // namespace fp8attn::test
