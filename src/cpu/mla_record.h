// One record of a latent cache: where it lies, and the numbers in it.
#pragma once

#include <array>
#include <bit>
#include <cstdint>
#include <cstring>
#include <optional>

#include "cpu/float16.h"
#include "fp8attn/e4m3.h"
#include "fp8attn/kv_cache.h"

namespace fp8attn::cpu {

static_assert(std::endian::native == std::endian::little, "records are little-endian");

inline constexpr int kScaleGroups = 4;  // scales of a record
inline constexpr std::int64_t kGroupDim = kLatentDim / kScaleGroups;

// Byte offset of a slot of the cache.
inline std::int64_t record_offset(const TensorView& cache, std::int64_t slot) {
  const std::int64_t page_size = cache.shape[1];
  return (slot / page_size * cache.strides[0] + slot % page_size * cache.strides[1]) * size_of(cache.dtype);
}

inline bool has_record_scales(CacheFormat format) {
  return format == CacheFormat::kToken128 || format == CacheFormat::kToken;
}

// A record as it is stored: real latent = latent * scale of its group, real RoPE part = rope * rope_scale.
struct StoredRecord {
  std::array<float, kMlaDim> values;
  std::array<float, kScaleGroups> scale;
  float rope_scale;
};

inline void load_record(const std::uint8_t* record, CacheFormat format, float cache_scale, StoredRecord& loaded) {
  const auto bf16_at = [&](std::int64_t byte) {
    std::uint16_t code;
    std::memcpy(&code, record + byte, sizeof code);
    return bf16_to_float(code);
  };
  loaded.scale.fill(1.0f);
  loaded.rope_scale = 1.0f;
  if (format == CacheFormat::kBF16) {
    for (std::int64_t i = 0; i < kMlaDim; ++i) loaded.values[i] = bf16_at(2 * i);
    return;
  }
  const std::int64_t codes = has_record_scales(format) ? kLatentDim : kMlaDim;
  for (std::int64_t i = 0; i < codes; ++i) loaded.values[i] = e4m3_to_float(record[i]);
  if (has_record_scales(format)) {
    std::memcpy(loaded.scale.data(), record + kRecordScaleOffset, sizeof loaded.scale);
    // The four are equal in kToken; readers of that format look at the first.
    if (format == CacheFormat::kToken) loaded.scale.fill(loaded.scale[0]);
    for (std::int64_t i = 0; i < kRopeDim; ++i) loaded.values[kLatentDim + i] = bf16_at(kRecordRopeOffset + 2 * i);
  } else {
    loaded.scale.fill(cache_scale);
    loaded.rope_scale = cache_scale;
  }
}

}  // namespace fp8attn::cpu
