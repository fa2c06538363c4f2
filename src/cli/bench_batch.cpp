#include "cli/bench_batch.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <random>
#include <vector>

#include "cli/bench_data.h"
#include "cli/mla_study.h"
#include "cli/reference.h"

namespace fp8attn::cli {
namespace {

using Integers = std::vector<std::int64_t>;

// 0 and the sum up to each.
Integers starts_of(const Integers& lengths) {
  Integers starts{0};
  for (const std::int64_t length : lengths) starts.push_back(starts.back() + length);
  return starts;
}

DeviceTensor int32_tensor(const Integers& values, std::vector<std::int64_t> shape, Device device) {
  HostTensor tensor(DType::kI32, std::move(shape));
  std::ranges::copy(values, reinterpret_cast<std::int32_t*>(tensor.bytes.data()));
  return DeviceTensor::copy_of(tensor, device);
}

// Rows of `count` elements each, one after the other from row 0 of an endless repetition of `tile`.
class RepeatedRows {
 public:
  RepeatedRows(HostTensor tile, std::int64_t count) : tile_(std::move(tile)), count_(count) {}
  const HostTensor& tile() const { return tile_; }

  void copy(std::int64_t row, std::byte* target) const {
    const auto size = static_cast<std::size_t>(size_of(tile_.dtype));
    for (std::int64_t i = 0; i < count_;) {
      const std::int64_t at = (row * count_ + i) % tile_.count(), part = std::min(count_ - i, tile_.count() - at);
      std::memcpy(target + i * size, tile_.bytes.data() + at * size, part * size);
      i += part;
    }
  }

 private:
  HostTensor tile_;
  std::int64_t count_;
};

class Batch : public BenchSubject {
 public:
  Batch(const BenchCase& item, const AttentionOptions& options)
      : item_(item),
        options_(options),
        device_(options.device),
        lengths_(item.kv_lengths()),
        q_rows_(random_tile(item.dtype, 1), item.heads_q * item.head_dim_qk),
        k_rows_(random_tile(item.kv_dtype, 2), item.heads_kv * item.head_dim_qk),
        v_rows_(random_tile(item.kv_dtype, 3), item.heads_kv * item.head_dim_v) {
    options_.causal = item.causal;
    options_.window_left = item.window_left;
    make_queries();
    make_keys();
    make_scales();
    problem_.causal = item.causal;
    problem_.window_left = item.window_left;
    problem_.p_mode = item.p_mode;
    problem_.cpu_arithmetic = options.arithmetic;
  }

  Support support() const { return supports(problem_); }
  void allocate_workspace() { workspace_ = DeviceWorkspace(device_, workspace_size(problem_)); }
  void launch() override { prefill(problem_, workspace_.get()); }
  HostTensor out() const override { return out_.to_host(); }
  DType out_dtype() const override { return problem_.out.dtype; }
  std::string version() const override { return ""; }
  std::optional<double> error() const override;

 private:
  void make_queries();
  void make_keys();
  void make_table();
  void make_scales();
  std::int64_t kv_row(std::int64_t sequence, std::int64_t token) const;
  Layer sequence(std::int64_t index) const;

  BenchCase item_;
  AttentionOptions options_;
  Device device_;
  Integers lengths_, q_starts_, kv_starts_;  // starts: the first row of each sequence
  Integers table_;
  std::int64_t max_pages_ = 0, pages_ = 0;
  RepeatedRows q_rows_, k_rows_, v_rows_;
  DeviceTensor q_, k_, v_, out_, lse_, q_offsets_, kv_offsets_, kv_lengths_, block_table_, q_scale_, kv_scale_;
  DeviceWorkspace workspace_;
  PrefillProblem problem_;
};

void Batch::make_queries() {
  Integers q_lengths;
  for (const std::int64_t length : lengths_) q_lengths.push_back(item_.q_length(length));
  q_starts_ = starts_of(q_lengths);
  const bool ragged = item_.layout == BatchLayout::kRagged || item_.lengths == Lengths::kLogUniform;
  const std::int64_t b = item_.batch, s = item_.seqlen_q, h = item_.heads_q, total = q_starts_.back();
  const auto shape = [&](std::int64_t channels) {
    return ragged ? std::vector{total, h, channels} : std::vector{b, s, h, channels};
  };
  q_ = DeviceTensor(device_, item_.dtype, shape(item_.head_dim_qk));
  fill(q_, q_rows_.tile());
  out_ = DeviceTensor(device_, item_.dtype == DType::kE4M3 ? DType::kBF16 : item_.dtype, shape(item_.head_dim_v));
  lse_ = DeviceTensor(device_, DType::kF32, ragged ? std::vector{h, total} : std::vector{b, h, s});
  problem_.q = q_.view();
  problem_.out = out_.view();
  problem_.lse = lse_.view();
  if (!ragged) return;
  q_offsets_ = int32_tensor(q_starts_, {b + 1}, device_);
  problem_.q_offsets = q_offsets_.view();
}

// A packed V is made of a row-major one, so that sequence() finds its tokens in the rows of that.
void Batch::make_keys() {
  kv_starts_ = starts_of(lengths_);
  std::vector<std::int64_t> tokens = {item_.batch, item_.seqlen_kv};
  if (item_.layout == BatchLayout::kRagged) {
    tokens = {kv_starts_.back()};
    kv_offsets_ = int32_tensor(kv_starts_, {item_.batch + 1}, device_);
    problem_.kv_offsets = kv_offsets_.view();
  } else if (item_.layout == BatchLayout::kPaged) {
    make_table();
    tokens = {pages_, item_.page_size};
  }
  const auto make = [&](std::int64_t channels, const RepeatedRows& rows) {
    std::vector<std::int64_t> shape = tokens;
    shape.insert(shape.end(), {item_.heads_kv, channels});
    DeviceTensor tensor(device_, item_.kv_dtype, shape);
    fill(tensor, rows.tile());
    return tensor;
  };
  k_ = make(item_.head_dim_qk, k_rows_);
  v_ = make(item_.head_dim_v, v_rows_);
  if (item_.v_layout == VLayout::kPacked) {
    const DeviceTensor packed(device_, DType::kE4M3,
                              {tokens[0], item_.heads_kv, item_.head_dim_v, packed_length(tokens[1])});
    pack_v(v_.view(), packed.view());
    v_ = packed;
    problem_.v_layout = VLayout::kPacked;
  }
  problem_.k = k_.view();
  problem_.v = v_.view();
}

void Batch::make_table() {
  max_pages_ = (item_.seqlen_kv + item_.page_size - 1) / item_.page_size;
  const auto pages_of = [&](std::int64_t length) { return (length + item_.page_size - 1) / item_.page_size; };
  for (const std::int64_t length : lengths_) pages_ += pages_of(length);
  Integers order(pages_);
  std::iota(order.begin(), order.end(), 0);
  std::mt19937 generator(5);
  std::shuffle(order.begin(), order.end(), generator);
  table_.assign(item_.batch * max_pages_, -1);
  auto next = order.begin();
  for (std::int64_t i = 0; i < item_.batch; ++i) {
    const auto end = next + pages_of(lengths_[i]);
    std::copy(next, end, table_.begin() + i * max_pages_);
    next = end;
  }
  block_table_ = int32_tensor(table_, {item_.batch, max_pages_}, device_);
  kv_lengths_ = int32_tensor(lengths_, {item_.batch}, device_);
  problem_.block_table = block_table_.view();
  problem_.kv_lengths = kv_lengths_.view();
}

void Batch::make_scales() {
  if (item_.kv_dtype != DType::kE4M3) return;
  kv_scale_ = DeviceTensor::copy_of(ones(item_.heads_kv), device_);
  problem_.k_scale = problem_.v_scale = kv_scale_.view();
  if (item_.dtype != DType::kE4M3) return;
  q_scale_ = DeviceTensor::copy_of(ones(item_.heads_q), device_);
  problem_.q_scale = q_scale_.view();
}

std::int64_t Batch::kv_row(std::int64_t sequence, std::int64_t token) const {
  if (item_.layout != BatchLayout::kPaged) return kv_starts_[sequence] + token;
  return table_[sequence * max_pages_ + token / item_.page_size] * item_.page_size + token % item_.page_size;
}

// One sequence as a dense layer of the query's dtype, which holds every e4m3 value.
Layer Batch::sequence(std::int64_t index) const {
  const std::int64_t queries = item_.q_length(lengths_[index]), keys = lengths_[index];
  const auto gather = [&](DType dtype, std::vector<std::int64_t> shape, const RepeatedRows& rows, auto row_of) {
    HostTensor tensor(dtype, std::move(shape));
    const std::size_t pitch = tensor.bytes.size() / static_cast<std::size_t>(tensor.shape[1]);
    for (std::int64_t i = 0; i < tensor.shape[1]; ++i) rows.copy(row_of(i), tensor.bytes.data() + i * pitch);
    return tensor;
  };
  const auto key_row = [&](std::int64_t token) { return kv_row(index, token); };
  const auto query_row = [&](std::int64_t token) { return q_starts_[index] + token; };
  Layer layer;
  layer.q = gather(item_.dtype, {1, queries, item_.heads_q, item_.head_dim_qk}, q_rows_, query_row);
  layer.k = gather(item_.kv_dtype, {1, keys, item_.heads_kv, item_.head_dim_qk}, k_rows_, key_row);
  layer.v = gather(item_.kv_dtype, {1, keys, item_.heads_kv, item_.head_dim_v}, v_rows_, key_row);
  if (item_.kv_dtype != item_.dtype) {
    layer.k = convert(layer.k, item_.dtype);
    layer.v = convert(layer.v, item_.dtype);
  }
  return layer;
}

// A few rows of the shortest, the median and the longest sequence.
std::optional<double> Batch::error() const {
  Integers order(lengths_.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, {}, [&](std::int64_t i) { return lengths_[i]; });
  Integers chosen = {order.front(), order[order.size() / 2], order.back()};
  std::ranges::sort(chosen);
  chosen.erase(std::ranges::unique(chosen).begin(), chosen.end());
  HostTensor exact(DType::kF32, {0}), got(out_dtype(), {0});
  const std::int64_t row_elements = item_.heads_q * item_.head_dim_v;
  for (const std::int64_t index : chosen) {
    const auto rows = sample_rows(item_.q_length(lengths_[index]), 8, 4, 2);
    for (const Reference::Part& part : exact_attention(sequence(index), options_, rows).parts) {
      exact.bytes.insert(exact.bytes.end(), part.out.bytes.begin(), part.out.bytes.end());
      const HostTensor found =
          out_.elements_to_host((q_starts_[index] + part.rows.begin) * row_elements, part.out.count());
      got.bytes.insert(got.bytes.end(), found.bytes.begin(), found.bytes.end());
      exact.shape[0] = got.shape[0] += found.count();
    }
  }
  return relative_l2(convert(got, DType::kF32), exact);
}

}  // namespace

Preparation prepare_batch(const BenchCase& item, const AttentionOptions& options) {
  auto batch = std::make_unique<Batch>(item, options);
  if (const Support support = batch->support(); !support) {
    return {nullptr, fmt::format("{}", fmt::join(support.reasons, "; "))};
  }
  batch->allocate_workspace();
  return {std::move(batch), ""};
}

}  // namespace fp8attn::cli
