#include "cpu/prefill_tile.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>
#include <optional>
#include <type_traits>

#include "cpu/tile_common.h"

namespace fp8attn::cpu {
namespace {

// Off a power of two, so that the transposed store of K does not hit the same few cache sets again and again.
constexpr std::int64_t kKeyStride = kStepKeys + kColumnBlock;

// log2(256): the factor of the e4m3 codes, which the denominator carries too.
constexpr int code_exponent(Probability form) { return form >= Probability::kE4M3Exact ? 8 : 0; }

constexpr std::int64_t round_up(std::int64_t value, std::int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

double base_factor_of(const PrefillProblem& problem) {
  const double scale =
      problem.softmax_scale ? *problem.softmax_scale : 1.0 / std::sqrt(static_cast<double>(problem.q.shape[3]));
  return scale * std::numbers::log2e;
}

bool is_per_token(const std::optional<TensorView>& scale) { return scale && scale->rank == 3; }

// The scale of one element, 1 where none is given. i and j are the last two of three indices: token and head for q and
// k, head and channel for v. It reads what is added to out and lse too, by batch entry, head, and channel or token.
float scale_at(const std::optional<TensorView>& scale, std::int64_t batch, std::int64_t head, std::int64_t i,
               std::int64_t j) {
  if (!scale) return 1.0f;
  const auto* data = static_cast<const float*>(scale->data);
  const auto& strides = scale->strides;
  switch (scale->rank) {
    case 0: return data[0];
    case 1: return scale->shape[0] == 1 ? data[0] : data[head * strides[0]];
    case 2: return data[batch * strides[0] + head * strides[1]];
    default: return data[batch * strides[0] + i * strides[1] + j * strides[2]];
  }
}

}  // namespace

template <class T>
Tile<T>::Tile(const PrefillProblem& problem, TileRounding rounding)
    : problem_(problem),
      rounding_(rounding),
      mask_{static_cast<int>(problem.q.shape[1]), static_cast<int>(problem.k.shape[1]), problem.causal},
      dim_qk_(problem.q.shape[3]),
      dim_v_(problem.out.shape[3]),
      padded_dim_v_(round_up(dim_v_, kColumnBlock)),
      base_factor_(base_factor_of(problem)),
      staging_(std::max<std::int64_t>({dim_qk_, dim_v_, kStepKeys})),
      line_(staging_.size()),
      query_(kTileRows * dim_qk_),
      key_(dim_qk_ * kKeyStride),
      key_scale_(is_per_token(problem.k_scale) ? kStepKeys : 0),
      value_(kStepKeys * padded_dim_v_),
      score_(kTileRows * kStepKeys),
      step_output_(kTileRows * padded_dim_v_),
      output_(kTileRows * padded_dim_v_),
      row_(kTileRows) {}

template <class T>
void Tile<T>::attend(std::int64_t batch, std::int64_t head, int first_row) {
  batch_ = batch;
  head_ = head;
  head_kv_ = head / (problem_.q.shape[2] / problem_.k.shape[2]);
  first_row_ = first_row;
  rows_ = std::min(kTileRows, mask_.query_length - first_row);
  padded_rows_ = static_cast<int>(round_up(rows_, kRowBlock));
  load_queries();
  const int end = mask_.visible_end(first_row + rows_ - 1);
  // From the last step backwards, like the CUDA kernels: with a causal mask the nearest keys come first.
  for (int first_key = (end - 1) / kStepKeys * kStepKeys; end > 0 && first_key >= 0; first_key -= kStepKeys) {
    const int count = std::min(kStepKeys, end - first_key);
    load_keys(first_key, count);
    load_values(first_key, count);
    multiply(query_.data(), dim_qk_, key_.data(), kKeyStride, score_.data(), kStepKeys, padded_rows_,
             static_cast<int>(dim_qk_), static_cast<int>(round_up(count, kColumnBlock)));
    for (int row = 0; row < rows_; ++row) {
      row_[row].seen = std::clamp(mask_.visible_end(first_row + row) - first_key, 0, count);
      softmax_step(row);
    }
    weigh_values(count);
    fold();
  }
  for (int row = 0; row < rows_; ++row) store(row);
}

template <class T>
void Tile<T>::read(const TensorView& view, std::int64_t offset, T* destination, std::int64_t count) {
  const void* source = static_cast<const std::uint8_t*>(view.data) + offset * size_of(view.dtype);
  if constexpr (std::is_same_v<T, float>) {
    unpack(source, view.dtype, destination, count);
  } else {
    unpack(source, view.dtype, staging_.data(), count);
    std::copy_n(staging_.data(), count, destination);
  }
}

template <class T>
void Tile<T>::load_queries() {
  const TensorView& q = problem_.q;
  const double k_scale = is_per_token(problem_.k_scale) ? 1.0 : scale_at(problem_.k_scale, batch_, head_kv_, 0, 0);
  for (int row = 0; row < rows_; ++row) {
    const std::int64_t token = first_row_ + row;
    read(q, batch_ * q.strides[0] + token * q.strides[1] + head_ * q.strides[2], &query_[row * dim_qk_], dim_qk_);
    const double factor = base_factor_ * scale_at(problem_.q_scale, batch_, head_, token, head_) * k_scale;
    row_[row] = {.top = -std::numeric_limits<T>::infinity(),
                 .sum = 0,
                 .factor = in_range<T>(std::abs(factor)),
                 .exact_factor = std::abs(factor),
                 .alpha = 0,
                 .negate = factor < 0,
                 .seen = 0};
  }
  std::fill(output_.begin(), output_.end(), T{0});
}

template <class T>
void Tile<T>::load_keys(int first_key, int count) {
  const TensorView& k = problem_.k;
  for (int i = 0; i < count; ++i) {
    const std::int64_t token = first_key + i;
    read(k, batch_ * k.strides[0] + token * k.strides[1] + head_kv_ * k.strides[2], line_.data(), dim_qk_);
    for (std::int64_t channel = 0; channel < dim_qk_; ++channel) key_[channel * kKeyStride + i] = line_[channel];
    if (!key_scale_.empty()) key_scale_[i] = scale_at(problem_.k_scale, batch_, head_kv_, token, head_kv_);
  }
}

template <class T>
void Tile<T>::load_values(int first_key, int count) {
  if (problem_.v_layout == VLayout::kPacked) return load_packed_values(first_key, count);
  const TensorView& v = problem_.v;
  for (int i = 0; i < count; ++i) {
    const std::int64_t offset = batch_ * v.strides[0] + (first_key + i) * v.strides[1] + head_kv_ * v.strides[2];
    read(v, offset, &value_[i * padded_dim_v_], dim_v_);
  }
}

template <class T>
void Tile<T>::load_packed_values(int first_key, int count) {
  const TensorView& v = problem_.v;
  for (std::int64_t channel = 0; channel < dim_v_; ++channel) {
    const std::int64_t offset = batch_ * v.strides[0] + head_kv_ * v.strides[1] + channel * v.strides[2];
    read(v, offset + first_key, line_.data(), packed_length(count));
    for (int i = 0; i < count; ++i) value_[i * padded_dim_v_ + channel] = line_[packed_position(i)];
  }
}

template <class T>
void Tile<T>::softmax_step(int row) {
  Row& state = row_[row];
  if (state.seen == 0) return;
  T* scores = &score_[row * kStepKeys];
  const T* factors = key_scale_.empty() ? nullptr : key_scale_.data();
  const T previous = state.top;
  const T top = prepare_scores(scores, factors, state.seen, rounding_.half_scores, state.negate);
  state.top = previous > top ? previous : top;
  const T nothing = -std::numeric_limits<T>::infinity();
  state.alpha = previous == nothing ? T{0} : std::exp2((previous - state.top) * state.factor);
  // A row of -infinities has no finite maximum to subtract.
  const T shift = state.top == nothing ? T{0} : state.top;
  const T sum = probabilities(rounding_.probability, scores, state.seen, shift, state.factor);
  state.sum = state.sum * state.alpha + sum;
}

// Keys that a row does not see are not multiplied by zero but left out: their values may be NaN.
template <class T>
void Tile<T>::weigh_values(int count) {
  const int columns = static_cast<int>(padded_dim_v_);
  if constexpr (std::is_same_v<T, float>) {
    if (rounding_.accumulator_13bit) {
      for (int row = 0; row < rows_; ++row) {
        multiply_row_13bit(&score_[row * kStepKeys], value_.data(), padded_dim_v_, &step_output_[row * padded_dim_v_],
                           row_[row].seen, columns);
      }
      return;
    }
  }
  if (row_[0].seen == count) {  // then every row sees all keys of the step
    return multiply(score_.data(), kStepKeys, value_.data(), padded_dim_v_, step_output_.data(), padded_dim_v_,
                    padded_rows_, count, columns);
  }
  for (int first = 0; first < rows_; first += kRowBlock) {
    const int shared = row_[first].seen;  // a causal mask shows later rows no less
    multiply(&score_[first * kStepKeys], kStepKeys, value_.data(), padded_dim_v_, &step_output_[first * padded_dim_v_],
             padded_dim_v_, kRowBlock, shared, columns);
    for (int row = first; row < std::min(first + kRowBlock, rows_); ++row) {
      multiply_add_row(&score_[row * kStepKeys + shared], &value_[shared * padded_dim_v_], padded_dim_v_,
                       &step_output_[row * padded_dim_v_], row_[row].seen - shared, columns);
    }
  }
}

template <class T>
void Tile<T>::fold() {
  for (int row = 0; row < rows_; ++row) {
    if (row_[row].seen == 0) continue;
    const T alpha = row_[row].alpha;
    T* output = &output_[row * padded_dim_v_];
    const T* step = &step_output_[row * padded_dim_v_];
    for (std::int64_t i = 0; i < padded_dim_v_; ++i) output[i] = output[i] * alpha + step[i];
  }
}

template <class T>
void Tile<T>::store(int row) {
  const std::int64_t token = first_row_ + row;
  const bool empty = mask_.visible_end(static_cast<int>(token)) == 0;
  const Row& state = row_[row];
  const MutableTensorView& out = problem_.out;
  const std::int64_t offset = batch_ * out.strides[0] + token * out.strides[1] + head_ * out.strides[2];
  for (std::int64_t channel = 0; channel < dim_v_; ++channel) {
    const T scale = scale_at(problem_.v_scale, batch_, head_kv_, head_kv_, channel);
    const T mean = problem_.v_mean ? scale_at(problem_.v_mean, batch_, head_kv_, head_kv_, channel) : 0.0f;
    const T value = empty ? T{0} : output_[row * padded_dim_v_ + channel] / state.sum * scale + mean;
    store_value(out, offset + channel, static_cast<float>(value));
  }
  if (!problem_.lse) return;
  const auto& strides = problem_.lse->strides;
  const double log2_sum =
      std::log2(double{state.sum}) - code_exponent(rounding_.probability) + double{state.top} * state.exact_factor;
  const double bias = problem_.lse_bias ? scale_at(problem_.lse_bias, batch_, head_, head_, token) : 0.0f;
  static_cast<float*>(problem_.lse->data)[batch_ * strides[0] + head_ * strides[1] + token * strides[2]] =
      empty ? -std::numeric_limits<float>::infinity() : static_cast<float>(log2_sum * std::numbers::ln2 + bias);
}

template class Tile<float>;
template class Tile<double>;

}  // namespace fp8attn::cpu
