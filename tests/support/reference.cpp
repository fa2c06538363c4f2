#include "reference.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>
#include <set>

#include "random.h"

namespace fp8attn::test {
namespace {

struct Values {
  std::vector<float> q, k, v;  // stored elements, [b, s, h, d]
};

double dot(const float* a, const float* b, std::int64_t count) {
  double sum = 0;
#pragma omp simd reduction(+ : sum)
  for (std::int64_t i = 0; i < count; ++i) sum += static_cast<double>(a[i]) * static_cast<double>(b[i]);
  return sum;
}

class Row {
 public:
  Row(const PrefillCase& test, const PrefillInputs& inputs, const Values& values, std::int64_t batch, std::int64_t head)
      : n_(test.n), inputs_(inputs), values_(values), batch_(batch), head_(head), head_kv_(head / (n_.h_q / n_.h_kv)) {
    softcap_ = test.softcap;
    softmax_scale_ = test.softmax_scale ? double{*test.softmax_scale} : 1.0 / std::sqrt(double(n_.d_qk));
  }

  // Writes d_v channels, returns the log of the sum of exp(logits).
  double attend(std::int64_t token, KeyRange keys, double* out) const {
    std::fill_n(out, n_.d_v, 0.0);
    if (keys.count() <= 0) return -std::numeric_limits<double>::infinity();
    std::vector<double> weights = logits(token, keys);
    const double top = *std::max_element(weights.begin(), weights.end());
    double sum = 0;
    for (double& weight : weights) sum += weight = std::exp(weight - top);
    for (std::int64_t key = keys.begin; key < keys.end; ++key) {
      const float* v = &values_.v[((batch_ * n_.s_kv + key) * n_.h_kv + head_kv_) * n_.d_v];
      for (std::int64_t i = 0; i < n_.d_v; ++i) out[i] += weights[key - keys.begin] * static_cast<double>(v[i]);
    }
    const double sink = inputs_.sinks.empty() ? 0.0 : std::exp(double{inputs_.sinks[head_]} - top);
    for (std::int64_t i = 0; i < n_.d_v; ++i) out[i] *= inputs_.v_scale.at(batch_, head_kv_, i) / (sum + sink);
    const double lse = std::log(sum) + top;
    if (inputs_.v_mean.form == ScaleForm::kNone) return lse;
    for (std::int64_t i = 0; i < n_.d_v; ++i) out[i] += inputs_.v_mean.at(batch_, head_kv_, i);
    return lse + inputs_.lse_bias.at(batch_, head_, token);
  }

 private:
  std::vector<double> logits(std::int64_t token, KeyRange keys) const {
    const float* q = &values_.q[((batch_ * n_.s_q + token) * n_.h_q + head_) * n_.d_qk];
    const double factor = softmax_scale_ * inputs_.q_scale.at(batch_, head_, token);
    std::vector<double> result(keys.count());
    for (std::int64_t key = keys.begin; key < keys.end; ++key) {
      const float* k = &values_.k[((batch_ * n_.s_kv + key) * n_.h_kv + head_kv_) * n_.d_qk];
      const double logit = dot(q, k, n_.d_qk) * factor * inputs_.k_scale.at(batch_, head_kv_, key);
      result[key - keys.begin] = softcap_ > 0 ? softcap_ * std::tanh(logit / softcap_) : logit;
    }
    return result;
  }

  const Dims& n_;
  const PrefillInputs& inputs_;
  const Values& values_;
  const std::int64_t batch_, head_, head_kv_;
  double softmax_scale_, softcap_;
};

}  // namespace

std::vector<std::int64_t> sample_rows(const PrefillCase& test, std::int64_t count) {
  const std::int64_t s = test.n.s_q;
  std::set<std::int64_t> rows;
  if (s <= count) {
    for (std::int64_t row = 0; row < s; ++row) rows.insert(row);
  } else {
    for (std::int64_t length : test.batch.q_lengths) {
      if (length > 0) rows.insert({length / 2, length - 1});
    }
    for (std::int64_t row : {std::int64_t{0}, std::int64_t{1}, std::int64_t{63}, std::int64_t{64}, std::int64_t{127},
                             std::int64_t{128}, s / 2, s - 129, s - 64, s - 2, s - 1}) {
      if (row >= 0 && row < s) rows.insert(row);
    }
    const Random random(7, 7);
    for (std::uint64_t i = 0; static_cast<std::int64_t>(rows.size()) < count; ++i) rows.insert(random.bits(i) % s);
  }
  return {rows.begin(), rows.end()};
}

KeyRange visible_keys(const PrefillCase& test, std::int64_t sequence, std::int64_t row) {
  const std::int64_t queries = test.queries(sequence), keys = test.keys(sequence);
  if (row >= queries) return {};
  // The last query stands at the last key, each one before it one key earlier.
  const std::int64_t diagonal = keys - 1 - (queries - 1 - row);
  KeyRange range{0, keys};
  if (test.causal) range.end = std::max<std::int64_t>(0, diagonal + 1);
  if (test.window_left >= 0) range.begin = std::max<std::int64_t>(0, diagonal - test.window_left);
  return range;
}

Reference make_reference(const PrefillCase& test, const PrefillInputs& inputs, std::vector<std::int64_t> rows,
                         std::int64_t hidden_keys) {
  const Dims& n = test.n;
  Reference reference{std::move(rows), n.h_q, n.d_v, {}, {}};
  const auto row_count = static_cast<std::int64_t>(reference.rows.size());
  reference.out.resize(n.b * n.h_q * row_count * n.d_v);
  reference.lse.resize(n.b * n.h_q * row_count);
  const Values values{inputs.q.values(), inputs.k.values(), inputs.v.values()};
#pragma omp parallel for schedule(dynamic)
  for (std::int64_t i = 0; i < n.b * n.h_q * row_count; ++i) {
    const std::int64_t token = reference.rows[i % row_count];
    const std::int64_t batch = i / row_count / n.h_q;
    KeyRange keys = visible_keys(test, batch, token);
    keys.end -= hidden_keys;
    const Row row(test, inputs, values, batch, i / row_count % n.h_q);
    const double lse = row.attend(token, keys, &reference.out[i * n.d_v]);
    reference.lse[i] = test.lse_base == LseBase::k2 ? lse * std::numbers::log2e : lse;
  }
  return reference;
}

}  // namespace fp8attn::test
