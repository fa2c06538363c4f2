#include "prefill_methods.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "method_tools.h"

namespace fp8attn::test {
namespace {

using ::testing::AssertionFailure;
using ::testing::AssertionResult;
using ::testing::AssertionSuccess;

constexpr std::int64_t kReferenceRows = 64;

const char* text_of(Gap gap) { return gap == Gap::kNan ? "NaN" : "0"; }

// The same elements for every index of dim 0 (batch) or 2 (head) of a [b, s, h, d] tensor.
void repeat_first(HostTensor& tensor, int dim) {
  const std::int64_t bytes = tensor.shape[3] * size_of(tensor.dtype);
  const std::int64_t s = tensor.shape[1], h = tensor.shape[2];
  for (std::int64_t row = 0; row < tensor.shape[0] * s * h; ++row) {
    const std::int64_t head = row % h, token = row / h % s, batch = row / (h * s);
    const std::int64_t source = dim == 0 ? token * h + head : (batch * s + token) * h;
    if (source != row) std::memcpy(&tensor.bytes[row * bytes], &tensor.bytes[source * bytes], bytes);
  }
}

Errors errors_of(TestDevice& device, const PrefillCase& test, const PrefillInputs& inputs, const Reference& reference) {
  return measure(test, reference, run_prefill(device, test, inputs));
}

// Keys with indicator `channel`: a run of consecutive ones.
std::int64_t keys_per_channel(const Dims& n) { return (n.s_kv + n.d_v - 1) / n.d_v; }

PrefillInputs make_counting_inputs(const PrefillCase& test) {
  PrefillInputs inputs = make_inputs(test);
  std::fill(inputs.q.bytes.begin(), inputs.q.bytes.end(), std::uint8_t{0});
  std::vector<float> v(inputs.v.count(), 0.0f);
  for (std::int64_t row = 0; row < test.n.b * test.n.s_kv * test.n.h_kv; ++row) {
    v[row * test.n.d_v + row / test.n.h_kv % test.n.s_kv / keys_per_channel(test.n)] = 1.0f;
  }
  inputs.v = encode_tensor(test.dtype, inputs.v.shape, v);
  return inputs;
}

}  // namespace

AssertionResult matches_reference(TestDevice& device, const std::vector<PrefillCase>& forms) {
  const PrefillInputs inputs = make_inputs(forms.front());
  const auto reference_of = [&](const PrefillInputs& inputs) {
    return make_reference(forms.front(), inputs, sample_rows(forms.front(), kReferenceRows));
  };
  const Reference reference = reference_of(inputs);
  // What a kernel makes of a 16-bit q is looked at apart from what it makes of the e4m3 one.
  const bool rounds_queries = forms.front().q_dtype.has_value();
  const Reference rounded = rounds_queries ? reference_of(with_rounded_queries(forms.front(), inputs)) : Reference();
  const bool cpu = device.device().kind == DeviceKind::kCpu;
  AssertionResult result = AssertionSuccess();
  for (const PrefillCase& test : forms) {
    const bool exact =
        cpu && (test.arithmetic == CpuArithmetic::kFloat32 || test.arithmetic == CpuArithmetic::kFloat64);
    const PrefillOutput output = run_prefill(device, test, inputs);
    append(result, check(test, rounds_queries && !exact ? rounded : reference, output,
                         tolerance_for(test, device.device().kind)));
  }
  return result;
}

AssertionResult ignores_poison(TestDevice& device, const PrefillCase& test) {
  const PrefillInputs inputs = make_inputs(test);
  const PrefillOutput dense = run_prefill(device, test, inputs);
  AssertionResult result = AssertionSuccess();
  for (Layout layout : {Layout::kPadded, Layout::kPackedQkv, Layout::kTransposedHeads}) {
    for (int poisoned = 0; poisoned < 8; ++poisoned) {
      const auto gap = [=](int bit) { return poisoned & bit ? Gap::kNan : Gap::kZeros; };
      const RunOptions options{
          .q = layout, .k = layout, .v = layout, .out = layout, .q_gap = gap(1), .k_gap = gap(2), .v_gap = gap(4)};
      append(result, same_bits(run_prefill(device, test, inputs, options), dense,
                               fmt::format("{}, {}, {} around q, {} around k, {} around v", test.name, name_of(layout),
                                           text_of(gap(1)), text_of(gap(2)), text_of(gap(4)))));
    }
  }
  return result;
}

AssertionResult counts_keys(TestDevice& device, PrefillCase test) {
  const Dims& n = test.n;
  const PrefillInputs inputs = make_counting_inputs(test);
  const RunOptions nan_around{.q_gap = Gap::kNan, .k_gap = Gap::kNan, .v_gap = Gap::kNan};
  const PrefillOutput output = run_prefill(device, test, inputs, nan_around);
  if (!output.wrong_write.empty()) return AssertionFailure() << test.name << ": " << output.wrong_write;
  const std::vector<float> out = output.out.values(), lse = output.lse.values();
  const double relative = test.out_dtype == DType::kF32 ? 1e-5 : test.out_dtype == DType::kFP16 ? 0x1p-11 : 0x1p-8;
  for (std::int64_t i = 0; i < output.out.count(); ++i) {
    const std::int64_t channel = i % n.d_v, head = i / n.d_v % n.h_q, row = i / (n.d_v * n.h_q) % n.s_q;
    const std::int64_t batch = i / (n.d_v * n.h_q * n.s_q);
    if (row >= test.queries(batch)) continue;
    const KeyRange visible = visible_keys(test, batch, row);
    const std::int64_t first = channel * keys_per_channel(n), behind = first + keys_per_channel(n);
    const std::int64_t counted =
        std::max<std::int64_t>(0, std::min(visible.end, behind) - std::max(visible.begin, first));
    const double sink = inputs.sinks.empty() ? 0.0 : std::exp(double{inputs.sinks[head]});
    const double weights = static_cast<double>(visible.count()) + sink;
    const double want = visible.count() == 0 ? 0.0 : static_cast<double>(counted) / weights;
    if (!(std::abs(out[i] - want) <= relative * want)) {
      return AssertionFailure() << test.name << ": sequence " << batch << ", row " << row << ", channel " << channel
                                << ": got " << out[i] * weights << " keys, expected " << counted << " of the "
                                << visible.count() << " visible ones";
    }
  }
  for (std::int64_t i = 0; i < output.lse.count(); ++i) {
    const std::int64_t batch = i / (n.h_q * n.s_q), row = i % n.s_q;
    if (row >= test.queries(batch)) continue;
    const double want = std::log(static_cast<double>(visible_keys(test, batch, row).count()));
    if (lse[i] == want || std::abs(lse[i] - want) <= 1e-4) continue;
    return AssertionFailure() << test.name << ": sequence " << batch << ", row " << row << ": lse " << lse[i]
                              << ", expected " << want;
  }
  return AssertionSuccess();
}

AssertionResult same_when_expanded(TestDevice& device, const PrefillCase& test) {
  AssertionResult result = AssertionSuccess();
  for (Layout layout : {Layout::kExpandedHeads, Layout::kExpandedBatch, Layout::kOddSizeOne}) {
    PrefillInputs inputs = make_inputs(test);
    if (layout != Layout::kOddSizeOne) {
      const int dim = layout == Layout::kExpandedBatch ? 0 : 2;
      repeat_first(inputs.k, dim);
      repeat_first(inputs.v, dim);
    }
    const bool odd = layout == Layout::kOddSizeOne;
    const RunOptions options{
        .q = odd ? layout : Layout::kDense, .k = layout, .v = layout, .out = odd ? layout : Layout::kDense};
    append(result, same_bits(run_prefill(device, test, inputs, options), run_prefill(device, test, inputs),
                             fmt::format("{}, {}", test.name, name_of(layout))));
  }
  return result;
}

AssertionResult same_when_shifted(TestDevice& device, const PrefillCase& test) {
  constexpr Layout kShifted = Layout::kShifted;
  const PrefillInputs inputs = make_inputs(test);
  const RunOptions options{.q = kShifted, .k = kShifted, .v = kShifted, .out = kShifted};
  return same_bits(run_prefill(device, test, inputs, options), run_prefill(device, test, inputs), test.name);
}

AssertionResult equal_logits_give_the_mean(TestDevice& device, const PrefillCase& test, float number) {
  PrefillInputs inputs = make_inputs(test);
  for (HostTensor* tensor : {&inputs.q, &inputs.k}) {
    *tensor = encode_tensor(test.dtype, tensor->shape, std::vector<float>(tensor->count(), number));
  }
  const Reference reference = make_reference(test, inputs, sample_rows(test, test.n.s_q));
  Tolerance tolerance = tolerance_for(test, device.device().kind);
  tolerance.lse_abs = 1e-6 * reference.lse.back();  // the last place of such an lse is above 1
  return check(test, reference, run_prefill(device, test, inputs), tolerance);
}

AssertionResult nan_scale_reaches_its_heads(TestDevice& device, PrefillCase test, HostScale PrefillInputs::*scale) {
  test.q_scale = test.k_scale = ScaleForm::kHead;
  const Dims& n = test.n;
  PrefillInputs inputs = make_inputs(test);
  const PrefillOutput clean = run_prefill(device, test, inputs);
  HostScale& spoilt = inputs.*scale;
  spoilt.values.front() = std::nanf("");
  const PrefillOutput got = run_prefill(device, test, inputs);
  const std::int64_t reached = n.h_q / spoilt.heads;  // query heads that share the first head of the scale
  const auto compare = [&](const char* what, const HostTensor& got, const HostTensor& clean, std::int64_t inner) {
    const std::vector<float> values = got.values(), before = clean.values();
    for (std::size_t i = 0; i < values.size(); ++i) {
      const std::int64_t head = static_cast<std::int64_t>(i) / inner % n.h_q;
      if (head < reached ? std::isnan(values[i]) : values[i] == before[i]) continue;
      return AssertionFailure() << test.name << ": head " << head << ": " << what << " " << values[i] << ", was "
                                << before[i] << " without NaN";
    }
    return AssertionSuccess();
  };
  AssertionResult result = compare("out", got.out, clean.out, n.d_v);
  append(result, compare("lse", got.lse, clean.lse, n.s_q));
  return result;
}

AssertionResult survives_the_largest_softmax_scale(TestDevice& device, PrefillCase test) {
  test.softmax_scale = 3e38f;
  const PrefillInputs inputs = make_inputs(test);
  const Reference reference = make_reference(test, inputs, sample_rows(test, test.n.s_q));
  const PrefillOutput output = run_prefill(device, test, inputs);
  const Errors errors = measure(test, reference, output);
  const Tolerance tolerance = tolerance_for(test, device.device().kind);
  if (!(errors.relative_l2 <= tolerance.relative_l2)) {
    return AssertionFailure() << test.name << ": relative L2 " << errors.relative_l2;
  }
  const std::vector<float> lse = output.lse.values();
  for (std::size_t i = 0; i < lse.size(); ++i) {
    const auto want = static_cast<float>(reference.lse[i]);  // infinity where it is beyond the range of float
    if (lse[i] == want || std::abs(lse[i] - want) <= 1e-5f * std::abs(want)) continue;
    return AssertionFailure() << test.name << ": lse " << lse[i] << ", expected " << want;
  }
  return AssertionSuccess();
}

AssertionResult same_every_time(TestDevice& device, const PrefillCase& test, const PrefillCase& between) {
  PrefillRun run(device, test, make_inputs(test));
  PrefillRun other(device, between, make_inputs(between));
  run.launch();
  const PrefillOutput first = run.read();
  for (int i = 0; i < 100; ++i) {
    run.clear_output();
    other.launch();
    run.launch();
    if (AssertionResult same = same_bits(run.read(), first, fmt::format("{}, repeat {}", test.name, i)); !same) {
      return same;
    }
  }
  return AssertionSuccess();
}

AssertionResult default_softmax_scale_is_usual(TestDevice& device, PrefillCase test) {
  const PrefillInputs inputs = make_inputs(test);
  const PrefillOutput usual = run_prefill(device, test, inputs);
  // Powers of four have exact roots, so that the float given is the double that is the default.
  test.softmax_scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(test.n.d_qk)));
  return same_bits(run_prefill(device, test, inputs), usual, test.name);
}

AssertionResult nan_reaches_its_rows_only(TestDevice& device, const PrefillCase& test) {
  const Dims& n = test.n;
  PrefillInputs inputs = make_inputs(test);
  const std::vector<float> clean = run_prefill(device, test, inputs).out.values();
  std::vector<float> v = inputs.v.values();
  const std::int64_t last = (n.s_kv - 1) * n.h_kv * n.d_v;
  std::fill_n(v.begin() + last, n.h_kv * n.d_v, std::nanf(""));
  inputs.v = encode_tensor(test.dtype, inputs.v.shape, v);
  const std::vector<float> got = run_prefill(device, test, inputs).out.values();
  for (std::size_t i = 0; i < got.size(); ++i) {
    const auto row = static_cast<std::int64_t>(i) / (n.h_q * n.d_v);
    const bool sees = row < n.s_q && visible_keys(test, 0, row).end == n.s_kv;
    if (sees ? std::isnan(got[i]) : got[i] == clean[i]) continue;
    return AssertionFailure() << test.name << ": row " << row << (sees ? " sees" : " does not see")
                              << " the NaN and has " << got[i];
  }
  return AssertionSuccess();
}

AssertionResult smoothed_keys_keep_their_lse(TestDevice& device, const PrefillCase& test) {
  const Dims& n = test.n;
  constexpr double kLseTolerance = 0.1;
  const auto shift = [](std::int64_t channel) { return static_cast<float>(2 * (channel * 7 % 5 - 2)); };
  PrefillInputs inputs = make_inputs(test);
  std::vector<float> keys = inputs.k.values();
  for (std::size_t i = 0; i < keys.size(); ++i) keys[i] += shift(static_cast<std::int64_t>(i) % n.d_qk);
  inputs.k = encode_tensor(test.dtype, inputs.k.shape, keys);

  const std::vector<float> queries = inputs.q.values();
  double least = 0, most = 0;  // of what the constant adds to the logits of a query
  for (std::size_t row = 0; row < queries.size(); row += n.d_qk) {
    double added = 0;
    for (std::int64_t c = 0; c < n.d_qk; ++c) added += queries[row + c] * shift(c) / std::sqrt(double(n.d_qk));
    least = std::min(least, added);
    most = std::max(most, added);
  }
  if (most < 5 * kLseTolerance || least > -5 * kLseTolerance) {
    return AssertionFailure() << test.name << ": the constant adds " << least << " to " << most << " only";
  }
  const Reference reference = make_reference(test, inputs, sample_rows(test, kReferenceRows));
  return check(
      test, reference, run_prefill(device, test, inputs),
      {.relative_l2 = tolerance_for(test, device.device().kind).relative_l2, .row_abs = 0.2, .lse_abs = kLseTolerance});
}

AssertionResult p_modes_keep_their_bounds(TestDevice& device, PrefillCase test) {
  const PrefillInputs inputs = make_inputs(test);
  const Reference reference = make_reference(test, inputs, sample_rows(test, 2 * kReferenceRows));
  const auto error = [&](PMode mode) {
    test.p_mode = mode;
    return errors_of(device, test, inputs, reference).relative_l2;
  };
  const double exact = error(PMode::kExact), usual = error(PMode::kDefault), fast = error(PMode::kFast);
  if (exact > 0 && usual <= 1.05 * exact && fast <= 1.25 * exact) return AssertionSuccess();
  return AssertionFailure() << fmt::format("{}: relative L2 {:.4e} (exact), {:.4e} (default), {:.4e} (fast)", test.name,
                                           exact, usual, fast);
}

AssertionResult is_predicted_by_emulation(TestDevice& device, const PrefillCase& test) {
  const PrefillInputs inputs = make_inputs(test);
  const Reference exact = make_reference(test, inputs, sample_rows(test, kReferenceRows));
  const PrefillOutput output = run_prefill(device, test, inputs);
  PrefillCase emulated = test;
  emulated.arithmetic = CpuArithmetic::kEmulated;
  const auto cpu = make_cpu_device();
  const PrefillOutput predicted = run_prefill(*cpu, emulated, inputs);
  Reference prediction = exact;
  const std::vector<float> values = predicted.out.values();
  const std::int64_t channels = test.n.d_v, heads = test.n.h_q;
  for (std::size_t i = 0; i < prediction.out.size(); ++i) {
    const auto line = static_cast<std::int64_t>(i) / channels, rows = static_cast<std::int64_t>(exact.rows.size());
    const std::int64_t row = exact.rows[line % rows], head = line / rows % heads, batch = line / rows / heads;
    prediction.out[i] = values[((batch * test.n.s_q + row) * heads + head) * channels + i % channels];
  }
  const double apart = measure(test, prediction, output).relative_l2;
  const double error = measure(test, exact, output).relative_l2;
  if (apart < error) return AssertionSuccess();
  return AssertionFailure() << fmt::format("{}: {:.3e} from the emulation, {:.3e} from exact attention", test.name,
                                           apart, error);
}

}  // namespace fp8attn::test
