#include "mla_case.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <ostream>

#include "codec.h"
#include "random.h"

namespace fp8attn::test {
namespace {

constexpr std::int64_t kSparePages = 3;

float as_bf16(float value) {
  std::uint8_t bytes[2];
  encode(DType::kBF16, value, bytes);
  return decode(DType::kBF16, bytes);
}

float token_value(const MlaCase& test, const Random& random, std::int64_t token, std::int64_t length,
                  std::int64_t channel) {
  const std::uint64_t index = token * kMlaDim + channel;
  const bool latent = channel < kLatentDim;
  const float value = random.normal(index);
  switch (test.data) {
    case MlaData::kValueMean: return latent ? value + 0.5f : value;
    case MlaData::kOutliers: return random.uniform(~index) < 1e-3 ? value + 10.0f * random.normal(~index + 1) : value;
    case MlaData::kLargeRope: return latent ? value : 30.0f * value;
    case MlaData::kRopeOnly: return latent ? 0.0f : value;
    case MlaData::kSmall: return latent ? 0.02f * value : value;
    case MlaData::kGrowing: return value * (0.1f + 3.0f * static_cast<float>(token) / static_cast<float>(length));
    default: return value;
  }
}

void make_queries(const MlaCase& test, MlaInputs& inputs) {
  const std::int64_t rows = test.batch() * test.s_q * test.h_q;
  const Random random(11, 0);
  std::vector<float> values(rows * kMlaDim);
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = random.normal(i);
    // So that the RoPE part does not decide alone.
    if (test.data == MlaData::kLargeRope && i % kMlaDim >= kLatentDim) values[i] /= 30.0f;
  }
  if (test.q_scale != ScaleForm::kNone) {
    inputs.q_scale = {test.q_scale, test.s_q, test.h_q, {}};
    std::int64_t count = test.q_scale == ScaleForm::kScalar ? 1 : test.h_q;
    if (test.q_scale == ScaleForm::kBatchHead) count *= test.batch();
    if (test.q_scale == ScaleForm::kTokenHead) count *= test.batch() * test.s_q;
    for (std::int64_t i = 0; i < count; ++i) {
      inputs.q_scale.values.push_back(0.0137f * (1.0f + 0.37f * static_cast<float>(i % 7)));
    }
    for (std::size_t i = 0; i < values.size(); ++i) {
      const std::int64_t row = i / kMlaDim;
      values[i] /= inputs.q_scale.at(row / test.h_q / test.s_q, row % test.h_q, row / test.h_q % test.s_q);
    }
  }
  inputs.q = encode_tensor(test.q_dtype, {test.batch(), test.s_q, test.h_q, kMlaDim}, values);
}

void make_tokens(const MlaCase& test, MlaInputs& inputs) {
  const std::vector<float> queries = inputs.q.values();
  for (std::int64_t batch = 0; batch < test.batch(); ++batch) {
    const std::int64_t length = test.lengths[batch];
    const Random random(12, batch);
    std::vector<float>& tokens = inputs.tokens.emplace_back(length * kMlaDim);
#pragma omp parallel for schedule(static)
    for (std::int64_t i = 0; i < length * kMlaDim; ++i) {
      const std::int64_t token = i / kMlaDim, channel = i % kMlaDim;
      float value = token_value(test, random, token, length, channel);
      if (test.data == MlaData::kPeak && token % 50 == 7) {
        const std::int64_t head = token / 50 % test.h_q;
        value = queries[(batch * test.s_q * test.h_q + head) * kMlaDim + channel] * inputs.q_scale.at(batch, head, 0);
      }
      tokens[i] = as_bf16(value);
    }
  }
}

// Every sequence gets pages of its own, scattered over the cache.
void assign_pages(const MlaCase& test, MlaInputs& inputs) {
  const auto pages_of = [&](std::int64_t length) { return (length + test.page_size - 1) / test.page_size; };
  std::int64_t needed = 0;
  for (std::int64_t length : test.lengths) {
    needed += pages_of(length);
    inputs.max_pages = std::max(inputs.max_pages, pages_of(length));
  }
  inputs.max_pages = std::max<std::int64_t>(inputs.max_pages, 1);
  inputs.pages = needed + kSparePages;
  std::vector<std::int64_t> order(inputs.pages);
  std::iota(order.begin(), order.end(), 0);
  const Random random(13, test.page_seed);
  std::ranges::sort(order, {}, [&](std::int64_t page) { return random.bits(page); });
  inputs.block_table.assign(test.batch() * inputs.max_pages, -1);
  std::int64_t used = 0;
  for (std::int64_t batch = 0; batch < test.batch(); ++batch) {
    std::vector<std::int64_t>& slots = inputs.slots.emplace_back();
    for (std::int64_t token = 0; token < test.lengths[batch]; ++token) {
      std::int64_t& page = inputs.block_table[batch * inputs.max_pages + token / test.page_size];
      if (token % test.page_size == 0) page = order[used++];
      slots.push_back(page * test.page_size + token % test.page_size);
    }
  }
}

// Tokens in random order, every ninth index none.
void pick_tokens(const MlaCase& test, MlaInputs& inputs) {
  for (std::int64_t row = 0; row < test.batch() * test.s_q; ++row) {
    const std::int64_t batch = row / test.s_q, length = test.lengths[batch];
    std::vector<std::int64_t> order(length);
    std::iota(order.begin(), order.end(), 0);
    const Random random(14, row);
    std::ranges::sort(order, {}, [&](std::int64_t token) { return random.bits(token); });
    std::int64_t next = 0;
    for (std::int64_t i = 0; i < *test.topk; ++i) {
      const bool none = i % 9 == 4 || next == length;
      inputs.picked.push_back(none ? -1 : order[next]);
      inputs.indices.push_back(none ? -1 : inputs.slots[batch][order[next]]);
      next += !none;
    }
    const bool fewer = test.topk_lengths && row % 2 == 1;
    inputs.topk_length.push_back(fewer ? *test.topk * 2 / 3 : *test.topk);
  }
}

}  // namespace

const char* name_of(MlaData data) {
  static constexpr const char* kNames[] = {"normal",    "value_mean", "outliers", "large_rope",
                                           "rope_only", "small",      "peak",     "growing"};
  return kNames[static_cast<int>(data)];
}

PrefillCase MlaCase::shape() const {
  return {.name = name,
          .n = {.b = batch(), .s_q = s_q, .s_kv = 0, .h_q = h_q, .h_kv = 1, .d_qk = kMlaDim, .d_v = kLatentDim},
          .dtype = q_dtype,
          .out_dtype = out_dtype,
          .causal = causal};
}

std::ostream& operator<<(std::ostream& stream, const MlaCase& test) { return stream << test.name; }

MlaInputs make_mla_inputs(const MlaCase& test) {
  MlaInputs inputs;
  make_queries(test, inputs);
  make_tokens(test, inputs);
  assign_pages(test, inputs);
  if (test.sparse()) pick_tokens(test, inputs);
  for (std::int64_t head = 0; test.sinks && head < test.h_q; ++head) {
    inputs.sinks.push_back(head % 4 == 3 ? -INFINITY : 5.0f + 0.3f * static_cast<float>(head % 8));
  }
  store_tokens(test, inputs);
  return inputs;
}

void store_tokens(const MlaCase& test, MlaInputs& inputs) {
  float amax = 1e-3f;
  std::vector<float> tokens;
  std::vector<std::int64_t> slots;
  for (std::int64_t batch = 0; batch < test.batch(); ++batch) {
    tokens.insert(tokens.end(), inputs.tokens[batch].begin(), inputs.tokens[batch].end());
    slots.insert(slots.end(), inputs.slots[batch].begin(), inputs.slots[batch].end());
  }
  for (float value : tokens) amax = std::max(amax, std::abs(value));
  inputs.cache_scale = amax / 448.0f * 1.013f;
  inputs.cache.assign(inputs.pages * test.page_size * record_bytes(test.format), 0);
  const auto count = static_cast<std::int64_t>(slots.size());
  const HostTensor codes = encode_tensor(DType::kBF16, {count, kMlaDim}, tokens);
  AppendMlaProblem problem;
  problem.latent = TensorView::contiguous(codes.bytes.data(), DType::kBF16, {count, kMlaDim});
  problem.latent.shape[1] = kLatentDim;
  problem.rope = problem.latent;
  problem.rope.data = codes.bytes.data() + kLatentDim * 2;
  problem.rope.shape[1] = kRopeDim;
  problem.slots = TensorView::contiguous(slots.data(), DType::kI64, {count});
  problem.cache = MutableTensorView::contiguous(inputs.cache.data(), record_dtype(test.format),
                                                {inputs.pages, test.page_size, record_elements(test.format)});
  problem.format = test.format;
  if (test.format == CacheFormat::kTensor) {
    problem.cache_scale = TensorView::contiguous(&inputs.cache_scale, DType::kF32, {});
  }
  append_mla(problem);
}

std::vector<double> stored_tokens(const MlaCase& test, const MlaInputs& inputs, std::int64_t batch) {
  std::vector<double> values(test.lengths[batch] * kMlaDim);
#pragma omp parallel for schedule(static)
  for (std::int64_t i = 0; i < static_cast<std::int64_t>(values.size()); ++i) {
    const std::int64_t channel = i % kMlaDim;
    const std::uint8_t* record = &inputs.cache[inputs.slots[batch][i / kMlaDim] * record_bytes(test.format)];
    if (test.format == CacheFormat::kBF16) {
      values[i] = decode(DType::kBF16, record + 2 * channel);
    } else if (test.format == CacheFormat::kTensor) {
      values[i] = double{decode(DType::kE4M3, record + channel)} * inputs.cache_scale;
    } else if (channel < kLatentDim) {
      const double scale = decode(DType::kF32, record + 512 + channel / 128 * 4);
      values[i] = scale * decode(DType::kE4M3, record + channel);
    } else {
      values[i] = decode(DType::kBF16, record + 528 + (channel - kLatentDim) * 2);
    }
  }
  return values;
}

}  // namespace fp8attn::test
