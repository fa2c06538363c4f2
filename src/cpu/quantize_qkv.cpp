#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "api/qkv_quantization.h"
#include "cpu/prefill_vector.h"
#include "cpu/quantize.h"
#include "fp8attn/e4m3.h"

namespace fp8attn::cpu {
namespace {

constexpr float kMinScale = 0x1p-100f;
constexpr std::int64_t kTileTokens = 64;  // a multiple of the 16 tokens of a packed group

struct Shape {
  explicit Shape(const TensorView& input)
      : b(input.shape[0]), s(input.shape[1]), h(input.shape[2]), d(input.shape[3]) {}
  std::int64_t b, s, h, d;
};

float finite_or_zero(float value) {
  const std::uint32_t magnitude = std::bit_cast<std::uint32_t>(value) & 0x7FFFFFFFu;
  return magnitude < 0x7F800000u ? value : 0.0f;
}

// Where `rotated`, the product of channel c with the signs and the Hadamard matrix lacks normalisation(c).
float normalisation(const QkvOperand& operand, std::int64_t channel) {
  if (!operand.rotated) return 1.0f;
  const std::int64_t channels = operand.input.shape[3], first = first_rotated_block(channels);
  const std::int64_t block = channel < first ? first : channels - first;
  return static_cast<float>(1.0 / std::sqrt(static_cast<double>(block)));
}

// The Hadamard matrix times `values`, in place; count is a power of two.
void hadamard(float* values, std::int64_t count) {
  for (std::int64_t distance = 1; distance < count; distance *= 2) {
    for (std::int64_t i = 0; i < count; ++i) {
      if (i & distance) continue;
      const float a = values[i], b = values[i + distance];
      values[i] = a + b;
      values[i + distance] = a - b;
    }
  }
}

// The values of one row before their normalisation.
void load_row(const QkvOperand& operand, const RotationSigns& signs, std::int64_t b, std::int64_t t, std::int64_t h,
              std::vector<float>& row) {
  const TensorView& input = operand.input;
  const std::int64_t offset = b * input.strides[0] + t * input.strides[1] + h * input.strides[2];
  const auto channels = static_cast<std::int64_t>(row.size());
  unpack(static_cast<const std::uint8_t*>(input.data) + offset * size_of(input.dtype), input.dtype, row.data(),
         channels);
  if (!operand.rotated) return;
  for (std::int64_t c = 0; c < channels; ++c) {
    if (signs[c / 32] >> (c % 32) & 1) row[c] = -row[c];
  }
  const std::int64_t first = first_rotated_block(channels);
  hadamard(row.data(), first);
  if (first < channels) hadamard(row.data() + first, channels - first);
}

// The sums of the slots of one channel, in the order that QkvQuantization names.
float sum_of_slots(const float* sums, std::int64_t stride, int slots) {
  const int together = slots / 8;
  float total = 0;
  for (int slot = 0; slot < slots; slot += together) {
    float group = sums[slot * stride] + sums[(slot + 1) * stride];
    if (together == 4) group += sums[(slot + 2) * stride] + sums[(slot + 3) * stride];
    total += group;
  }
  return total;
}

// Statistics of one chunk of tokens of one batch entry and head.
void collect_chunk(const QkvOperand& operand, const RotationSigns& signs, std::int64_t pair, std::int64_t chunk) {
  const Shape n(operand.input);
  const int slots = sum_slots(n.d);
  std::vector<float> row(n.d), sums(slots * n.d);
  float* statistics = operand.statistics + (pair * operand.chunks + chunk) * operand.statistics_count() * n.d;
  float* highest = statistics + kHighest * n.d;
  float* lowest = operand.centered ? statistics + kLowest * n.d : nullptr;
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  std::fill_n(highest, n.d, operand.centered ? -kInfinity : 0.0f);
  if (operand.centered) std::fill_n(lowest, n.d, kInfinity);
  const std::int64_t begin = chunk * operand.chunk_tokens, end = std::min(begin + operand.chunk_tokens, n.s);
  for (std::int64_t t = begin; t < end; ++t) {
    load_row(operand, signs, pair / n.h, t, pair % n.h, row);
    float* sum = &sums[(t - begin) % slots * n.d];
    for (std::int64_t c = 0; c < n.d; ++c) {
      const float value = finite_or_zero(row[c]);
      if (operand.centered) {
        highest[c] = std::max(highest[c], value);
        lowest[c] = std::min(lowest[c], value);
        sum[c] += value;
      } else {
        highest[c] = std::max(highest[c], std::abs(value));
      }
    }
  }
  if (!operand.centered) return;
  for (std::int64_t c = 0; c < n.d; ++c) statistics[kSum * n.d + c] = sum_of_slots(&sums[c], n.d, slots);
}

void collect(const QkvOperand& operand, const RotationSigns& signs) {
  const Shape n(operand.input);
#pragma omp parallel for schedule(static)
  for (std::int64_t i = 0; i < n.b * n.h * operand.chunks; ++i) {
    collect_chunk(operand, signs, i / operand.chunks, i % operand.chunks);
  }
}

// What the statistics of one batch entry and head come to.
struct Channels {
  std::vector<float> mean, amax;  // [d]
  float largest = 0;              // of amax
};

Channels channels_of(const QkvOperand& operand, std::int64_t pair) {
  const Shape n(operand.input);
  const int kinds = operand.statistics_count();
  Channels channels{std::vector<float>(n.d), std::vector<float>(n.d)};
  for (std::int64_t c = 0; c < n.d; ++c) {
    const float* statistics = operand.statistics + pair * operand.chunks * kinds * n.d + c;
    float highest = operand.centered ? -std::numeric_limits<float>::infinity() : 0.0f, lowest = -highest, sum = 0;
    for (std::int64_t chunk = 0; chunk < operand.chunks; ++chunk, statistics += kinds * n.d) {
      highest = std::max(highest, statistics[kHighest * n.d]);
      if (!operand.centered) continue;
      lowest = std::min(lowest, statistics[kLowest * n.d]);
      sum += statistics[kSum * n.d];
    }
    const float factor = normalisation(operand, c);
    if (operand.centered && operand.chunks > 0) {
      channels.mean[c] = finite_or_zero(factor * sum / static_cast<float>(n.s));
      channels.amax[c] = std::max(factor * highest - channels.mean[c], channels.mean[c] - factor * lowest);
    } else if (!operand.centered) {
      channels.amax[c] = factor * highest;
    }
    channels.amax[c] = std::min(channels.amax[c], std::numeric_limits<float>::max());
    channels.largest = std::max(channels.largest, channels.amax[c]);
  }
  return channels;
}

float scale_of(float amax) { return amax > 0.0f ? std::max(amax / kE4M3Max, kMinScale) : 1.0f; }

// Writes the scales of one batch entry and head, except those per token, and the mean; returns the inverses.
std::vector<float> finish_channels(const QkvOperand& operand, std::int64_t pair, const Channels& channels) {
  const auto d = static_cast<std::int64_t>(channels.mean.size());
  auto* scale = static_cast<float*>(operand.scale.data);
  std::vector<float> inverse(d);
  for (std::int64_t c = 0; c < d; ++c) {
    const bool per_channel = operand.granularity == ScaleGranularity::kChannel;
    const float one = scale_of(per_channel ? channels.amax[c] : channels.largest);
    inverse[c] = 1.0f / one;
    if (per_channel) scale[pair * d + c] = one;
    if (operand.granularity == ScaleGranularity::kBatchHead) scale[pair] = one;
    if (operand.mean != nullptr) operand.mean[pair * d + c] = channels.mean[c];
  }
  return inverse;
}

// The values of one row, less the mean.
void load_centered_row(const QkvOperand& operand, const RotationSigns& signs, std::int64_t pair, std::int64_t token,
                       const std::vector<float>& mean, std::vector<float>& row) {
  const std::int64_t heads = operand.input.shape[2];
  load_row(operand, signs, pair / heads, token, pair % heads, row);
  for (std::size_t c = 0; c < row.size(); ++c) {
    if (operand.rotated) row[c] *= normalisation(operand, static_cast<std::int64_t>(c));
    if (operand.centered) row[c] -= mean[c];
  }
}

// q and k. key_mean: of the key head, where lse_bias is wanted.
void convert_rows(const QkvQuantization& work, const QkvOperand& operand, std::int64_t pair,
                  const std::vector<float>* key_mean) {
  const Shape n(operand.input);
  const Channels channels = channels_of(operand, pair);
  std::vector<float> row(n.d), inverse = finish_channels(operand, pair, channels);
  auto* codes = static_cast<std::uint8_t*>(operand.output.data) + pair * n.s * n.d;
  for (std::int64_t t = 0; t < n.s; ++t, codes += n.d) {
    load_centered_row(operand, work.signs, pair, t, channels.mean, row);
    if (operand.granularity == ScaleGranularity::kTokenHead) {
      float amax = 0;
      for (float value : row) amax = std::max(amax, std::abs(finite_or_zero(value)));
      static_cast<float*>(operand.scale.data)[pair * n.s + t] = scale_of(amax);
      std::fill(inverse.begin(), inverse.end(), 1.0f / scale_of(amax));
    }
    for (std::int64_t c = 0; c < n.d; ++c) codes[c] = e4m3_from_float(row[c] * inverse[c]);
    if (key_mean == nullptr) continue;
    double dot = 0;
    for (std::int64_t c = 0; c < n.d; ++c) dot += double{row[c]} * (*key_mean)[c];
    work.lse_bias[pair * n.s + t] = static_cast<float>(work.softmax_scale * dot);
  }
}

// A packed v, from `token` on.
void convert_values(const QkvQuantization& work, std::int64_t pair, std::int64_t token, const Channels& channels,
                    const std::vector<float>& inverse) {
  const Shape n(work.v.input);
  const std::int64_t length = packed_length(n.s), end = std::min(token + kTileTokens, length);
  std::vector<float> row(n.d);
  auto* lines = static_cast<std::uint8_t*>(work.v.output.data) + pair * n.d * length;
  for (std::int64_t t = token; t < end; ++t) {
    if (t < n.s) load_centered_row(work.v, work.signs, pair, t, channels.mean, row);
    for (std::int64_t c = 0; c < n.d; ++c) {
      lines[c * length + packed_position(t)] = t < n.s ? e4m3_from_float(row[c] * inverse[c]) : std::uint8_t{0};
    }
  }
}

}  // namespace

void quantize_qkv(const QkvQuantization& work) {
  for (const QkvOperand* operand : {&work.q, &work.k, &work.v}) collect(*operand, work.signs);
  const Shape q(work.q.input), k(work.k.input), v(work.v.input);
#pragma omp parallel for schedule(static)
  for (std::int64_t pair = 0; pair < k.b * k.h; ++pair) convert_rows(work, work.k, pair, nullptr);
#pragma omp parallel for schedule(static)
  for (std::int64_t pair = 0; pair < q.b * q.h; ++pair) {
    const std::int64_t key_pair = pair / q.h * k.h + pair % q.h / (q.h / k.h);
    const std::vector<float> mean = work.lse_bias ? channels_of(work.k, key_pair).mean : std::vector<float>();
    convert_rows(work, work.q, pair, work.lse_bias ? &mean : nullptr);
  }
#pragma omp parallel for schedule(static)
  for (std::int64_t pair = 0; pair < v.b * v.h; ++pair) {
    const Channels channels = channels_of(work.v, pair);
    const std::vector<float> inverse = finish_channels(work.v, pair, channels);
    for (std::int64_t t = 0; t < packed_length(v.s); t += kTileTokens) {
      convert_values(work, pair, t, channels, inverse);
    }
  }
}

}  // namespace fp8attn::cpu
