#include <algorithm>
#include <cmath>
#include <numbers>

#include "prefill_methods.h"

namespace fp8attn::test {
namespace {

// Rounding of the output and of nothing else: half a last place, of every element and of the largest.
Tolerance output_rounding(DType dtype) {
  if (dtype == DType::kBF16) return {.relative_l2 = 4e-3, .row_abs = 4e-3, .lse_abs = 0};
  if (dtype == DType::kFP16) return {.relative_l2 = 5e-4, .row_abs = 5e-4, .lse_abs = 0};
  // 2.5% root mean square of all numbers, at most 3.6% of numbers that are alike.
  if (dtype == DType::kE4M3) return {.relative_l2 = 3.2e-2, .row_abs = 0x1p-4, .lse_abs = 0, .averages = true};
  return {};
}

// Probabilities with `ulp` relative rounding error.
Tolerance sixteen_bit(DType dtype) {
  const double ulp = dtype == DType::kBF16 ? 0x1p-8 : 0x1p-11;
  return {.relative_l2 = ulp, .row_abs = 2 * ulp, .lse_abs = ulp};
}

// Whether every row's weight is spread over so many keys that the rounding of single probabilities averages out.
bool weighs_many_keys(const PrefillCase& test) {
  const bool normal = test.data == DataSet::kNormal || test.data == DataSet::kValueMean;
  const bool all_keys = !test.causal && test.window_left < 0 && test.batch.kv_lengths.empty();
  return normal && test.n.s_kv >= 256 && all_keys && !test.softmax_scale && test.divide_by_scale;
}

// Error of lse on normal data, from the rounding of the probabilities that it sums: 0.0265 relative, root mean square,
// over s_kv / e keys of equal weight. Five sigma, and a floor for the bias of the forms and the scores' rounding.
double lse_of_many_keys(std::int64_t s_kv) { return 5 * 0.0265 * std::sqrt(std::exp(1.0) / s_kv) + 2e-3; }

Tolerance eight_bit(const PrefillCase& test) {
  Tolerance tolerance{.relative_l2 = 2.8e-2,
                      .row_abs = 6e-2,
                      .lse_abs = weighs_many_keys(test) ? lse_of_many_keys(test.n.s_kv) : 6e-2,
                      .averages = true};
  if (test.data == DataSet::kValueMean && test.n.s_kv >= 4096) tolerance = {5e-3, 2e-2, 1e-2, true};
  // Logits near -181 differ by less than the last place of a half.
  if (test.data == DataSet::kNegative) tolerance.relative_l2 = 4e-2;
  // The worst of thousands of rows of a few keys comes near the bound of one rounding to e4m3's 3 bits.
  if (test.n.b * test.n.h_q > 1000) tolerance = {0x1p-4, tolerance.row_abs, tolerance.lse_abs};
  if (test.p_mode == PMode::kFast) {
    tolerance.relative_l2 *= 1.25;
    tolerance.row_abs *= 1.25;
    tolerance.lse_abs *= 1.25;
  }
  return tolerance;
}

// End to end, so with the error of storing q, k and v in 8 bits: 5.3% to 5.8% on normal data, most of it from scores
// and values alike; outliers cost 8% where nothing spreads them.
Tolerance recipe(const PrefillCase& test) {
  Tolerance tolerance{.relative_l2 = 6.5e-2, .row_abs = 0.2, .lse_abs = 0.15, .averages = true};
  if (test.data == DataSet::kOutliers && !test.quantize->hadamard) tolerance = {1.1e-1, 0.3, 3.0, true};
  if (test.data == DataSet::kOutliers && test.quantize->hadamard) tolerance.lse_abs = 0.3;
  if (test.data == DataSet::kLlm || test.data == DataSet::kPeak) tolerance.lse_abs = 0.5;
  if (test.data == DataSet::kValueMean && test.n.s_kv >= 4096) tolerance.relative_l2 = 8e-3;
  if (test.p_mode == PMode::kFast) tolerance.relative_l2 *= 1.1;
  return tolerance;
}

}  // namespace

Tolerance tolerance_for(const PrefillCase& test, DeviceKind device) {
  const Tolerance rounding = output_rounding(test.out_dtype);
  const bool exact = device == DeviceKind::kCpu &&
                     (test.arithmetic == CpuArithmetic::kFloat32 || test.arithmetic == CpuArithmetic::kFloat64);
  Tolerance arithmetic{.relative_l2 = 1e-5, .row_abs = 1e-5, .lse_abs = 1e-4};
  if (!exact && test.dtype == DType::kE4M3) arithmetic = eight_bit(test);
  if (!exact && (test.dtype == DType::kBF16 || test.dtype == DType::kFP16)) arithmetic = sixteen_bit(test.dtype);
  if (test.quantize) arithmetic = recipe(test);
  Tolerance tolerance = arithmetic;
  if (test.out_dtype == DType::kE4M3) {
    tolerance.relative_l2 = std::hypot(rounding.relative_l2, arithmetic.relative_l2);
    tolerance.row_abs = rounding.row_abs + arithmetic.row_abs;
  } else {
    tolerance.relative_l2 = std::max(rounding.relative_l2, arithmetic.relative_l2);
    tolerance.row_abs = std::max(rounding.row_abs, arithmetic.row_abs);
  }
  tolerance.averages = rounding.averages || arithmetic.averages;
  if (test.lse_base == LseBase::k2) tolerance.lse_abs *= std::numbers::log2e;
  return tolerance;
}

}  // namespace fp8attn::test
