#include "merge_tests.h"

#include <fmt/format.h>

#include <cmath>
#include <limits>

#include "merge_case.h"

namespace fp8attn::test {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

testing::AssertionResult matches_exact(TestDevice& device, const MergeCase& test) {
  const MergeData data = make_merge_data(test);
  return check_merge(test, data, run_merge(device, test, data, test.base));
}

// The check has to notice what it is there for.
testing::AssertionResult check_refuses_faults(TestDevice& device, const MergeCase& test) {
  const MergeData data = make_merge_data(test);
  const LseBase other = test.base == LseBase::kE ? LseBase::k2 : LseBase::kE;
  if (check_merge(test, data, run_merge(device, test, data, other))) {
    return testing::AssertionFailure() << "the wrong base passes";
  }
  MergeData fewer = data;  // the last part is left out
  std::fill(fewer.part_lse.end() - test.rows(), fewer.part_lse.end(), -kInfinity);
  if (check_merge(test, data, run_merge(device, test, fewer, test.base))) {
    return testing::AssertionFailure() << "a part left out passes";
  }
  MergeOutput output = run_merge(device, test, data, test.base);
  output.lse[0] += 1e-4f;
  if (check_merge(test, data, output)) return testing::AssertionFailure() << "a wrong lse passes";
  return testing::AssertionSuccess();
}

// A row with NaN or +infinity among its lses becomes NaN, and no other row is touched.
testing::AssertionResult keeps_nan_in_its_row(TestDevice& device, const MergeCase& test) {
  const MergeData data = make_merge_data(test);
  const MergeOutput clean = run_merge(device, test, data, test.base);
  constexpr std::int64_t kRow = 4;
  for (float bad : {std::numeric_limits<float>::quiet_NaN(), kInfinity}) {
    MergeData spoilt = data;
    spoilt.part_lse[test.rows() + kRow] = bad;
    const MergeOutput output = run_merge(device, test, spoilt, test.base);
    for (std::int64_t i = 0; i < test.rows() * test.d_v; ++i) {
      const bool spoilt_row = i / test.d_v == kRow;
      if (spoilt_row ? !std::isnan(output.out[i]) : output.out[i] != clean.out[i]) {
        return testing::AssertionFailure()
               << output.out[i] << " in row " << i / test.d_v << " beside an lse of " << bad;
      }
    }
    for (std::int64_t row = 0; row < test.rows(); ++row) {
      if (row == kRow ? !std::isnan(output.lse[row]) : output.lse[row] != clean.lse[row]) {
        return testing::AssertionFailure()
               << "lse " << output.lse[row] << " in row " << row << " beside one of " << bad;
      }
    }
  }
  return testing::AssertionSuccess();
}

// Parts that weigh nothing beside the first change none of its bits.
testing::AssertionResult ignores_negligible_parts(TestDevice& device, const MergeCase& test) {
  MergeData data = make_merge_data(test);
  for (std::int64_t i = test.rows(); i < test.parts * test.rows(); ++i) {
    const bool counts = data.part_lse[i % test.rows()] != -kInfinity && data.part_lse[i] != -kInfinity;
    if (counts) data.part_lse[i] = -1e30f;
  }
  const MergeOutput with = run_merge(device, test, data, test.base);
  for (std::int64_t i = test.rows(); i < test.parts * test.rows(); ++i) {
    if (data.part_lse[i] == -1e30f) data.part_lse[i] = -kInfinity;
  }
  const MergeOutput without = run_merge(device, test, data, test.base);
  if (with.out_bytes != without.out_bytes || with.lse != without.lse)
    return testing::AssertionFailure() << "they differ";
  return testing::AssertionSuccess();
}

std::vector<MergeCase> exact_cases() {
  using enum PartsLayout;
  std::vector<MergeCase> cases;
  for (DType parts_dtype : {DType::kBF16, DType::kFP16, DType::kF32}) {
    for (DType out_dtype : {DType::kBF16, DType::kFP16, DType::kF32}) {
      for (LseBase base : {LseBase::kE, LseBase::k2}) {
        cases.push_back(
            {.name = fmt::format("F_{}_to_{}_base_{}", name_of(parts_dtype), name_of(out_dtype), name_of(base)),
             .parts = 3,
             .parts_dtype = parts_dtype,
             .out_dtype = out_dtype,
             .base = base});
      }
    }
  }
  for (bool ragged : {false, true}) {
    for (std::int64_t parts : {1, 2, 3, 40}) {
      cases.push_back({.name = fmt::format("B_parts_{}{}", parts, ragged ? "_ragged" : ""),
                       .parts = parts,
                       .s_q = 33,
                       .ragged = ragged});
    }
    for (PartsLayout layout : {kOutside, kPadded, kInside}) {
      for (std::int64_t d_v : {1, 8, 80, 128, 200, 256, 512}) {
        cases.push_back(
            {.name = fmt::format("I_layout_{}{}_d{}", static_cast<int>(layout), ragged ? "_ragged" : "", d_v),
             .parts = 3,
             .d_v = d_v,
             .ragged = ragged,
             .layout = layout});
      }
    }
  }
  cases.push_back({.name = "I_floats_inside", .d_v = 100, .parts_dtype = DType::kF32, .layout = kInside});
  cases.push_back({.name = "L_without_lse", .parts = 3, .ragged = true, .with_lse = false});
  cases.push_back({.name = "C_huge_logits", .parts_dtype = DType::kF32, .out_dtype = DType::kF32, .lse_shift = 1000});
  cases.push_back({.name = "C_tiny_logits", .parts_dtype = DType::kF32, .out_dtype = DType::kF32, .lse_shift = -1000});
  cases.push_back({.name = "B_no_parts", .parts = 0});
  cases.push_back({.name = "B_no_keys", .parts = 3, .keys = 0});
  cases.push_back({.name = "B_no_batch", .b = 0});
  cases.push_back({.name = "B_no_rows", .s_q = 0, .ragged = true});
  cases.push_back({.name = "E_many_heads", .parts = 2, .b = 1, .s_q = 3, .h_q = 70000, .d_v = 8, .keys = 4});
  cases.push_back({.name = "E_many_rows", .parts = 2, .b = 1, .s_q = 70000, .h_q = 2, .d_v = 8, .keys = 4});
  cases.push_back({.name = "E_many_sequences", .parts = 2, .b = 70000, .s_q = 1, .h_q = 2, .d_v = 8, .keys = 4});
  return cases;
}

}  // namespace

bool register_merge_tests(const char* suite, DeviceKind device, const DeviceMaker& make_device) {
  Registrar registrar(suite, device, make_device);
  for (const MergeCase& test : exact_cases()) {
    registrar.add(test.name, [=](TestDevice& target) { return matches_exact(target, test); });
  }
  const MergeCase floats = {.name = "f32", .parts = 3, .parts_dtype = DType::kF32, .out_dtype = DType::kF32};
  const MergeCase bf16 = {.name = "bf16", .parts = 3};
  registrar.add("F_tolerance", [=](TestDevice& target) { return check_refuses_faults(target, floats); });
  registrar.add("F_tolerance_bf16", [=](TestDevice& target) { return check_refuses_faults(target, bf16); });
  registrar.add("C_nan_stays_in_its_row", [=](TestDevice& target) { return keeps_nan_in_its_row(target, floats); });
  registrar.add("C_negligible_parts", [=](TestDevice& target) { return ignores_negligible_parts(target, floats); });
  return true;
}

}  // namespace fp8attn::test
