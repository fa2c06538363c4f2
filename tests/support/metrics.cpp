#include "metrics.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

namespace fp8attn::test {
namespace {

// NaN counts as infinitely wrong.
double magnitude(double error) { return std::isnan(error) ? std::numeric_limits<double>::infinity() : std::abs(error); }

struct HeadErrors : Errors {
  std::int64_t rows = 0;  // that see a key
  std::int64_t worst_row = 0, worst_lse_row = 0;
  std::string empty_row;  // a row without a key that is not exactly 0 and -infinity
};

class HeadView {
 public:
  HeadView(const PrefillCase& test, const std::vector<float>& out, const std::vector<float>& lse, std::int64_t batch,
           std::int64_t head)
      : n_(test.n), out_scale_(test.out_scale.value_or(1.0f)), out_(out), lse_(lse), batch_(batch), head_(head) {}
  double out(std::int64_t row, std::int64_t channel) const {
    return out_scale_ * out_[((batch_ * n_.s_q + row) * n_.h_q + head_) * n_.d_v + channel];
  }
  double lse(std::int64_t row) const { return lse_[(batch_ * n_.h_q + head_) * n_.s_q + row]; }

 private:
  const Dims& n_;
  const double out_scale_;
  const std::vector<float>&out_, &lse_;
  const std::int64_t batch_, head_;
};

void add_empty_row(HeadErrors& errors, const HeadView& got, std::int64_t row, std::int64_t channels) {
  bool zero = true;
  for (std::int64_t channel = 0; channel < channels; ++channel) zero &= got.out(row, channel) == 0.0;
  if (!zero || got.lse(row) != -std::numeric_limits<double>::infinity()) {
    errors.empty_row = fmt::format("row {} sees no key, lse {}, out[0] {}", row, got.lse(row), got.out(row, 0));
  }
}

HeadErrors measure_head(const PrefillCase& test, const Reference& reference, const HeadView& got, std::int64_t batch,
                        std::int64_t head) {
  HeadErrors errors;
  double error2 = 0, reference2 = 0, got2 = 0, product = 0, largest = 0;
  for (std::size_t i = 0; i < reference.rows.size(); ++i) {
    const std::int64_t row = reference.rows[i];
    if (row >= test.queries(batch)) continue;
    if (reference.lse_at(batch, head, i) == -std::numeric_limits<double>::infinity()) {
      add_empty_row(errors, got, row, test.n.d_v);
      continue;
    }
    ++errors.rows;
    const double* want = reference.out_at(batch, head, i);
    double row_error = 0;
    for (std::int64_t channel = 0; channel < test.n.d_v; ++channel) {
      const double value = got.out(row, channel), error = value - want[channel];
      error2 += error * error;
      reference2 += want[channel] * want[channel];
      got2 += value * value;
      product += value * want[channel];
      row_error = std::max(row_error, magnitude(error));
      largest = std::max(largest, std::abs(want[channel]));
    }
    if (row_error > errors.row_abs) errors.row_abs = row_error, errors.worst_row = row;
    const double lse_error = magnitude(got.lse(row) - reference.lse_at(batch, head, i));
    if (lse_error > errors.lse_abs) errors.lse_abs = lse_error, errors.worst_lse_row = row;
  }
  const bool exact = error2 == 0;  // also where all is 0
  errors.relative_l2 = exact ? 0 : magnitude(std::sqrt(error2 / reference2));
  errors.cosine = exact ? 1 : product / std::sqrt(got2 * reference2);
  errors.row_abs = exact ? 0 : magnitude(errors.row_abs / largest);
  return errors;
}

// The error of few rows around the mean: four sigma of the root mean square of rows * channels elements.
double scatter(std::int64_t rows, std::int64_t channels) {
  return rows < 16 ? 1.0 + 4.0 / std::sqrt(2.0 * static_cast<double>(rows * channels)) : 1.0;
}

template <class Visit>
void for_each_head(const PrefillCase& test, const Reference& reference, const PrefillOutput& output, Visit visit) {
  const std::vector<float> out = output.out.values(), lse = output.lse.values();
  for (std::int64_t batch = 0; batch < test.n.b; ++batch) {
    for (std::int64_t head = 0; head < test.n.h_q; ++head) {
      visit(batch, head, measure_head(test, reference, HeadView(test, out, lse, batch, head), batch, head));
    }
  }
}

}  // namespace

Errors measure(const PrefillCase& test, const Reference& reference, const PrefillOutput& output) {
  Errors worst;
  for_each_head(test, reference, output, [&](std::int64_t, std::int64_t, const HeadErrors& head) {
    worst.relative_l2 = std::max(worst.relative_l2, head.relative_l2);
    worst.cosine = std::min(worst.cosine, head.cosine);
    worst.row_abs = std::max(worst.row_abs, head.row_abs);
    worst.lse_abs = std::max(worst.lse_abs, head.lse_abs);
  });
  return worst;
}

::testing::AssertionResult check(const PrefillCase& test, const Reference& reference, const PrefillOutput& output,
                                 const Tolerance& tolerance) {
  std::string complaints = output.wrong_write;
  for_each_head(test, reference, output, [&](std::int64_t batch, std::int64_t head, const HeadErrors& errors) {
    const auto complain = [&](const std::string& text) {
      complaints += fmt::format("\n  batch {}, head {}: {}", batch, head, text);
    };
    const double relative_l2 = tolerance.relative_l2 * (tolerance.averages ? scatter(errors.rows, test.n.d_v) : 1.0);
    // Written so that NaN fails.
    if (!(errors.relative_l2 <= relative_l2)) {
      complain(fmt::format("relative L2 {:.3e} > {:.3e}", errors.relative_l2, relative_l2));
    }
    const double least_cosine = 1 - relative_l2 * relative_l2 - 1e-12;
    if (!(errors.cosine >= least_cosine)) complain(fmt::format("cosine {:.9f} < {:.9f}", errors.cosine, least_cosine));
    if (!(errors.row_abs <= tolerance.row_abs)) {
      complain(fmt::format("row {}: largest error {:.3e} > {:.3e} of the head's largest value", errors.worst_row,
                           errors.row_abs, tolerance.row_abs));
    }
    if (!(errors.lse_abs <= tolerance.lse_abs)) {
      complain(
          fmt::format("row {}: lse off by {:.3e} > {:.3e}", errors.worst_lse_row, errors.lse_abs, tolerance.lse_abs));
    }
    if (!errors.empty_row.empty()) complain(errors.empty_row);
  });
  if (complaints.empty()) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << test.name << ": " << complaints;
}

}  // namespace fp8attn::test
