// Every tolerance of the prefill tests must reject outputs that are wrong: zeros, a head copied over another, a dropped
// scale, keys or windows off by one, another sequence's length, an lse off by ln 448 or in the other base.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <ostream>
#include <string>
#include <vector>

#include "prefill_methods.h"

namespace fp8attn::test {
namespace {

struct Control {
  PrefillCase test;
  DeviceKind device;
};

void PrintTo(const Control& control, std::ostream* stream) { *stream << control.test.name; }

std::vector<Control> all_controls() {
  std::vector<Control> all;
  const auto add = [&](PrefillCase test, DeviceKind device, const char* name) {
    // Few enough keys that a single one matters more than 8-bit rounding.
    test.n = {.b = 2, .s_q = 70, .s_kv = 130, .h_q = 4, .h_kv = 2, .d_qk = 64, .d_v = 64};
    test.name = name;
    if (test.dtype == DType::kE4M3) test.k_scale = test.v_scale = ScaleForm::kBatchHead;
    if (test.dtype == DType::kE4M3 && !test.q_dtype) test.q_scale = ScaleForm::kBatchHead;
    all.push_back({test, device});
  };
  add({.name = "", .p_mode = PMode::kExact}, DeviceKind::kCuda, "Fp8Exact");
  add({.name = "", .p_mode = PMode::kDefault}, DeviceKind::kCuda, "Fp8Default");
  add({.name = "", .p_mode = PMode::kFast}, DeviceKind::kCuda, "Fp8Fast");
  add({.name = "", .data = DataSet::kOutliers}, DeviceKind::kCuda, "Fp8Outliers");
  add({.name = "", .dtype = DType::kBF16}, DeviceKind::kCuda, "Bf16");
  add({.name = "", .dtype = DType::kFP16, .out_dtype = DType::kFP16}, DeviceKind::kCuda, "Fp16");
  add({.name = "", .out_dtype = DType::kF32, .arithmetic = CpuArithmetic::kFloat32}, DeviceKind::kCpu, "Float32");
  add({.name = "", .q_dtype = DType::kBF16}, DeviceKind::kCuda, "Bf16Query");
  add({.name = "", .out_dtype = DType::kE4M3, .out_scale = 0.0137f}, DeviceKind::kCuda, "Fp8Output");
  // All that changes logits and outputs, where sequences differ.
  const PrefillCase batch{.name = "",
                          .batch = {.ragged_q = true,
                                    .keys = KeyForm::kPaged,
                                    .q_lengths = {70, 40},
                                    .kv_lengths = {130, 100},
                                    .page_size = 24},
                          .causal = true,
                          .window_left = 40,
                          .softcap = 2.0f,
                          .sinks = true,
                          .lse_base = LseBase::k2};
  const auto add_batch = [&](DType dtype, DType out_dtype, const char* name) {
    PrefillCase test = batch;
    test.dtype = dtype;
    test.out_dtype = out_dtype;
    if (out_dtype == DType::kE4M3) test.out_scale = 0.0137f;
    if (dtype == DType::kF32) test.arithmetic = CpuArithmetic::kFloat64;
    add(test, dtype == DType::kF32 ? DeviceKind::kCpu : DeviceKind::kCuda, name);
  };
  add_batch(DType::kE4M3, DType::kBF16, "BatchFp8");
  add_batch(DType::kE4M3, DType::kE4M3, "BatchFp8Output");
  add_batch(DType::kBF16, DType::kBF16, "BatchBf16");
  add_batch(DType::kF32, DType::kF32, "BatchFloat64");
  return all;
}

std::vector<Control> controls_that(bool (*fit)(const PrefillCase&)) {
  std::vector<Control> controls = all_controls();
  std::erase_if(controls, [=](const Control& control) { return !fit(control.test); });
  return controls;
}

bool has_scales(const PrefillCase& test) { return test.q_scale != ScaleForm::kNone; }
bool has_output_scale(const PrefillCase& test) { return test.out_scale.has_value(); }
bool is_uneven(const PrefillCase& test) { return test.batch.uneven(); }

std::string name_of_control(const ::testing::TestParamInfo<Control>& info) { return info.param.test.name; }

class NegativeControl : public ::testing::TestWithParam<Control> {
 protected:
  NegativeControl()
      : inputs_(make_inputs(test_)),
        reference_(make_reference(test_, inputs_, sample_rows(test_, test_.n.s_q))),
        right_(as_output(reference_)) {}

  // A reference of all rows, rounded to the dtype of the output.
  PrefillOutput as_output(const Reference& reference) const {
    const Dims& n = test_.n;
    std::vector<float> out, lse;
    for (std::int64_t b = 0; b < n.b; ++b) {
      for (std::int64_t row = 0; row < n.s_q; ++row) {
        for (std::int64_t head = 0; head < n.h_q; ++head) {
          out.insert(out.end(), reference.out_at(b, head, row), reference.out_at(b, head, row) + n.d_v);
        }
      }
    }
    for (float& value : out) value /= test_.out_scale.value_or(1.0f);
    for (double value : reference.lse) lse.push_back(static_cast<float>(value));
    return {encode_tensor(test_.out_dtype, {n.b, n.s_q, n.h_q, n.d_v}, out),
            encode_tensor(DType::kF32, {n.b, n.h_q, 1, n.s_q}, lse), ""};
  }

  bool accepts(const PrefillOutput& output) const {
    return bool{check(test_, reference_, output, tolerance_for(test_, GetParam().device))};
  }

  PrefillOutput with_inputs(const PrefillInputs& inputs) const {
    return as_output(make_reference(test_, inputs, reference_.rows));
  }

  const PrefillCase test_ = GetParam().test;
  const PrefillInputs inputs_;
  const Reference reference_;
  const PrefillOutput right_;
};

// Of the 8-bit cases: others have no scales.
class ScaleControl : public NegativeControl {};

class OutputScaleControl : public NegativeControl {};

// Of those with all that a batch can have. Inputs are made for the case as it is, and taken for another.
class BatchControl : public NegativeControl {
 protected:
  bool accepts_taken_for(PrefillCase other) const {
    return accepts(as_output(make_reference(other, inputs_, reference_.rows)));
  }
};

TEST_P(NegativeControl, F_AcceptsTheReference) { EXPECT_TRUE(accepts(right_)); }

TEST_P(NegativeControl, F_RejectsZeros) {
  PrefillOutput output = right_;
  std::fill(output.out.bytes.begin(), output.out.bytes.end(), std::uint8_t{0});
  EXPECT_FALSE(accepts(output));
}

TEST_P(NegativeControl, F_RejectsACopiedHead) {
  PrefillOutput output = right_;
  const std::int64_t head_bytes = test_.n.d_v * size_of(test_.out_dtype);
  for (std::int64_t row = 0; row < test_.n.b * test_.n.s_q; ++row) {
    std::uint8_t* heads = &output.out.bytes[row * test_.n.h_q * head_bytes];
    std::memcpy(heads + head_bytes, heads, head_bytes);
  }
  EXPECT_FALSE(accepts(output));
}

TEST_P(NegativeControl, F_RejectsOneWrongRow) {
  PrefillOutput output = right_;
  const std::int64_t row_bytes = test_.n.h_q * test_.n.d_v * size_of(test_.out_dtype);
  std::memcpy(&output.out.bytes[20 * row_bytes], &output.out.bytes[21 * row_bytes], row_bytes);
  EXPECT_FALSE(accepts(output));
}

TEST_P(ScaleControl, F_RejectsADroppedScale) {
  for (auto scale : {&PrefillInputs::q_scale, &PrefillInputs::k_scale, &PrefillInputs::v_scale}) {
    PrefillInputs inputs = inputs_;
    (inputs.*scale).form = ScaleForm::kNone;
    EXPECT_FALSE(accepts(with_inputs(inputs)));
  }
}

TEST_P(ScaleControl, F_RejectsTheScaleOfAnotherHead) {
  for (auto scale : {&PrefillInputs::q_scale, &PrefillInputs::k_scale, &PrefillInputs::v_scale}) {
    PrefillInputs inputs = inputs_;
    std::vector<float>& values = (inputs.*scale).values;
    std::rotate(values.begin(), values.begin() + 1, values.end());
    EXPECT_FALSE(accepts(with_inputs(inputs)));
  }
}

TEST_P(NegativeControl, F_RejectsKeysOffByOne) {
  EXPECT_FALSE(accepts(as_output(make_reference(test_, inputs_, reference_.rows, 1))));
}

TEST_P(BatchControl, L_RejectsAWindowOffByOne) {
  PrefillCase wider = test_, narrower = test_;
  ++wider.window_left;
  --narrower.window_left;
  EXPECT_FALSE(accepts_taken_for(wider));
  EXPECT_FALSE(accepts_taken_for(narrower));
}

TEST_P(BatchControl, L_RejectsALostSoftcap) {
  PrefillCase uncapped = test_;
  uncapped.softcap = 0.0f;
  EXPECT_FALSE(accepts_taken_for(uncapped));
}

TEST_P(BatchControl, L_RejectsLostSinksAndThoseOfOtherHeads) {
  PrefillInputs inputs = inputs_;
  std::ranges::rotate(inputs.sinks, inputs.sinks.begin() + 1);
  EXPECT_FALSE(accepts(with_inputs(inputs)));
  inputs.sinks.clear();
  EXPECT_FALSE(accepts(with_inputs(inputs)));
}

TEST_P(BatchControl, L_RejectsTheOtherBase) {
  PrefillCase natural = test_;
  natural.lse_base = LseBase::kE;
  EXPECT_FALSE(accepts_taken_for(natural));
}

TEST_P(BatchControl, H_RejectsLengthsOffByOne) {
  for (std::int64_t by : {-1, 1}) {
    PrefillCase other = test_;
    other.batch.kv_lengths[1] += by;
    EXPECT_FALSE(accepts_taken_for(other));
  }
}

TEST_P(BatchControl, H_RejectsAnotherPage) {
  PrefillInputs inputs = inputs_;
  const std::int64_t page_bytes = test_.batch.page_size * test_.n.h_kv * test_.n.d_v * size_of(test_.dtype);
  std::swap_ranges(inputs.v.bytes.begin(), inputs.v.bytes.begin() + page_bytes, inputs.v.bytes.begin() + page_bytes);
  EXPECT_FALSE(accepts(with_inputs(inputs)));
}

TEST_P(OutputScaleControl, F_RejectsADroppedOutputScale) {
  PrefillOutput output = right_;
  std::vector<float> values = right_.out.values();
  for (float& value : values) value *= *test_.out_scale;
  output.out = encode_tensor(test_.out_dtype, right_.out.shape, values);
  EXPECT_FALSE(accepts(output));
}

TEST_P(NegativeControl, F_RejectsLseOffByTheProbabilityFactor) {
  std::vector<float> lse = right_.lse.values();
  for (float& value : lse) value += std::log(448.0f);
  PrefillOutput output = right_;
  output.lse = encode_tensor(DType::kF32, right_.lse.shape, lse);
  EXPECT_FALSE(accepts(output));
}

TEST_P(NegativeControl, F_RejectsNan) {
  PrefillOutput output = right_;
  std::vector<float> values = right_.out.values();
  values[values.size() / 2] = std::nanf("");
  output.out = encode_tensor(test_.out_dtype, right_.out.shape, values);
  EXPECT_FALSE(accepts(output));
}

INSTANTIATE_TEST_SUITE_P(Tolerances, NegativeControl, ::testing::ValuesIn(all_controls()), name_of_control);
INSTANTIATE_TEST_SUITE_P(Tolerances, ScaleControl, ::testing::ValuesIn(controls_that(has_scales)), name_of_control);
INSTANTIATE_TEST_SUITE_P(Tolerances, OutputScaleControl, ::testing::ValuesIn(controls_that(has_output_scale)),
                         name_of_control);
INSTANTIATE_TEST_SUITE_P(Tolerances, BatchControl, ::testing::ValuesIn(controls_that(is_uneven)), name_of_control);

// NaN in what a row sees reaches it; NaN in what it does not see does not.
class VisibleNan : public ::testing::TestWithParam<CpuArithmetic> {};

TEST_P(VisibleNan, A_ReachesItsRowsOnly) {
  const auto device = make_cpu_device();
  for (DType dtype : {DType::kE4M3, DType::kBF16, DType::kFP16, DType::kF32}) {
    for (std::int64_t s_kv : {1, 100, 257}) {
      PrefillCase test;
      test.name = name_of(dtype);
      test.n = {.b = 2, .s_q = 70, .s_kv = s_kv, .h_q = 2, .h_kv = 1};
      test.dtype = dtype;
      test.causal = true;
      test.arithmetic = GetParam();
      EXPECT_TRUE(nan_reaches_its_rows_only(*device, test));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Arithmetics, VisibleNan,
                         ::testing::Values(CpuArithmetic::kFloat32, CpuArithmetic::kFloat64, CpuArithmetic::kEmulated,
                                           CpuArithmetic::kEmulated13),
                         [](const auto& info) { return std::string(name_of(info.param)); });

}  // namespace
}  // namespace fp8attn::test
