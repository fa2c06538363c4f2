#include "cli/bench_mla_cases.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <random>

#include "cli/bench_data.h"
#include "cli/mla_study.h"

namespace fp8attn::cli {
namespace {

constexpr std::int64_t kTileTokens = 64 * 256;  // different ones; a multiple of every page size in use

std::int64_t* integers(HostTensor& tensor) { return reinterpret_cast<std::int64_t*>(tensor.bytes.data()); }
const std::int64_t* integers(const HostTensor& tensor) {
  return reinterpret_cast<const std::int64_t*>(tensor.bytes.data());
}

std::int64_t pages_of(const MlaBenchCase& item) { return (item.tokens + item.page_size - 1) / item.page_size; }

}  // namespace

std::vector<std::int64_t> MlaBenchCase::lengths() const {
  std::vector<std::int64_t> result(batch, tokens);
  for (std::int64_t i = 0; uneven && i < batch; ++i)
    result[i] = tokens / 8 + (tokens - tokens / 8) * (i * 37 % batch) / batch;
  return result;
}

double MlaBenchCase::seen_tokens() const {
  double seen = 0;
  for (std::int64_t length : lengths()) {
    seen += static_cast<double>(seqlen_q * (topk > 0 ? std::min(topk, length) : length));
  }
  return seen;
}

double MlaBenchCase::flop() const {
  return seen_tokens() * 2.0 * static_cast<double>(heads_q * (kMlaDim + kLatentDim));
}

double MlaBenchCase::bytes() const {
  const double records = topk > 0 ? seen_tokens() : seen_tokens() / static_cast<double>(seqlen_q);
  const auto rows = static_cast<double>(batch * seqlen_q * heads_q);
  return records * static_cast<double>(record_bytes(format)) + rows * 2.0 * static_cast<double>(kMlaDim + kLatentDim);
}

std::string MlaBenchCase::name() const {
  std::string name = fmt::format("{} b{} h{} s{} t{}", name_of(format), batch, heads_q, seqlen_q, tokens);
  if (topk > 0) name += fmt::format(" topk{}", topk);
  if (uneven) name += " uneven";
  if (page_size != 64) name += fmt::format(" page{}", page_size);
  return name;
}

std::vector<MlaBenchCase> mla_bench_cases(DeviceKind device) {
  using enum CacheFormat;
  if (device == DeviceKind::kCpu) {
    return {{.format = kBF16, .batch = 2, .heads_q = 16, .tokens = 1024},
            {.format = kToken128, .batch = 2, .heads_q = 16, .tokens = 1024},
            {.format = kToken, .batch = 2, .heads_q = 16, .seqlen_q = 2, .tokens = 1024},
            {.format = kToken128, .batch = 2, .heads_q = 16, .tokens = 1024, .topk = 256}};
  }
  std::vector<MlaBenchCase> cases;
  for (CacheFormat format : {kBF16, kTensor, kToken128, kToken}) {
    for (std::int64_t tokens : {4096, 32768}) {
      for (std::int64_t heads : {128, 64, 16}) {
        cases.push_back({.format = format, .batch = 128, .heads_q = heads, .tokens = tokens});
      }
      cases.push_back({.format = format, .batch = 128, .seqlen_q = 2, .tokens = tokens});
      cases.push_back({.format = format, .batch = 1, .tokens = tokens});
    }
    cases.push_back({.format = format, .batch = 16, .tokens = 32768});
    cases.push_back({.format = format, .batch = 128, .tokens = 32768, .uneven = true});
    cases.push_back({.format = format, .batch = 128, .tokens = 4096, .page_size = 16});
    if (format != kTensor) cases.push_back({.format = format, .batch = 128, .tokens = 32768, .topk = 2048});
  }
  return cases;
}

MlaBenchCall::MlaBenchCall(const MlaBenchCase& item, const AttentionOptions& options)
    : item_(item),
      options_(options),
      q_host_(random_normal({item.batch, item.seqlen_q, item.heads_q, kMlaDim}, DType::kBF16, 1)),
      scale_host_(DType::kF32, {1}),
      q_(DeviceTensor::copy_of(q_host_, options.device)),
      cache_(options.device, record_dtype(item.format),
             {item.batch * pages_of(item), item.page_size, record_elements(item.format)}),
      out_(options.device, DType::kBF16, {item.batch, item.seqlen_q, item.heads_q, kLatentDim}) {
  constexpr float kScale = 5.0f / 448.0f;  // no random value is far beyond 5
  std::memcpy(scale_host_.bytes.data(), &kScale, sizeof kScale);
  scale_ = DeviceTensor::copy_of(scale_host_, options.device);
  fill_cache();
  make_tables();
  problem_.q = q_.view();
  problem_.cache = cache_.view();
  problem_.out = out_.view();
  problem_.format = item.format;
  if (item.topk > 0) {
    problem_.indices = indices_.view();
  } else {
    problem_.block_table = table_.view();
    problem_.lengths = lengths_.view();
    problem_.causal = item.seqlen_q > 1;
  }
  if (item.format == CacheFormat::kTensor) problem_.cache_scale = scale_.view();
  problem_.cpu_arithmetic = options.arithmetic;
}

// On the device: caches of gigabytes take it milliseconds.
void MlaBenchCall::fill_cache() {
  const MutableTensorView cache = cache_.view();
  const std::int64_t tokens = cache.shape[0] * item_.page_size, tile = std::min(kTileTokens, tokens);
  const auto values = DeviceTensor::copy_of(random_normal({tile, kMlaDim}, DType::kBF16, 2), options_.device);
  HostTensor slots_host(DType::kI64, {tile});
  std::iota(integers(slots_host), integers(slots_host) + tile, 0);
  const auto slots = DeviceTensor::copy_of(slots_host, options_.device);
  AppendMlaProblem problem;
  problem.format = item_.format;
  if (item_.format == CacheFormat::kTensor) problem.cache_scale = scale_.view();
  for (std::int64_t first = 0; first < tokens; first += tile) {
    const std::int64_t count = std::min(tile, tokens - first);
    problem.latent = values.view();
    problem.latent.shape[0] = count;
    problem.rope = problem.latent;
    problem.latent.shape[1] = kLatentDim;
    problem.rope.shape[1] = kRopeDim;
    problem.rope.data = static_cast<const std::byte*>(problem.rope.data) + kLatentDim * size_of(DType::kBF16);
    problem.slots = slots.view();
    problem.slots.shape[0] = count;
    problem.cache = cache;
    problem.cache.data = static_cast<std::byte*>(cache.data) + first * record_bytes(item_.format);
    problem.cache.shape[0] = count / item_.page_size;
    append_mla(problem);
  }
}

void MlaBenchCall::make_tables() {
  const std::int64_t pages = pages_of(item_);
  table_host_ = HostTensor(DType::kI64, {item_.batch, pages});
  lengths_host_ = HostTensor(DType::kI64, {item_.batch});
  std::iota(integers(table_host_), integers(table_host_) + item_.batch * pages, 0);
  std::mt19937 generator(3);
  std::shuffle(integers(table_host_), integers(table_host_) + item_.batch * pages, generator);
  std::ranges::copy(item_.lengths(), integers(lengths_host_));
  table_ = DeviceTensor::copy_of(table_host_, options_.device);
  lengths_ = DeviceTensor::copy_of(lengths_host_, options_.device);
  if (item_.topk == 0) return;
  HostTensor indices(DType::kI32, {item_.batch, item_.seqlen_q, item_.topk});
  chosen_.resize(indices.count());
  for (std::int64_t i = 0; i < indices.count(); ++i) {
    chosen_[i] = generator() % item_.tokens;
    const std::int64_t batch = i / item_.topk / item_.seqlen_q;
    const std::int64_t page = integers(table_host_)[batch * pages + chosen_[i] / item_.page_size];
    reinterpret_cast<std::int32_t*>(indices.bytes.data())[i] =
        static_cast<std::int32_t>(page * item_.page_size + chosen_[i] % item_.page_size);
  }
  indices_ = DeviceTensor::copy_of(indices, options_.device);
}

void MlaBenchCall::allocate_workspace() { workspace_ = DeviceWorkspace(options_.device, workspace_size(problem_)); }

// The pages of the first sequence, in their order.
HostTensor MlaBenchCall::first_sequence() const {
  const std::int64_t pages = pages_of(item_);
  HostTensor cache(record_dtype(item_.format), {pages, item_.page_size, record_elements(item_.format)});
  const std::size_t bytes = cache.bytes.size() / pages;
  for (std::int64_t i = 0; i < pages; ++i) {
    const HostTensor page = cache_.to_host(integers(table_host_)[i], 1);
    std::memcpy(cache.bytes.data() + i * bytes, page.bytes.data(), bytes);
  }
  return cache;
}

double MlaBenchCall::error() const {
  MlaDecodeProblem exact = problem_;
  const HostTensor cache = first_sequence();
  const std::int64_t pages = cache.shape[0];
  // The same table and indices for these pages alone.
  HostTensor table(DType::kI64, {1, pages});
  std::iota(integers(table), integers(table) + pages, 0);
  HostTensor indices(DType::kI64, {1, item_.seqlen_q, item_.topk});
  std::copy_n(chosen_.begin(), indices.count(), integers(indices));
  HostTensor out(DType::kF32, {1, item_.seqlen_q, item_.heads_q, kLatentDim});
  const auto first = [](const HostTensor& tensor) {
    TensorView view = tensor.view();
    view.shape[0] = 1;
    return view;
  };
  exact.q = first(q_host_);
  exact.cache = cache.view();
  exact.out = out.mutable_view();
  if (item_.topk > 0) {
    exact.indices = indices.view();
  } else {
    exact.block_table = table.view();
    exact.lengths = first(lengths_host_);
  }
  if (item_.format == CacheFormat::kTensor) exact.cache_scale = scale_host_.view();
  exact.cpu_arithmetic = CpuArithmetic::kFloat64;
  mla_decode(exact);
  return relative_l2(convert(out_.to_host(0, 1), DType::kF32), out);
}

}  // namespace fp8attn::cli
