#include "cpu/prefill_tile.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>
#include <optional>
#include <span>
#include <type_traits>

#include "cpu/tile_common.h"

namespace fp8attn::cpu {
namespace {

// Off a power of two, so that the transposed store of K does not hit the same few cache sets again and again.
constexpr std::int64_t kKeyStride = kStepKeys + kColumnBlock;

// probabilities() overwrites elements behind a row's last key.
constexpr std::int64_t kScoreStride = kStepKeys + kColumnBlock;

// log2(256): the factor of the e4m3 codes, which the denominator carries too.
constexpr int code_exponent(Probability form) { return form >= Probability::kE4M3Exact ? 8 : 0; }

constexpr std::int64_t round_up(std::int64_t value, std::int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

double softmax_scale_of(const PrefillProblem& problem, const PrefillLayout& layout) {
  return problem.softmax_scale ? *problem.softmax_scale : 1.0 / std::sqrt(static_cast<double>(layout.batch.d_qk));
}

}  // namespace

template <class T>
Tile<T>::Tile(const PrefillProblem& problem, const PrefillLayout& layout, TileRounding rounding)
    : problem_(problem),
      layout_(layout),
      rounding_(rounding),
      dim_qk_(layout.batch.d_qk),
      dim_v_(layout.batch.d_v),
      padded_dim_v_(round_up(dim_v_, kColumnBlock)),
      softmax_scale_(softmax_scale_of(problem, layout)),
      staging_(std::max<std::int64_t>({dim_qk_, dim_v_, kStepKeys})),
      line_(staging_.size()),
      query_(kTileRows * dim_qk_),
      key_(dim_qk_ * kKeyStride),
      key_scale_(layout.key_scale_per_token ? kStepKeys : 0),
      value_(kStepKeys * padded_dim_v_),
      score_(kTileRows * kScoreStride),
      step_output_(kTileRows * padded_dim_v_),
      output_(kTileRows * padded_dim_v_),
      row_(kTileRows) {}

template <class T>
void Tile<T>::attend(std::int64_t sequence, std::int64_t head, int first_row) {
  sequence_ = sequence;
  head_ = head;
  head_kv_ = head / (layout_.batch.h_q / layout_.batch.h_kv);
  queries_ = layout_.queries(sequence);
  keys_ = layout_.keys(sequence);
  mask_ = layout_.mask(queries_, keys_);
  first_row_ = first_row;
  rows_ = std::min(kTileRows, queries_.length - first_row);
  padded_rows_ = static_cast<int>(round_up(rows_, kRowBlock));
  load_queries();
  const int visible_begin = mask_.visible_begin(first_row), visible_end = mask_.visible_end(first_row + rows_ - 1);
  // From the last step backwards, like the CUDA kernels: with a causal mask the nearest keys come first.
  for (int step = (visible_end - 1) / kStepKeys * kStepKeys; step >= 0 && step + kStepKeys > visible_begin;
       step -= kStepKeys) {
    const int end = std::min(kStepKeys, visible_end - step);
    if (end <= 0) break;
    // Whole groups, as they lie in a packed V.
    const int first = std::max(0, visible_begin - step) / kColumnBlock * kColumnBlock;
    load_keys(step, first, end);
    load_values(step, first, end);
    multiply(query_.data(), dim_qk_, &key_[first], kKeyStride, &score_[first], kScoreStride, padded_rows_,
             static_cast<int>(dim_qk_), static_cast<int>(round_up(end - first, kColumnBlock)));
    for (int row = 0; row < rows_; ++row) {
      row_[row].begin = std::clamp(mask_.visible_begin(first_row + row) - step, 0, end);
      row_[row].end = std::clamp(mask_.visible_end(first_row + row) - step, 0, end);
      softmax_step(row);
    }
    weigh_values(first, end);
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
  for (int row = 0; row < rows_; ++row) row_[row] = load_query(row);
  std::fill(output_.begin(), output_.end(), T{0});
}

template <class T>
typename Tile<T>::Row Tile<T>::load_query(int row) {
  const Place place = layout_.query(sequence_, queries_, first_row_ + row);
  T* const line = &query_[row * dim_qk_];
  read(problem_.q, layout_.q.offset(place, head_), line, dim_qk_);
  double logit_factor = softmax_scale_ * layout_.q_scale.at(1.0f, place, head_);
  if (!layout_.key_scale_per_token) logit_factor *= layout_.k_scale.at(1.0f, place, head_kv_);
  if constexpr (std::is_same_v<T, float>) {
    if (rounding_.e4m3_query) {
      const std::span<float> values(line, dim_qk_);
      const float scale = quantized_scale(values), inverse = 1.0f / scale;
      for (float& value : values) value = e4m3_to_float(e4m3_from_float(value * inverse));
      logit_factor *= scale;
    }
  }
  const double softcap = problem_.softcap;
  const double exact_factor = softcap > 0 ? std::numbers::log2e : std::abs(logit_factor) * std::numbers::log2e;
  return {.place = place,
          .top = -std::numeric_limits<T>::infinity(),
          .sum = 0,
          .factor = in_range<T>(exact_factor),
          .exact_factor = exact_factor,
          .cap_factor = softcap > 0 ? in_range<T>(std::abs(logit_factor) / softcap) : T{0},
          .alpha = 0,
          .negate = logit_factor < 0,
          .begin = 0,
          .end = 0};
}

template <class T>
template <class Visit>
void Tile<T>::for_each_run(int step, int first, int end, Visit visit) {
  for (int i = first, count; i < end; i += count) {
    count = layout_.run_length(step + i, end - i);
    visit(layout_.key(sequence_, keys_, step + i), i, count);
  }
}

// Keys and values of a page that is none are numbers like others: 0.
template <class T>
void Tile<T>::load_keys(int step, int first, int end) {
  for_each_run(step, first, end, [&](std::optional<Place> place, int begin, int count) {
    std::fill(line_.begin(), line_.end(), T{0});
    for (int i = begin; i < begin + count; ++i) {
      if (place) read(problem_.k, layout_.k.offset(*place, head_kv_), line_.data(), dim_qk_);
      for (std::int64_t channel = 0; channel < dim_qk_; ++channel) key_[channel * kKeyStride + i] = line_[channel];
      if (!key_scale_.empty()) key_scale_[i] = place ? layout_.k_scale.at(1.0f, *place, head_kv_) : 1.0f;
      if (place) ++place->inner;
    }
  });
}

template <class T>
void Tile<T>::load_values(int step, int first, int end) {
  for_each_run(step, first, end, [&](const std::optional<Place>& place, int begin, int count) {
    if (place) return load_value_run(*place, begin, count);
    std::fill_n(&value_[begin * padded_dim_v_], count * padded_dim_v_, T{0});
  });
}

template <class T>
void Tile<T>::load_value_run(const Place& place, int first, int count) {
  const TensorView& v = problem_.v;
  if (problem_.v_layout == VLayout::kPacked) {
    for (std::int64_t channel = 0; channel < dim_v_; ++channel) {
      read(v, layout_.v.offset(place, head_kv_, channel), line_.data(), packed_length(count));
      for (int i = 0; i < count; ++i) value_[(first + i) * padded_dim_v_ + channel] = line_[packed_position(i)];
    }
    return;
  }
  Place token = place;
  for (int i = first; i < first + count; ++i, ++token.inner) {
    read(v, layout_.v.offset(token, head_kv_), &value_[i * padded_dim_v_], dim_v_);
  }
}

template <class T>
void Tile<T>::softmax_step(int row) {
  Row& state = row_[row];
  const int seen = state.end - state.begin;
  if (seen == 0) return;
  T* scores = &score_[row * kScoreStride + state.begin];
  const T* factors = key_scale_.empty() ? nullptr : &key_scale_[state.begin];
  const T previous = state.top;
  T top = prepare_scores(scores, factors, seen, rounding_.half_scores, state.negate);
  if (problem_.softcap > 0) {
    cap_scores(scores, seen, state.cap_factor, T{problem_.softcap});
    cap_scores(&top, 1, state.cap_factor, T{problem_.softcap});  // which grows with the score
  }
  state.top = previous > top ? previous : top;
  const T nothing = -std::numeric_limits<T>::infinity();
  state.alpha = previous == nothing ? T{0} : std::exp2((previous - state.top) * state.factor);
  // A row of -infinities has no finite maximum to subtract.
  const T shift = state.top == nothing ? T{0} : state.top;
  const T sum = probabilities(rounding_.probability, scores, seen, shift, state.factor);
  state.sum = state.sum * state.alpha + sum;
}

// Keys that a row does not see are not multiplied by zero but left out: their values may be NaN.
template <class T>
void Tile<T>::weigh_values(int first, int end) {
  const int columns = static_cast<int>(padded_dim_v_);
  if constexpr (std::is_same_v<T, float>) {
    if (rounding_.accumulator_13bit) {
      for (int row = 0; row < rows_; ++row) {
        multiply_row_13bit(&score_[row * kScoreStride], value_.data(), padded_dim_v_,
                           &step_output_[row * padded_dim_v_], row_[row].begin, row_[row].end, columns);
      }
      return;
    }
  }
  // Later rows begin and end no sooner: so many rows see the keys that the last begins and the first ends with.
  const auto weigh = [&](int row, int rows, int from, int to) {
    multiply(&score_[row * kScoreStride + from], kScoreStride, &value_[from * padded_dim_v_], padded_dim_v_,
             &step_output_[row * padded_dim_v_], padded_dim_v_, rows, std::max(0, to - from), columns);
  };
  const int last = rows_ - 1;
  if (row_[0].end == end && row_[last].begin <= first) return weigh(0, padded_rows_, row_[last].begin, end);
  for (int block = 0; block < rows_; block += kRowBlock) {
    const int block_end = std::min(block + kRowBlock, rows_);
    const int shared_begin = row_[block_end - 1].begin, shared_end = std::max(row_[block].end, shared_begin);
    weigh(block, kRowBlock, shared_begin, shared_end);
    const auto add = [&](int row, int from, int to) {
      multiply_add_row(&score_[row * kScoreStride + from], &value_[from * padded_dim_v_], padded_dim_v_,
                       &step_output_[row * padded_dim_v_], to - from, columns);
    };
    for (int row = block; row < block_end; ++row) {
      add(row, row_[row].begin, std::min(row_[row].end, shared_begin));
      add(row, std::max(row_[row].begin, shared_end), row_[row].end);
    }
  }
}

template <class T>
void Tile<T>::fold() {
  for (int row = 0; row < rows_; ++row) {
    if (row_[row].begin == row_[row].end) continue;
    const T alpha = row_[row].alpha;
    T* output = &output_[row * padded_dim_v_];
    const T* step = &step_output_[row * padded_dim_v_];
    for (std::int64_t i = 0; i < padded_dim_v_; ++i) output[i] = output[i] * alpha + step[i];
  }
}

template <class T>
void Tile<T>::store(int row) {
  const Row& state = row_[row];
  const bool empty = mask_.visible_begin(first_row_ + row) == mask_.visible_end(first_row_ + row);
  const double log2_top = double{state.top} * state.exact_factor;
  const int exponent = code_exponent(rounding_.probability);
  T denominator = state.sum;
  if (problem_.attention_sink) {
    const TensorView& sink = *problem_.attention_sink;
    const double logit = static_cast<const float*>(sink.data)[head_ * sink.strides[0]];
    denominator += static_cast<T>(std::exp2(logit * std::numbers::log2e - log2_top + exponent));
  }
  const T unit = scalar_or_one(problem_.out_scale);
  const std::int64_t offset = layout_.out.offset(state.place, head_);
  for (std::int64_t channel = 0; channel < dim_v_; ++channel) {
    const T scale = layout_.v_scale.at(1.0f, state.place, head_kv_, channel);
    const T mean = layout_.v_mean.at(0.0f, state.place, head_kv_, channel);
    const T value = empty ? T{0} : output_[row * padded_dim_v_ + channel] / denominator * scale + mean;
    store_value(problem_.out, offset + channel, static_cast<float>(value / unit));
  }
  if (!problem_.lse) return;
  const double log2_sum = std::log2(double{state.sum}) - exponent + log2_top;
  const double bias = layout_.lse_bias.at(0.0f, state.place, head_);
  const double unit_of_lse = problem_.lse_base == LseBase::k2 ? std::numbers::log2e : 1.0;
  const double lse = (log2_sum * std::numbers::ln2 + bias) * unit_of_lse;
  static_cast<float*>(problem_.lse->data)[layout_.lse.offset(state.place, head_)] =
      empty ? -std::numeric_limits<float>::infinity() : static_cast<float>(lse);
}

template class Tile<float>;
template class Tile<double>;

}  // namespace fp8attn::cpu
