#include "cli/mla_weights_study.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "fp8attn/e4m3.h"

namespace fp8attn::cli {
namespace {

constexpr std::int64_t kHeads = 4;    // of the study's heads: enough, since each has 512 channels
constexpr std::int64_t kGroup = 32;   // tokens of one tensor-core instruction
constexpr std::int64_t kFold = 256;   // tokens of a fold
constexpr int kAccumulatorBits = 13;  // fractional bits below the largest term
constexpr float kTop = 256.0f;        // what P = 1 of the largest scale becomes

// Latent codes and scales of a cache of format token.
struct Values {
  std::vector<float> codes, scales;
};

Values values_of(const StoredMla& stored) {
  Values values{std::vector<float>(stored.tokens * kLatentDim), std::vector<float>(stored.tokens)};
#pragma omp parallel for
  for (std::int64_t t = 0; t < stored.tokens; ++t) {
    const auto* record = reinterpret_cast<const std::uint8_t*>(stored.cache.bytes.data()) + t * 656;
    for (std::int64_t c = 0; c < kLatentDim; ++c) values.codes[t * kLatentDim + c] = e4m3_to_float(record[c]);
    std::memcpy(&values.scales[t], record + kRecordScaleOffset, sizeof(float));
  }
  return values;
}

// Of one head, unnormalised; the largest is 1.
std::vector<double> probabilities(const MlaTensors& tensors, std::int64_t head) {
  std::vector<double> logits(tensors.count());
#pragma omp parallel for
  for (std::int64_t t = 0; t < tensors.count(); ++t) {
    double sum = 0;
    for (std::int64_t c = 0; c < kMlaDim; ++c) {
      sum += double{element(tensors.q.bytes.data(), DType::kBF16, head * kMlaDim + c)} *
             element(tensors.tokens.bytes.data(), DType::kBF16, t * kMlaDim + c);
    }
    logits[t] = sum / std::sqrt(static_cast<double>(kMlaDim));
  }
  const double top = *std::max_element(logits.begin(), logits.end());
  for (double& logit : logits) logit = std::exp(logit - top);
  return logits;
}

float as_e4m3(double value) { return e4m3_to_float(e4m3_from_float(static_cast<float>(value))); }

float as_bf16(double value) {
  HostTensor single(DType::kF32, {1});
  const auto real = static_cast<float>(value);
  std::memcpy(single.bytes.data(), &real, sizeof real);
  return element(convert(single, DType::kBF16).bytes.data(), DType::kBF16, 0);
}

// Sum of weight * code over the tokens [first, last) of one channel, begun with `sum`, in the accumulator's precision.
double accumulate(const std::vector<float>& weights, const float* codes, std::int64_t first, std::int64_t last,
                  double sum) {
  for (std::int64_t group = first; group < last; group += kGroup) {
    const std::int64_t end = std::min(group + kGroup, last);
    double largest = std::abs(sum);
    for (std::int64_t t = group; t < end; ++t) {
      largest = std::max(largest, std::abs(double{weights[t]} * codes[t * kLatentDim]));
    }
    if (largest == 0) continue;
    const double unit = std::ldexp(1.0, std::ilogb(largest) - kAccumulatorBits);
    double units = std::trunc(sum / unit);
    for (std::int64_t t = group; t < end; ++t) units += std::trunc(double{weights[t]} * codes[t * kLatentDim] / unit);
    sum = units * unit;
  }
  return sum;
}

struct Sums {
  double exact = 0, bf16 = 0, e4m3 = 0, folded = 0, never_folded = 0;
};

Sums channel_sums(const std::vector<double>& exact, const std::vector<float>& bf16, const std::vector<float>& e4m3,
                  const Values& values, double weight_unit, std::int64_t channel) {
  Sums sums;
  const float* codes = values.codes.data() + channel;
  const auto tokens = static_cast<std::int64_t>(exact.size());
  float bf16_sum = 0, e4m3_sum = 0, folded = 0;
  for (std::int64_t t = 0; t < tokens; ++t) {
    sums.exact += exact[t] * values.scales[t] * codes[t * kLatentDim];
    bf16_sum += bf16[t] * (values.scales[t] * codes[t * kLatentDim]);
    e4m3_sum += e4m3[t] * codes[t * kLatentDim];
  }
  for (std::int64_t t = 0; t < tokens; t += kFold) {
    folded += static_cast<float>(accumulate(e4m3, codes, t, std::min(t + kFold, tokens), 0));
  }
  sums.bf16 = bf16_sum;
  sums.e4m3 = e4m3_sum * weight_unit;
  sums.folded = folded * weight_unit;
  sums.never_folded = accumulate(e4m3, codes, 0, tokens, 0) * weight_unit;
  return sums;
}

}  // namespace

WeightErrors weight_errors(const MlaTensors& tensors) {
  const MlaStorage storage{"token", CacheFormat::kToken};
  const Values values = values_of(store_mla(tensors, storage));
  const double bound = *std::max_element(values.scales.begin(), values.scales.end());
  std::vector<Sums> all(kHeads * kLatentDim);
  for (std::int64_t head = 0; head < kHeads; ++head) {
    const std::vector<double> exact = probabilities(tensors, head);
    std::vector<float> bf16(exact.size()), e4m3(exact.size());
    for (std::size_t t = 0; t < exact.size(); ++t) {
      bf16[t] = as_bf16(exact[t]);
      e4m3[t] = as_e4m3(exact[t] * values.scales[t] / bound * kTop);
    }
#pragma omp parallel for
    for (std::int64_t c = 0; c < kLatentDim; ++c) {
      all[head * kLatentDim + c] = channel_sums(exact, bf16, e4m3, values, bound / kTop, c);
    }
  }
  const auto error_of = [&](double Sums::*sum) {
    double error2 = 0, exact2 = 0;
    for (const Sums& sums : all) {
      error2 += (sums.*sum - sums.exact) * (sums.*sum - sums.exact);
      exact2 += sums.exact * sums.exact;
    }
    return std::sqrt(error2 / exact2);
  };
  return {error_of(&Sums::bf16), error_of(&Sums::e4m3), error_of(&Sums::folded), error_of(&Sums::never_folded)};
}

}  // namespace fp8attn::cli
