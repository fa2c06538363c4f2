#include "cli/reference.h"

#include <cmath>
#include <limits>

namespace fp8attn::cli {
namespace {

// Elements [begin, end) of dim 1.
TensorView slice(TensorView view, std::int64_t begin, std::int64_t end) {
  view.data = static_cast<const std::byte*>(view.data) + begin * view.strides[1] * size_of(view.dtype);
  view.shape[1] = end - begin;
  return view;
}

// A scale tensor has one entry a token where it has three dims.
std::optional<TensorView> slice_scale(const std::optional<TensorView>& scale, std::int64_t begin, std::int64_t end) {
  return scale && scale->rank == 3 ? slice(*scale, begin, end) : scale;
}

// A query row sees no key behind its diagonal under a bottom-right causal mask, so rows that end at `rows.end` and the
// keys up to the last one's diagonal are a causal problem of their own, with the same window.
PrefillProblem part_of(const PrefillProblem& whole, RowRange rows) {
  PrefillProblem part = whole;
  part.q = slice(whole.q, rows.begin, rows.end);
  part.q_scale = slice_scale(whole.q_scale, rows.begin, rows.end);
  if (!whole.causal) return part;
  const std::int64_t keys = std::max<std::int64_t>(0, rows.end + whole.k.shape[1] - whole.q.shape[1]);
  part.k = slice(whole.k, 0, keys);
  part.v = slice(whole.v, 0, keys);
  part.k_scale = slice_scale(whole.k_scale, 0, keys);
  return part;
}

// The larger one; NaN where either is.
double worse(double a, double b) { return a >= b || std::isnan(a) ? a : b; }

struct Sums {
  double difference = 0, exact = 0, got = 0, product = 0;

  void add(double got_value, double exact_value) {
    difference += (got_value - exact_value) * (got_value - exact_value);
    exact += exact_value * exact_value;
    got += got_value * got_value;
    product += got_value * exact_value;
  }
  void add(const Sums& other) {
    difference += other.difference;
    exact += other.exact;
    got += other.got;
    product += other.product;
  }
  // 0 / 0 is a match: rows that see no key are zero in both.
  double relative() const { return difference == 0 ? 0 : std::sqrt(difference / exact); }
  double cosine() const { return difference == 0 ? 1 : product / std::sqrt(exact * got); }
};

double lse_error(float got, float exact) {
  if (got == exact) return 0;  // both may be -infinity
  return std::abs(static_cast<double>(got) - static_cast<double>(exact));
}

}  // namespace

std::vector<RowRange> sample_rows(std::int64_t rows, std::int64_t limit, std::int64_t ranges, std::int64_t length) {
  if (rows <= limit) return {{0, rows}};
  std::vector<RowRange> result;
  for (std::int64_t i = 0; i < ranges; ++i) {
    const std::int64_t begin = (rows - length) * i / (ranges - 1);
    result.push_back({begin, begin + length});
  }
  return result;
}

Reference exact_attention(const Layer& layer, const AttentionOptions& options, const std::vector<RowRange>& rows) {
  PrefillProblem whole = problem_of(layer, options);
  whole.cpu_arithmetic = CpuArithmetic::kFloat64;
  const auto &q = layer.q.shape, &v = layer.v.shape;
  Reference reference;
  for (const RowRange range : rows) {
    const std::int64_t count = range.end - range.begin;
    Reference::Part part{range, HostTensor(DType::kF32, {q[0], count, q[2], v[3]}),
                         HostTensor(DType::kF32, {q[0], q[2], count})};
    PrefillProblem problem = part_of(whole, range);
    problem.out = part.out.mutable_view();
    problem.lse = part.lse.mutable_view();
    prefill(problem);
    reference.parts.push_back(std::move(part));
  }
  return reference;
}

Errors errors_of(const Reference& reference, const HostTensor& out, const HostTensor* lse) {
  const std::int64_t batch = out.shape[0], tokens = out.shape[1], heads = out.shape[2], channels = out.shape[3];
  Errors errors;
  Sums total;
  for (const Reference::Part& part : reference.parts) {
    const auto* exact = reinterpret_cast<const float*>(part.out.bytes.data());
    const auto* exact_lse = reinterpret_cast<const float*>(part.lse.bytes.data());
    const std::int64_t count = part.rows.end - part.rows.begin;
    for (std::int64_t i = 0; i < batch * count * heads; ++i) {
      const std::int64_t b = i / (count * heads), row = i / heads % count, h = i % heads;
      const std::int64_t got_row = (b * tokens + part.rows.begin + row) * heads + h;
      Sums sums;
      for (std::int64_t c = 0; c < channels; ++c) {
        sums.add(element(out.bytes.data(), out.dtype, got_row * channels + c), exact[i * channels + c]);
      }
      total.add(sums);
      errors.worst_row = worse(errors.worst_row, sums.relative());
      if (lse == nullptr) continue;
      const auto* got_lse = reinterpret_cast<const float*>(lse->bytes.data());
      errors.lse = worse(errors.lse, lse_error(got_lse[(b * heads + h) * tokens + part.rows.begin + row],
                                               exact_lse[(b * heads + h) * count + row]));
    }
  }
  errors.rel_l2 = total.relative();
  errors.cosine = total.cosine();
  return errors;
}

}  // namespace fp8attn::cli
