#include "cpu/merge.h"

#include <omp.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "cpu/prefill_vector.h"
#include "cpu/tile_common.h"

namespace fp8attn::cpu {
namespace {

constexpr float kNothing = -std::numeric_limits<float>::infinity();
constexpr std::int64_t kRowsOfOneThread = 16;  // less work than waking the others

// From the lses of parts in place to their weights, which sum to 1; 0 where a part has seen no key. Returns the lse of
// all.
float weigh(std::vector<float>& parts, LseBase base) {
  const auto exponential = [=](float x) { return base == LseBase::k2 ? std::exp2(x) : std::exp(x); };
  const auto logarithm = [=](float x) { return base == LseBase::k2 ? std::log2(x) : std::log(x); };
  float top = kNothing, sum = 0;
  for (float lse : parts) top = std::fmax(top, lse);
  for (float& part : parts) {
    part = part == kNothing ? 0.0f : exponential(part - top);
    sum += part;
  }
  if (sum == 0) return kNothing;
  for (float& part : parts) part /= sum;
  return top + logarithm(sum);
}

// One row after the other, with the buffers of one thread.
class RowMerger {
 public:
  explicit RowMerger(const MergeAttentionProblem& problem)
      : problem_(problem), weights_(problem.lses.shape[0]), line_(problem.out.shape[3]), sum_(line_.size()) {}

  void merge(std::int64_t batch, std::int64_t token, std::int64_t head) {
    const TensorView &lses = problem_.lses, &outs = problem_.outs;
    const auto* lse_of_part = static_cast<const float*>(lses.data) + batch * lses.strides[1] + head * lses.strides[2] +
                              token * lses.strides[3];
    for (float& weight : weights_) {
      weight = *lse_of_part;
      lse_of_part += lses.strides[0];
    }
    const float lse = weigh(weights_, problem_.lse_base);
    // Adding to -0 leaves the sign of a zero as it is.
    std::ranges::fill(sum_, lse == kNothing ? 0.0f : -0.0f);
    std::int64_t offset = batch * outs.strides[1] + token * outs.strides[2] + head * outs.strides[3];
    for (float weight : weights_) {
      if (weight != 0) add(weight, offset);
      offset += outs.strides[0];
    }
    store(batch, token, head, lse);
  }

 private:
  void add(float weight, std::int64_t offset) {
    const TensorView& outs = problem_.outs;
    const auto* row = static_cast<const std::uint8_t*>(outs.data) + offset * size_of(outs.dtype);
    unpack(row, outs.dtype, line_.data(), static_cast<std::int64_t>(line_.size()));
    for (std::size_t i = 0; i < line_.size(); ++i) sum_[i] += weight * line_[i];
  }

  void store(std::int64_t batch, std::int64_t token, std::int64_t head, float lse) const {
    const auto& strides = problem_.out.strides;
    std::int64_t offset = batch * strides[0] + token * strides[1] + head * strides[2];
    for (float value : sum_) store_value(problem_.out, offset++, value);
    if (!problem_.lse) return;
    const auto& lse_strides = problem_.lse->strides;
    static_cast<float*>(problem_.lse->data)[batch * lse_strides[0] + head * lse_strides[1] + token * lse_strides[2]] =
        lse;
  }

  const MergeAttentionProblem& problem_;
  std::vector<float> weights_;
  std::vector<float> line_, sum_;  // a row of one part, and of all
};

}  // namespace

void merge_attention(const MergeAttentionProblem& problem, Stream) {
  const std::int64_t heads = problem.out.shape[2], tokens = problem.out.shape[1];
  const std::int64_t rows = problem.out.shape[0] * tokens * heads;
  // Allocated here: an exception must not leave a parallel region.
  std::vector<RowMerger> mergers(omp_get_max_threads(), RowMerger(problem));
#pragma omp parallel for schedule(static) if (rows > kRowsOfOneThread)
  for (std::int64_t row = 0; row < rows; ++row) {
    mergers[omp_get_thread_num()].merge(row / heads / tokens, row / heads % tokens, row % heads);
  }
}

}  // namespace fp8attn::cpu
