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

constexpr std::int64_t kTileTokens = 64 * 256;  // a multiple of every page size that is a power of two

std::int64_t* integers(HostTensor& tensor) { return reinterpret_cast<std::int64_t*>(tensor.bytes.data()); }

std::int64_t pages_of(const MlaBenchCase& item) { return (item.tokens + item.page_size - 1) / item.page_size; }

// One cache of `tokens` random tokens in rows of records.
HostTensor random_records(CacheFormat format, std::int64_t tokens, const HostTensor& scale) {
  const HostTensor values = random_normal({tokens, kMlaDim}, DType::kBF16, 2);
  HostTensor records(record_dtype(format), {1, tokens, record_elements(format)});
  std::vector<std::int64_t> slots(tokens);
  std::iota(slots.begin(), slots.end(), 0);
  for (std::int64_t first = 0; first < tokens; first += kMaxPageSize) {
    const std::int64_t count = std::min(kMaxPageSize, tokens - first);
    AppendMlaProblem problem;
    problem.latent = values.view();
    problem.latent.data = values.bytes.data() + first * kMlaDim * 2;
    problem.latent.shape = {count, kLatentDim};
    problem.rope = problem.latent;
    problem.rope.data = values.bytes.data() + (first * kMlaDim + kLatentDim) * 2;
    problem.rope.shape = {count, kRopeDim};
    problem.slots = TensorView::contiguous(slots.data(), DType::kI64, {count});
    problem.cache = MutableTensorView::contiguous(records.bytes.data() + first * record_bytes(format),
                                                  record_dtype(format), {1, count, record_elements(format)});
    problem.format = format;
    if (format == CacheFormat::kTensor) problem.cache_scale = scale.view();
    append_mla(problem);
  }
  return records;
}

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
  tile_ = random_records(item.format, std::min(kTileTokens, item.batch * pages_of(item) * item.page_size), scale_host_);
  fill(cache_, tile_);
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
  // Tokens of the sequence at random.
  indices_host_ = HostTensor(DType::kI32, {item_.batch, item_.seqlen_q, item_.topk});
  auto* indices = reinterpret_cast<std::int32_t*>(indices_host_.bytes.data());
  for (std::int64_t i = 0; i < indices_host_.count(); ++i) {
    const std::int64_t batch = i / item_.topk / item_.seqlen_q, token = generator() % item_.tokens;
    const std::int64_t page = integers(table_host_)[batch * pages + token / item_.page_size];
    indices[i] = static_cast<std::int32_t>(page * item_.page_size + token % item_.page_size);
  }
  indices_ = DeviceTensor::copy_of(indices_host_, options_.device);
}

void MlaBenchCall::allocate_workspace() { workspace_ = DeviceWorkspace(options_.device, workspace_size(problem_)); }

double MlaBenchCall::error() const {
  MlaDecodeProblem exact = problem_;
  const HostTensor cache = cache_.to_host();
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
    exact.indices = first(indices_host_);
  } else {
    exact.block_table = first(table_host_);
    exact.lengths = first(lengths_host_);
  }
  if (item_.format == CacheFormat::kTensor) exact.cache_scale = scale_host_.view();
  exact.cpu_arithmetic = CpuArithmetic::kFloat64;
  mla_decode(exact);
  return relative_l2(convert(out_.to_host(), DType::kF32), out);
}

}  // namespace fp8attn::cli
