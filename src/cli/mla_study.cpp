#include "cli/mla_study.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <numbers>
#include <numeric>
#include <utility>
#include <vector>

#include "cli/device.h"
#include "fp8attn/e4m3.h"

namespace fp8attn::cli {
namespace {

constexpr std::array kDataSets = {MlaDataSet::kNormal,    MlaDataSet::kOutliers, MlaDataSet::kLargeRope,
                                  MlaDataSet::kRopeRules, MlaDataSet::kSmall,    MlaDataSet::kMean};

constexpr std::array kStorages = {
    MlaStorage{"bf16", CacheFormat::kBF16},
    MlaStorage{"tensor", CacheFormat::kTensor},
    MlaStorage{"tensor, rotated", CacheFormat::kTensor, false, true},
    MlaStorage{"page", CacheFormat::kToken, true},
    MlaStorage{"page, rotated", CacheFormat::kToken, true, true},
    MlaStorage{"token", CacheFormat::kToken},
    MlaStorage{"token, rotated", CacheFormat::kToken, false, true},
    MlaStorage{"token128", CacheFormat::kToken128},
    MlaStorage{"token128, rotated", CacheFormat::kToken128, false, true},
};

float* floats(HostTensor& tensor) { return reinterpret_cast<float*>(tensor.bytes.data()); }
const float* floats(const HostTensor& tensor) { return reinterpret_cast<const float*>(tensor.bytes.data()); }

// 64 bits that look random, of a seed and a position (the finaliser of splitmix64).
std::uint64_t random_bits(std::uint64_t seed, std::uint64_t position) {
  std::uint64_t x = (seed << 48) + position * 0x9E3779B97F4A7C15u;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}

// Standard normal (Box and Muller), from the two halves of 64 random bits. Every one of millions has to be independent:
// what repeats does not average out.
float random_normal(std::uint64_t seed, std::uint64_t position) {
  const std::uint64_t bits = random_bits(seed, position);
  const float radius = (static_cast<float>(bits >> 40) + 0.5f) * 0x1p-24f;
  const float angle = static_cast<float>(bits & 0xFFFFFFu) * 0x1p-24f;
  return std::sqrt(-2.0f * std::log(radius)) * std::cos(2.0f * std::numbers::pi_v<float> * angle);
}

HostTensor normal_rows(std::vector<std::int64_t> shape, std::uint64_t seed) {
  HostTensor rows(DType::kF32, std::move(shape));
#pragma omp parallel for
  for (std::int64_t i = 0; i < rows.count(); ++i) floats(rows)[i] = random_normal(seed, i);
  return rows;
}

void shape_token(MlaDataSet data, float* token) {
  const bool large = data == MlaDataSet::kLargeRope || data == MlaDataSet::kRopeRules;
  for (std::int64_t c = 0; c < kMlaDim; ++c) {
    if (large && c >= kLatentDim) token[c] *= 30.0f;
    if (data == MlaDataSet::kSmall && c < kLatentDim) token[c] *= 0.02f;
    if (data == MlaDataSet::kMean && c < kLatentDim) token[c] += 0.5f;
  }
}

std::int64_t pages_of(std::int64_t tokens) { return (tokens + kStudyPage - 1) / kStudyPage; }

float largest(const float* values, std::int64_t count) {
  float amax = 0.0f;
  for (std::int64_t i = 0; i < count; ++i) amax = std::max(amax, std::abs(values[i]));
  return amax;
}

// The one that brings the sum of the magnitudes to between 64 and 128 (mla_decode.h).
float power_of_two_scale(const float* values, std::int64_t count) {
  float sum = 0.0f;
  for (std::int64_t i = 0; i < count; ++i) sum += std::abs(values[i]);
  return std::exp2(std::ceil(std::log2(sum)) - 7.0f);
}

// The RoPE part goes through e4m3 and back: a bf16 record holds that but for 2^-9 of it.
void write_page(const float* tokens, std::int64_t count, std::byte* records) {
  const float scale = largest(tokens, count * kMlaDim) / kE4M3Max;
  const std::array<float, 4> scales = {scale, scale, scale, scale};
  for (std::int64_t t = 0; t < count; ++t) {
    auto* record = reinterpret_cast<std::uint8_t*>(records + t * record_bytes(CacheFormat::kToken));
    HostTensor rope(DType::kF32, {kRopeDim});
    for (std::int64_t c = 0; c < kMlaDim; ++c) {
      const std::uint8_t code = e4m3_from_float(tokens[t * kMlaDim + c] / scale);
      if (c < kLatentDim) record[c] = code;
      if (c >= kLatentDim) floats(rope)[c - kLatentDim] = e4m3_to_float(code) * scale;
    }
    std::memcpy(record + kRecordScaleOffset, scales.data(), sizeof scales);
    const HostTensor codes = convert(rope, DType::kBF16);
    std::memcpy(record + kRecordRopeOffset, codes.bytes.data(), codes.bytes.size());
  }
}

HostTensor rotated(const HostTensor& rows) {
  HostTensor result = rows;
  const std::int64_t count = rows.count() / kMlaDim;
  const auto view = MutableTensorView::contiguous(result.bytes.data(), DType::kBF16, {1, 1, count, kMlaDim});
  rotate_rope(view, view);
  return result;
}

void append_all(const MlaTensors& tensors, StoredMla* stored) {
  std::vector<std::int64_t> slots(tensors.count());
  std::iota(slots.begin(), slots.end(), 0);
  AppendMlaProblem problem;
  problem.latent = tensors.tokens.view();
  problem.latent.shape[1] = kLatentDim;
  problem.rope = tensors.tokens.view();
  problem.rope.data = tensors.tokens.bytes.data() + 2 * kLatentDim;
  problem.rope.shape[1] = kRopeDim;
  problem.slots = TensorView::contiguous(slots.data(), DType::kI64, {tensors.count()});
  problem.cache = stored->cache.mutable_view();
  problem.format = stored->storage->format;
  problem.rotate_rope = stored->storage->rotated;
  if (problem.format == CacheFormat::kTensor) problem.cache_scale = stored->scale.view();
  append_mla(problem);
}

// Memory on the device and the problem that reads it.
struct Decoding {
  Decoding(const StoredMla& stored, const AttentionOptions& options)
      : q(DeviceTensor::copy_of(stored.q, options.device)),
        cache(DeviceTensor::copy_of(stored.cache, options.device)),
        scale(DeviceTensor::copy_of(stored.scale, options.device)),
        out(options.device, options.device.kind == DeviceKind::kCpu ? DType::kF32 : DType::kBF16,
            {1, 1, kStudyHeads, kLatentDim}) {
    const std::int64_t pages = stored.cache.shape[0];
    HostTensor pages_in_order(DType::kI64, {1, pages}), length(DType::kI64, {1});
    auto* entries = reinterpret_cast<std::int64_t*>(pages_in_order.bytes.data());
    std::iota(entries, entries + pages, 0);
    std::memcpy(length.bytes.data(), &stored.tokens, sizeof stored.tokens);
    table = DeviceTensor::copy_of(pages_in_order, options.device);
    lengths = DeviceTensor::copy_of(length, options.device);
    problem.q = q.view();
    problem.cache = cache.view();
    problem.out = out.view();
    problem.format = stored.storage->format;
    problem.block_table = table.view();
    problem.lengths = lengths.view();
    if (problem.format == CacheFormat::kTensor) problem.cache_scale = scale.view();
    problem.cpu_arithmetic = options.arithmetic;
  }

  DeviceTensor q, cache, scale, out, table, lengths;
  MlaDecodeProblem problem;
};

}  // namespace

std::span<const MlaDataSet> mla_data_sets() { return kDataSets; }

const char* name_of(MlaDataSet data) {
  switch (data) {
    case MlaDataSet::kNormal: return "normal";
    case MlaDataSet::kOutliers: return "outliers";
    case MlaDataSet::kLargeRope: return "large RoPE";
    case MlaDataSet::kRopeRules: return "RoPE decides";
    case MlaDataSet::kSmall: return "small";
    case MlaDataSet::kMean: return "mean 0.5";
  }
  return "?";
}

MlaTensors mla_tensors(MlaDataSet data, std::int64_t tokens) {
  HostTensor q = normal_rows({1, 1, kStudyHeads, kMlaDim}, 1);
  HostTensor values = normal_rows({tokens, kMlaDim}, 2);
  for (std::int64_t t = 0; t < tokens; ++t) shape_token(data, floats(values) + t * kMlaDim);
  for (std::int64_t i = 0; data == MlaDataSet::kOutliers && i < values.count() / 1000; ++i) {
    floats(values)[random_bits(3, i) % values.count()] += 10.0f * random_normal(4, i);
  }
  for (std::int64_t i = 0; data == MlaDataSet::kLargeRope && i < q.count(); ++i) {
    if (i % kMlaDim >= kLatentDim) floats(q)[i] /= 30.0f;
  }
  return {convert(q, DType::kBF16), convert(values, DType::kBF16)};
}

std::span<const MlaStorage> mla_storages() { return kStorages; }

StoredMla store_mla(const MlaTensors& tensors, const MlaStorage& storage) {
  const std::int64_t pages = pages_of(tensors.count());
  StoredMla stored{
      .storage = &storage,
      .q = storage.rotated ? rotated(tensors.q) : tensors.q,
      .cache = HostTensor(record_dtype(storage.format), {pages, kStudyPage, record_elements(storage.format)}),
      .scale = HostTensor(DType::kF32, {1}),
      .tokens = tensors.count()};
  if (storage.page || storage.format == CacheFormat::kTensor) {
    const HostTensor values = convert(storage.rotated ? rotated(tensors.tokens) : tensors.tokens, DType::kF32);
    floats(stored.scale)[0] = largest(floats(values), values.count()) / kE4M3Max;
    for (std::int64_t page = 0; storage.page && page < pages; ++page) {
      const std::int64_t first = page * kStudyPage;
      write_page(floats(values) + first * kMlaDim, std::min(kStudyPage, tensors.count() - first),
                 stored.cache.bytes.data() + first * record_bytes(storage.format));
    }
  }
  if (!storage.page) append_all(tensors, &stored);
  return stored;
}

StoredMla with_rounded_query(StoredMla stored) {
  if (stored.storage->format == CacheFormat::kBF16) return stored;
  HostTensor q = convert(stored.q, DType::kF32);
  const std::int64_t channels = stored.storage->format == CacheFormat::kTensor ? kMlaDim : kLatentDim;
  for (std::int64_t head = 0; head < kStudyHeads; ++head) {
    float* row = floats(q) + head * kMlaDim;
    const float scale = channels == kMlaDim ? largest(row, channels) / kE4M3Max : power_of_two_scale(row, channels);
    for (std::int64_t c = 0; c < channels; ++c) row[c] = e4m3_to_float(e4m3_from_float(row[c] / scale)) * scale;
  }
  stored.q = convert(q, DType::kBF16);
  return stored;
}

Support supports_mla(const StoredMla& stored, const AttentionOptions& options) {
  return supports(Decoding(stored, options).problem);
}

HostTensor decode_mla(const StoredMla& stored, const AttentionOptions& options) {
  const Decoding decoding(stored, options);
  const DeviceWorkspace workspace(options.device, workspace_size(decoding.problem));
  mla_decode(decoding.problem, workspace.get());
  return convert(decoding.out.to_host(), DType::kF32);
}

double relative_l2(const HostTensor& out, const HostTensor& exact) {
  double error2 = 0, exact2 = 0;
  for (std::int64_t i = 0; i < exact.count(); ++i) {
    const double want = floats(exact)[i];
    error2 += (floats(out)[i] - want) * (floats(out)[i] - want);
    exact2 += want * want;
  }
  return std::sqrt(error2 / exact2);
}

}  // namespace fp8attn::cli
