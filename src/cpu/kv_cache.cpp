#include "cpu/kv_cache.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <cstring>
#include <span>

#include "api/mask.h"
#include "cpu/float16.h"
#include "cpu/mla_record.h"
#include "cpu/tile_common.h"
#include "fp8attn/e4m3.h"

namespace fp8attn::cpu {
namespace {

constexpr float kMinScale = 0x1p-100f;
constexpr std::int64_t kTokensOfOneThread = 64;  // less work than waking the others

using Rope = std::array<float, kRopeDim>;

float rotation_sign(std::int64_t channel) { return (kRotationSigns >> channel & 1u) != 0 ? -1.0f : 1.0f; }

// The Hadamard transform divided by 8, which is its own inverse. Butterflies of growing distance: CUDA adds in the same
// order.
void transform(Rope& values) {
  for (int distance = 1; distance < kRopeDim; distance *= 2) {
    for (int i = 0; i < kRopeDim; ++i) {
      if ((i & distance) != 0) continue;
      const float a = values[i], b = values[i + distance];
      values[i] = a + b;
      values[i + distance] = a - b;
    }
  }
  for (float& value : values) value *= 0.125f;
}

// bf16 to bf16, in place.
void rotate(std::uint16_t* codes) {
  Rope values;
  for (std::int64_t i = 0; i < kRopeDim; ++i) values[i] = bf16_to_float(codes[i]) * rotation_sign(i);
  transform(values);
  for (std::int64_t i = 0; i < kRopeDim; ++i) codes[i] = bf16_from_float(values[i]);
}

void rotate_back(Rope& values) {
  transform(values);
  for (std::int64_t i = 0; i < kRopeDim; ++i) values[i] *= rotation_sign(i);
}

float scale_of(std::span<const std::uint16_t> codes) {
  std::uint32_t amax = 0;  // bits of a magnitude, whose order is that of the numbers
  for (std::uint16_t code : codes) {
    const std::uint32_t magnitude = code & 0x7FFFu;
    if (magnitude < 0x7F80u) amax = std::max(amax, magnitude);
  }
  return std::max(bf16_to_float(static_cast<std::uint16_t>(amax)) / kE4M3Max, kMinScale);
}

void quantize(std::span<const std::uint16_t> codes, float scale, std::uint8_t* target) {
  const float inverse = 1.0f / scale;
  for (std::uint16_t code : codes) *target++ = e4m3_from_float(bf16_to_float(code) * inverse);
}

void write_record(const std::array<std::uint16_t, kMlaDim>& token, CacheFormat format, float cache_scale,
                  std::uint8_t* record) {
  const std::span<const std::uint16_t> latent(token.data(), kLatentDim);
  if (format == CacheFormat::kBF16) {
    std::memcpy(record, token.data(), sizeof token);
    return;
  }
  if (format == CacheFormat::kTensor) return quantize(token, cache_scale, record);
  std::array<float, kScaleGroups> scale;
  scale.fill(scale_of(latent));
  for (int group = 0; group < kScaleGroups; ++group) {
    const auto part = latent.subspan(group * kGroupDim, kGroupDim);
    if (format == CacheFormat::kToken128) scale[group] = scale_of(part);
    quantize(part, scale[group], record + group * kGroupDim);
  }
  std::memcpy(record + kRecordScaleOffset, scale.data(), sizeof scale);
  std::memcpy(record + kRecordRopeOffset, token.data() + kLatentDim, kRopeDim * sizeof(std::uint16_t));
}

// The address of a token's slot, null where the cache has no such slot.
template <class View>
auto record_of(const View& cache, const TensorView& slots, std::int64_t token) {
  using Byte = std::conditional_t<std::is_const_v<std::remove_pointer_t<decltype(cache.data)>>, const std::uint8_t,
                                  std::uint8_t>;
  const std::int64_t slot = integer_at(slots, token * slots.strides[0]);
  if (!is_among(slot, cache.shape[0] * cache.shape[1])) return static_cast<Byte*>(nullptr);
  return static_cast<Byte*>(cache.data) + record_offset(cache, slot);
}

void gather_token(const GatherMlaProblem& problem, const std::uint8_t* record, std::uint16_t* out) {
  if (record == nullptr) {
    std::fill_n(out, kMlaDim, std::uint16_t{0});
    return;
  }
  if (problem.format == CacheFormat::kBF16 && !problem.rotate_rope) {
    std::memcpy(out, record, kMlaDim * sizeof(std::uint16_t));
    return;
  }
  StoredRecord stored;
  load_record(record, problem.format, scalar_or_one(problem.cache_scale), stored);
  for (std::int64_t i = 0; i < kLatentDim; ++i) {
    out[i] = bf16_from_float(stored.values[i] * stored.scale[i / kGroupDim]);
  }
  Rope rope;
  for (std::int64_t i = 0; i < kRopeDim; ++i) rope[i] = stored.values[kLatentDim + i] * stored.rope_scale;
  if (problem.rotate_rope) rotate_back(rope);
  for (std::int64_t i = 0; i < kRopeDim; ++i) out[kLatentDim + i] = bf16_from_float(rope[i]);
}

}  // namespace

void append_mla(const AppendMlaProblem& problem, Stream) {
  const TensorView &latent = problem.latent, &rope = problem.rope;
  const float cache_scale = scalar_or_one(problem.cache_scale);
#pragma omp parallel for schedule(static) if (problem.slots.shape[0] > kTokensOfOneThread)
  for (std::int64_t token = 0; token < problem.slots.shape[0]; ++token) {
    std::uint8_t* record = record_of(problem.cache, problem.slots, token);
    if (record == nullptr) continue;
    std::array<std::uint16_t, kMlaDim> codes;
    const auto copy = [&](const TensorView& part, std::int64_t channels, std::uint16_t* target) {
      std::memcpy(target, static_cast<const std::uint16_t*>(part.data) + token * part.strides[0], 2 * channels);
    };
    copy(latent, kLatentDim, codes.data());
    copy(rope, kRopeDim, codes.data() + kLatentDim);
    if (problem.rotate_rope) rotate(codes.data() + kLatentDim);
    write_record(codes, problem.format, cache_scale, record);
  }
}

void gather_mla(const GatherMlaProblem& problem, Stream) {
  auto* out = static_cast<std::uint16_t*>(problem.out.data);
#pragma omp parallel for schedule(static) if (problem.slots.shape[0] > kTokensOfOneThread)
  for (std::int64_t token = 0; token < problem.slots.shape[0]; ++token) {
    gather_token(problem, record_of(problem.cache, problem.slots, token), out + token * problem.out.strides[0]);
  }
}

void rotate_rope(const TensorView& input, const MutableTensorView& output, Stream) {
  const std::int64_t heads = input.shape[2], rows = input.shape[0] * input.shape[1] * heads;
  const auto offset = [&](const auto& view, std::int64_t row) {
    return row / heads / input.shape[1] * view.strides[0] + row / heads % input.shape[1] * view.strides[1] +
           row % heads * view.strides[2];
  };
#pragma omp parallel for schedule(static) if (rows > kTokensOfOneThread)
  for (std::int64_t row = 0; row < rows; ++row) {
    const auto* source = static_cast<const std::uint16_t*>(input.data) + offset(input, row);
    auto* target = static_cast<std::uint16_t*>(output.data) + offset(output, row);
    std::memmove(target, source, kMlaDim * sizeof(std::uint16_t));
    rotate(target + kLatentDim);
  }
}

}  // namespace fp8attn::cpu
