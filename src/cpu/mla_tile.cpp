#include "cpu/mla_tile.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>
#include <span>

#include "cpu/tile_common.h"

namespace fp8attn::cpu {
namespace {

// Off a power of two, so that the transposed store of K does not hit the same few cache sets again and again.
constexpr std::int64_t kKeyStride = kStepTokens + kColumnBlock;

// The largest weight of a row in a step becomes this e4m3 number.
constexpr float kWeightTop = 256.0f;

bool is_emulated(const MlaDecodeProblem& problem) {
  return problem.cpu_arithmetic == CpuArithmetic::kEmulated || problem.cpu_arithmetic == CpuArithmetic::kEmulated13;
}

Probability probability_of(const MlaDecodeProblem& problem) {
  if (!is_emulated(problem)) return Probability::kUnrounded;
  switch (problem.format) {
    case CacheFormat::kBF16: return Probability::kBF16;
    case CacheFormat::kTensor: return Probability::kE4M3Exact;
    default: return Probability::kUnrounded;  // rounded with the token's scale in it
  }
}

// log2 of what the denominator carries.
int sum_exponent(Probability form) { return form == Probability::kE4M3Exact ? 8 : 0; }

double softmax_scale_of(const MlaDecodeProblem& problem) {
  return problem.softmax_scale ? *problem.softmax_scale : 1.0 / std::sqrt(static_cast<double>(kMlaDim));
}

float query_scale(const MlaDecodeProblem& problem, std::int64_t batch, std::int64_t token, std::int64_t head) {
  if (!problem.q_scale) return 1.0f;
  const auto* data = static_cast<const float*>(problem.q_scale->data);
  const auto& strides = problem.q_scale->strides;
  switch (problem.q_scale->rank) {
    case 0: return data[0];
    case 1: return problem.q_scale->shape[0] == 1 ? data[0] : data[head * strides[0]];
    case 2: return data[batch * strides[0] + head * strides[1]];
    default: return data[batch * strides[0] + token * strides[1] + head * strides[2]];
  }
}

void round_to_e4m3(std::span<float> values, float scale) {
  for (float& value : values) value = e4m3_to_float(e4m3_from_float(value / scale)) * scale;
}

// The scale of a query's channels that the CUDA kernels take where RoPE channels stay in bf16, else it is that of
// quantize(): a power of two, which leaves these exact, the one that brings the sum of the magnitudes to between 64 and
// 128.
float scale_by_power(std::span<const float> values) {
  float sum = 0.0f;
  for (float value : values) sum += std::abs(value);
  if (!(sum > 0.0f) || std::isinf(sum)) return 1.0f;
  int exponent;
  const float mantissa = std::frexp(sum, &exponent);  // sum = mantissa * 2^exponent, mantissa in [0.5, 1)
  return std::ldexp(1.0f, std::clamp(mantissa == 0.5f ? exponent - 1 : exponent, -93, 107) - 7);
}

}  // namespace

template <class T>
MlaTile<T>::MlaTile(const MlaDecodeProblem& problem)
    : problem_(problem),
      cache_scale_(scalar_or_one(problem.cache_scale)),
      emulated_(is_emulated(problem)),
      accumulator_13bit_(problem.cpu_arithmetic == CpuArithmetic::kEmulated13 && problem.format != CacheFormat::kBF16),
      weights_(emulated_ && has_record_scales(problem.format) ? Weights::kFolded : Weights::kExact),
      probability_(probability_of(problem)),
      exact_factor_(std::abs(softmax_scale_of(problem)) * std::numbers::log2e),
      factor_(in_range<T>(exact_factor_)),
      negate_(softmax_scale_of(problem) < 0),
      line_(kMlaDim),
      query_(kMlaTileRows * kMlaDim),
      key_(kMlaDim * kKeyStride),
      value_(kStepTokens * kLatentDim),
      score_(kMlaTileRows * kStepTokens),
      step_output_(kMlaTileRows * kLatentDim),
      output_(kMlaTileRows * kLatentDim),
      row_(kMlaTileRows) {
  position_.reserve(kStepTokens);
  if (weights_ == Weights::kExact) return;
  for (std::vector<T>& scales : scale_) scales.resize(kStepTokens);
  largest_scale_.resize(kStepTokens);
  folded_.resize(kMlaTileRows * kStepTokens);
}

template <class T>
void MlaTile<T>::attend(std::int64_t batch, int first_row, int rows) {
  batch_ = batch;
  first_row_ = first_row;
  rows_ = rows;
  padded_rows_ = (rows + kRowBlock - 1) / kRowBlock * kRowBlock;
  if (problem_.indices) {
    const auto capacity = static_cast<int>(problem_.indices->shape[2]);
    const std::int64_t token = first_row / problem_.q.shape[2];
    const auto& strides = problem_.topk_length ? problem_.topk_length->strides : problem_.indices->strides;
    length_ = capacity;
    if (problem_.topk_length) {
      length_ = clamped_length(integer_at(*problem_.topk_length, batch * strides[0] + token * strides[1]), capacity);
    }
  } else {
    const auto capacity = static_cast<int>(problem_.block_table->shape[1] * problem_.cache.shape[1]);
    length_ = clamped_length(integer_at(*problem_.lengths, batch * problem_.lengths->strides[0]), capacity);
  }
  load_queries();
  const int end = visible_end(rows - 1);
  // From the last step backwards, like prefill: the nearest tokens weigh most.
  for (int first = (end - 1) / kStepTokens * kStepTokens; end > 0 && first >= 0; first -= kStepTokens) {
    load_tokens(first, std::min(first + kStepTokens, end));
    const auto count = static_cast<int>(position_.size());
    multiply(query_.data(), kMlaDim, key_.data(), kKeyStride, score_.data(), kStepTokens, padded_rows_, kMlaDim,
             (count + kColumnBlock - 1) / kColumnBlock * kColumnBlock);
    for (int row = 0; row < rows_; ++row) {
      const auto behind = std::ranges::lower_bound(position_, visible_end(row));
      row_[row].seen = static_cast<int>(behind - position_.begin());
      softmax_step(row);
    }
    weigh_values();
    fold();
  }
  for (int row = 0; row < rows_; ++row) store(row);
}

template <class T>
int MlaTile<T>::visible_end(int row) const {
  const auto heads = static_cast<int>(problem_.q.shape[2]);
  return Mask{static_cast<int>(problem_.q.shape[1]), length_, problem_.causal}.visible_end((first_row_ + row) / heads);
}

// Negative where the sequence names none.
template <class T>
std::int64_t MlaTile<T>::slot_of(int token) const {
  if (problem_.indices) {
    const auto& strides = problem_.indices->strides;
    const std::int64_t query = first_row_ / problem_.q.shape[2];
    const std::int64_t slot =
        integer_at(*problem_.indices, batch_ * strides[0] + query * strides[1] + token * strides[2]);
    return is_among(slot, problem_.cache.shape[0] * problem_.cache.shape[1]) ? slot : -1;
  }
  const std::int64_t page_size = problem_.cache.shape[1];
  const auto& strides = problem_.block_table->strides;
  const std::int64_t page = integer_at(*problem_.block_table, batch_ * strides[0] + token / page_size * strides[1]);
  return is_among(page, problem_.cache.shape[0]) ? page * page_size + token % page_size : -1;
}

template <class T>
void MlaTile<T>::load_queries() {
  for (int row = 0; row < rows_; ++row) {
    load_query(row);
    row_[row] = {.top = -std::numeric_limits<T>::infinity(), .sum = 0, .alpha = 0, .unit = 1, .seen = 0, .empty = true};
  }
  std::fill(output_.begin(), output_.end(), T{0});
}

template <class T>
void MlaTile<T>::load_query(int row) {
  const TensorView& q = problem_.q;
  const std::int64_t token = (first_row_ + row) / q.shape[2], head = (first_row_ + row) % q.shape[2];
  const std::int64_t offset = batch_ * q.strides[0] + token * q.strides[1] + head * q.strides[2];
  unpack(static_cast<const std::uint8_t*>(q.data) + offset * size_of(q.dtype), q.dtype, line_.data(), kMlaDim);
  if (emulated_ && q.dtype == DType::kBF16 && problem_.format != CacheFormat::kBF16) {
    const bool rope_is_bf16 = has_record_scales(problem_.format);
    const std::span<float> rounded(line_.data(), rope_is_bf16 ? kLatentDim : kMlaDim);
    round_to_e4m3(rounded, rope_is_bf16 ? scale_by_power(rounded) : quantized_scale(rounded));
  }
  const T scale = query_scale(problem_, batch_, token, head);
  for (std::int64_t i = 0; i < kMlaDim; ++i) query_[row * kMlaDim + i] = line_[i] * scale;
}

template <class T>
void MlaTile<T>::load_tokens(int first, int end) {
  position_.clear();
  for (int token = first; token < end; ++token) {
    const std::int64_t slot = slot_of(token);
    if (slot < 0) continue;
    const auto i = static_cast<std::int64_t>(position_.size());
    position_.push_back(token);
    load_record(static_cast<const std::uint8_t*>(problem_.cache.data) + record_offset(problem_.cache, slot),
                problem_.format, cache_scale_, record_);
    for (std::int64_t channel = 0; channel < kLatentDim; ++channel) {
      const T stored = record_.values[channel], scale = record_.scale[channel / kGroupDim];
      key_[channel * kKeyStride + i] = stored * scale;
      value_[i * kLatentDim + channel] = weights_ == Weights::kFolded ? stored : stored * scale;
    }
    for (std::int64_t channel = kLatentDim; channel < kMlaDim; ++channel) {
      key_[channel * kKeyStride + i] = T{record_.values[channel]} * record_.rope_scale;
    }
    if (weights_ == Weights::kExact) continue;
    for (int group = 0; group < kScaleGroups; ++group) scale_[group][i] = record_.scale[group];
    largest_scale_[i] = *std::ranges::max_element(record_.scale);
  }
}

template <class T>
void MlaTile<T>::softmax_step(int row) {
  Row& state = row_[row];
  if (state.seen == 0) return;
  T* scores = &score_[row * kStepTokens];
  const T previous = state.top;
  const T top = prepare_scores(scores, nullptr, state.seen, false, negate_);
  state.top = previous > top ? previous : top;
  const T nothing = -std::numeric_limits<T>::infinity();
  state.alpha = previous == nothing ? T{0} : std::exp2((previous - state.top) * factor_);
  // A row of -infinities has no finite maximum to subtract.
  const T shift = state.top == nothing ? T{0} : state.top;
  state.sum = state.sum * state.alpha + probabilities(probability_, scores, state.seen, shift, factor_);
  state.empty = false;
}

template <class T>
void MlaTile<T>::weigh_values() {
  if (weights_ == Weights::kExact) return multiply_values(score_.data(), 0, kLatentDim);
  find_units();
  // One P serves all channels where they share a scale.
  const int groups = problem_.format == CacheFormat::kToken ? 1 : kScaleGroups;
  for (int group = 0; group < groups; ++group) {
    fold_scales(group);
    multiply_values(folded_.data(), group * kLatentDim / groups, static_cast<int>(kLatentDim / groups));
  }
}

// So that the largest weight of a row, whatever its token's scale, uses the range of e4m3.
template <class T>
void MlaTile<T>::find_units() {
  for (int row = 0; row < rows_; ++row) {
    T largest = 0;
    for (int i = 0; i < row_[row].seen; ++i) {
      largest = std::max(largest, score_[row * kStepTokens + i] * largest_scale_[i]);
    }
    row_[row].unit = largest > 0 ? largest / kWeightTop : T{1};
  }
}

template <class T>
void MlaTile<T>::fold_scales(int group) {
  for (int row = 0; row < rows_; ++row) {
    for (int i = 0; i < row_[row].seen; ++i) {
      const T weight = score_[row * kStepTokens + i] * scale_[group][i] / row_[row].unit;
      folded_[row * kStepTokens + i] = e4m3_to_float(e4m3_from_float(static_cast<float>(weight)));
    }
  }
}

// Tokens that a row does not see are not multiplied by zero but left out: their values may be NaN.
template <class T>
void MlaTile<T>::multiply_values(const T* weights, std::int64_t first_column, int columns) {
  const T* values = value_.data() + first_column;
  T* output = step_output_.data() + first_column;
  for (int first = 0; first < rows_; first += kRowBlock) {
    int shared = row_[first].seen;  // a causal mask shows later rows no less
    if constexpr (std::is_same_v<T, float>) {
      if (accumulator_13bit_) shared = 0;
    }
    multiply(&weights[first * kStepTokens], kStepTokens, values, kLatentDim, &output[first * kLatentDim], kLatentDim,
             kRowBlock, shared, columns);
    for (int row = first; row < std::min(first + kRowBlock, rows_); ++row) {
      const T* rest = &weights[row * kStepTokens + shared];
      if constexpr (std::is_same_v<T, float>) {
        if (accumulator_13bit_) {
          multiply_row_13bit(rest, values, kLatentDim, &output[row * kLatentDim], 0, row_[row].seen, columns);
          continue;
        }
      }
      multiply_add_row(rest, &values[shared * kLatentDim], kLatentDim, &output[row * kLatentDim],
                       row_[row].seen - shared, columns);
    }
  }
}

template <class T>
void MlaTile<T>::fold() {
  for (int row = 0; row < rows_; ++row) {
    if (row_[row].seen == 0) continue;
    T* output = &output_[row * kLatentDim];
    const T* step = &step_output_[row * kLatentDim];
    for (std::int64_t i = 0; i < kLatentDim; ++i) output[i] = output[i] * row_[row].alpha + step[i] * row_[row].unit;
  }
}

template <class T>
void MlaTile<T>::store(int row) {
  const std::int64_t token = (first_row_ + row) / problem_.q.shape[2], head = (first_row_ + row) % problem_.q.shape[2];
  const Row& state = row_[row];
  const double log2_top = double{state.top} * exact_factor_;
  const int exponent = sum_exponent(probability_);
  double denominator = state.sum;
  if (problem_.attention_sink) {
    const TensorView& sink = *problem_.attention_sink;
    const double logit = static_cast<const float*>(sink.data)[head * sink.strides[0]];
    denominator += std::exp2(logit * std::numbers::log2e - log2_top + exponent);
  }
  const MutableTensorView& out = problem_.out;
  const std::int64_t offset = batch_ * out.strides[0] + token * out.strides[1] + head * out.strides[2];
  for (std::int64_t channel = 0; channel < kLatentDim; ++channel) {
    const double value = state.empty ? 0 : output_[row * kLatentDim + channel] / denominator;
    store_value(out, offset + channel, static_cast<float>(value));
  }
  if (!problem_.lse) return;
  const auto& strides = problem_.lse->strides;
  const double log2_sum = std::log2(double{state.sum}) - exponent + log2_top;
  static_cast<float*>(problem_.lse->data)[batch_ * strides[0] + head * strides[1] + token * strides[2]] =
      state.empty ? -std::numeric_limits<float>::infinity() : static_cast<float>(log2_sum * std::numbers::ln2);
}

template class MlaTile<float>;
template class MlaTile<double>;

}  // namespace fp8attn::cpu
