#include <algorithm>
#include <cmath>

#include "mla_methods.h"

namespace fp8attn::test {
namespace {

constexpr std::int64_t kManyTokens = 256;

std::int64_t fewest_tokens(const MlaCase& test) {
  std::int64_t fewest = std::ranges::min(test.lengths);
  // Every ninth index is none, every other query may have a third less.
  if (test.sparse()) fewest = std::min(fewest, *test.topk * (test.topk_lengths ? 5 : 8) / 9);
  return fewest;
}

// Weight spread over so many tokens that the rounding of single probabilities averages out.
bool weighs_many_tokens(const MlaCase& test) {
  return (test.data == MlaData::kNormal || test.data == MlaData::kValueMean) && !test.softmax_scale &&
         fewest_tokens(test) >= kManyTokens;
}

MlaTolerance eight_bit(const MlaCase& test) {
  // One rounding to e4m3's 3 bits of every weight, at most and root mean square.
  MlaTolerance tolerance{.worst = {.relative_l2 = 0x1p-4, .row_abs = 8e-2, .lse_abs = 6e-2}, .overall = 4e-2};
  if (!weighs_many_tokens(test)) return tolerance;
  tolerance.worst.relative_l2 = 4.5e-2;
  tolerance.overall = test.data == MlaData::kValueMean ? 1e-2 : 2.9e-2;
  if (test.data == MlaData::kNormal) tolerance.end_to_end = test.format == CacheFormat::kToken128 ? 6e-2 : 6.5e-2;
  return tolerance;
}

}  // namespace

MlaTolerance mla_tolerance_for(const MlaCase& test, DeviceKind device) {
  const bool exact = device == DeviceKind::kCpu &&
                     (test.arithmetic == CpuArithmetic::kFloat32 || test.arithmetic == CpuArithmetic::kFloat64);
  MlaTolerance tolerance{.worst = {.relative_l2 = 1e-5, .row_abs = 1e-5, .lse_abs = 1e-4}, .overall = 1e-5};
  if (!exact && test.format != CacheFormat::kBF16) tolerance = eight_bit(test);
  // Probabilities in bf16.
  if (!exact && test.format == CacheFormat::kBF16) tolerance = {{0x1p-8, 0x1p-7, 0x1p-8}, 0x1p-8, 0};
  // Rounding of the output: half a last place, of every element and of the largest.
  const double rounding = test.out_dtype == DType::kBF16 ? 4e-3 : 5e-4;
  tolerance.worst.relative_l2 = std::max(tolerance.worst.relative_l2, rounding);
  tolerance.worst.row_abs = std::max(tolerance.worst.row_abs, rounding);
  tolerance.overall = std::max(tolerance.overall, rounding);
  return tolerance;
}

}  // namespace fp8attn::test
