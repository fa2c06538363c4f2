#include "mla_methods.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>

#include "method_tools.h"
#include "mla_run.h"

namespace fp8attn::test {
namespace {

using ::testing::AssertionFailure;
using ::testing::AssertionResult;
using ::testing::AssertionSuccess;

// Relative L2 of everything. NaN where something is.
double overall_error(const MlaCase& test, const Reference& reference, const PrefillOutput& output) {
  const std::vector<float> out = output.out.values();
  double error2 = 0, reference2 = 0;
  for (std::int64_t i = 0; i < output.out.count(); ++i) {
    const std::int64_t channel = i % kLatentDim, head = i / kLatentDim % test.h_q;
    const std::int64_t row = i / kLatentDim / test.h_q;
    const double want = reference.out_at(row / test.s_q, head, row % test.s_q)[channel];
    error2 += (out[i] - want) * (out[i] - want);
    reference2 += want * want;
  }
  return error2 == 0 ? 0 : std::sqrt(error2 / reference2);
}

AssertionResult within(const MlaCase& test, const Reference& reference, const PrefillOutput& output,
                       const MlaTolerance& tolerance) {
  AssertionResult result = check(test.shape(), reference, output, tolerance.worst);
  const double overall = overall_error(test, reference, output);
  if (!(overall <= tolerance.overall)) {
    append(result,
           AssertionFailure() << test.name << " " << name_of(test.arithmetic)
                              << fmt::format(": relative L2 of all {:.3e} > {:.3e}", overall, tolerance.overall));
  }
  return result;
}

void for_each_float(HostTensor& tensor, auto change) {
  std::vector<float> values = tensor.values();
  change(values);
  tensor = encode_tensor(tensor.dtype, tensor.shape, values);
}

}  // namespace

AssertionResult mla_matches_reference(TestDevice& device, const std::vector<MlaCase>& forms) {
  const MlaInputs inputs = make_mla_inputs(forms.front());
  std::map<MlaTruth, Reference> references;  // those that are asked for: they take most of the time
  const auto reference = [&](MlaTruth truth) -> const Reference& {
    if (!references.contains(truth)) references[truth] = make_mla_reference(forms.front(), inputs, truth);
    return references[truth];
  };
  AssertionResult result = AssertionSuccess();
  for (const MlaCase& test : forms) {
    const PrefillOutput output = run_mla(device, test, inputs);
    const bool exact = device.device().kind == DeviceKind::kCpu &&
                       (test.arithmetic == CpuArithmetic::kFloat32 || test.arithmetic == CpuArithmetic::kFloat64);
    const bool rounds_query = !exact && test.format != CacheFormat::kBF16;
    const MlaTolerance tolerance = mla_tolerance_for(test, device.device().kind);
    append(result,
           within(test, reference(rounds_query ? MlaTruth::kStoredQuantised : MlaTruth::kStored), output, tolerance));
    if (tolerance.end_to_end == 0) continue;
    const double end_to_end = overall_error(test, reference(MlaTruth::kInputs), output);
    if (!(end_to_end <= tolerance.end_to_end)) {
      append(result,
             AssertionFailure() << test.name
                                << fmt::format(": end to end {:.3e} > {:.3e}", end_to_end, tolerance.end_to_end));
    }
  }
  return result;
}

AssertionResult mla_tolerance_refuses_faults(TestDevice& device, const MlaCase& test) {
  MlaInputs inputs = make_mla_inputs(test);
  const Reference reference = make_mla_reference(test, inputs, MlaTruth::kStoredQuantised);
  const MlaTolerance tolerance = mla_tolerance_for(test, device.device().kind);
  const PrefillOutput right = run_mla(device, test, inputs);
  AssertionResult result = within(test, reference, right, tolerance);
  const auto refuse = [&](const char* what, const PrefillOutput& wrong, const Reference& truth) {
    if (within(test, truth, wrong, tolerance)) append(result, AssertionFailure() << test.name << " accepts " << what);
  };
  PrefillOutput zeros = right, copied = right, shifted = right;
  std::ranges::fill(zeros.out.bytes, std::uint8_t{0});
  refuse("zeros", zeros, reference);
  std::memcpy(copied.out.bytes.data() + kLatentDim * size_of(test.out_dtype), copied.out.bytes.data(),
              kLatentDim * size_of(test.out_dtype));
  refuse("a head copied over another", copied, reference);
  for_each_float(shifted.lse, [](std::vector<float>& lse) {
    for (float& value : lse) value += std::log(448.0f);
  });
  refuse("lse off by log 448", shifted, reference);
  refuse("a token too many", right, make_mla_reference(test, inputs, MlaTruth::kStoredQuantised, 1));
  MlaInputs unscaled = inputs;
  unscaled.cache_scale = 1.0f;
  for (const auto& slots : inputs.slots) {
    for (std::int64_t slot : slots) {
      const float ones[4] = {0.01f, 0.01f, 0.01f, 0.01f};
      if (record_dtype(test.format) == DType::kU8) {
        std::memcpy(&unscaled.cache[slot * record_bytes(test.format) + kRecordScaleOffset], ones, sizeof ones);
      }
    }
  }
  if (test.format != CacheFormat::kBF16) refuse("a scale left out", run_mla(device, test, unscaled), reference);
  return result;
}

AssertionResult mla_ignores_poison(TestDevice& device, const MlaCase& test) {
  const MlaInputs inputs = make_mla_inputs(test);
  const PrefillOutput plain = run_mla(device, test, inputs);
  AssertionResult result = AssertionSuccess();
  for (bool wide : {false, true}) {
    for (Gap gap : {Gap::kZeros, Gap::kNan}) {
      const MlaOptions options{.gap = gap, .wide_strides = wide, .wild_table = gap == Gap::kNan};
      append(result, same_bits(run_mla(device, test, inputs, options), plain,
                               fmt::format("{}, {}, {}", test.name, wide ? "wide strides" : "dense",
                                           gap == Gap::kNan ? "NaN" : "zeros")));
    }
  }
  return result;
}

// Real latents of 1 come back as 448 times a scale of 1 / 448: not exactly 1.
AssertionResult mla_counts_tokens(TestDevice& device, MlaCase test) {
  MlaInputs inputs = make_mla_inputs(test);
  std::ranges::fill(inputs.q.bytes, std::uint8_t{0});
  const std::int64_t longest = std::max<std::int64_t>(1, std::ranges::max(test.lengths));
  const std::int64_t per_channel = (longest + kLatentDim - 1) / kLatentDim;
  for (std::vector<float>& tokens : inputs.tokens) {
    std::ranges::fill(tokens, 0.0f);
    for (std::size_t i = 0; i < tokens.size() / kMlaDim; ++i) tokens[i * kMlaDim + i / per_channel] = 1.0f;
  }
  store_tokens(test, inputs);
  const PrefillOutput output = run_mla(device, test, inputs);
  const std::vector<float> out = output.out.values(), lse = output.lse.values();
  const double unit = test.format == CacheFormat::kTensor ? stored_tokens(test, inputs, 0)[0] : 1.0;
  for (std::int64_t row = 0; row < test.batch() * test.s_q; ++row) {
    const std::int64_t batch = row / test.s_q, query = row % test.s_q;
    std::vector<double> count(kLatentDim, 0.0);
    const std::vector<std::int64_t> seen = visible_tokens(test, inputs, batch, query);
    for (std::int64_t token : seen) count[token / per_channel] += 1.0;
    for (std::int64_t i = 0; i < test.h_q * kLatentDim; ++i) {
      const double got = out[row * test.h_q * kLatentDim + i] / unit;
      const double want = seen.empty() ? 0.0 : count[i % kLatentDim] / static_cast<double>(seen.size());
      if (std::abs(got - want) <= 5e-3 * want) continue;
      return AssertionFailure() << test.name << ": sequence " << batch << ", query " << query << ", channel "
                                << i % kLatentDim << ": got " << got * static_cast<double>(seen.size()) << " tokens of "
                                << seen.size() << ", expected " << count[i % kLatentDim];
    }
    for (std::int64_t head = 0; head < test.h_q; ++head) {
      const float got = lse[(batch * test.h_q + head) * test.s_q + query];
      const double want = std::log(static_cast<double>(seen.size()));
      if (got == want || std::abs(got - want) <= 1e-4) continue;
      return AssertionFailure() << test.name << ": lse " << got << ", expected " << want;
    }
  }
  return AssertionSuccess();
}

AssertionResult mla_same_in_other_pages(TestDevice& device, const MlaCase& test) {
  const PrefillOutput first = run_mla(device, test, make_mla_inputs(test));
  MlaCase other = test;
  other.page_seed = 99;
  other.index_dtype = test.index_dtype == DType::kI32 ? DType::kI64 : DType::kI32;
  return same_bits(run_mla(device, other, make_mla_inputs(other)), first, test.name);
}

AssertionResult mla_same_when_shared(TestDevice& device, const MlaCase& test) {
  MlaInputs inputs = make_mla_inputs(test);
  // All sequences have the tokens of the first.
  for (std::int64_t batch = 1; batch < test.batch(); ++batch) {
    std::copy_n(inputs.tokens[0].begin(), inputs.tokens[batch].size(), inputs.tokens[batch].begin());
  }
  store_tokens(test, inputs);
  const PrefillOutput own = run_mla(device, test, inputs);
  for (std::int64_t batch = 1; batch < test.batch(); ++batch) {
    std::copy_n(inputs.block_table.begin(), inputs.max_pages, inputs.block_table.begin() + batch * inputs.max_pages);
  }
  return same_bits(run_mla(device, test, inputs), own, test.name);
}

AssertionResult mla_same_alone(TestDevice& device, const MlaCase& test) {
  const MlaInputs inputs = make_mla_inputs(test);
  const PrefillOutput together = run_mla(device, test, inputs);
  AssertionResult result = AssertionSuccess();
  for (std::int64_t batch = 0; batch < test.batch(); ++batch) {
    MlaCase alone = test;
    alone.name += fmt::format(", sequence {} alone", batch);
    alone.lengths = {test.lengths[batch]};
    MlaInputs one = inputs;
    const std::int64_t query_bytes = test.s_q * test.h_q * kMlaDim * size_of(test.q_dtype);
    one.q.shape[0] = 1;
    one.q.bytes.assign(inputs.q.bytes.begin() + batch * query_bytes,
                       inputs.q.bytes.begin() + (batch + 1) * query_bytes);
    one.tokens = {inputs.tokens[batch]};
    one.slots = {inputs.slots[batch]};
    one.block_table.assign(inputs.block_table.begin() + batch * inputs.max_pages,
                           inputs.block_table.begin() + (batch + 1) * inputs.max_pages);
    const PrefillOutput output = run_mla(device, alone, one);
    if (device.device().kind == DeviceKind::kCpu) {
      PrefillOutput part = output;
      const std::int64_t out_bytes = static_cast<std::int64_t>(output.out.bytes.size());
      const std::int64_t lse_bytes = static_cast<std::int64_t>(output.lse.bytes.size());
      std::copy_n(together.out.bytes.begin() + batch * out_bytes, out_bytes, part.out.bytes.begin());
      std::copy_n(together.lse.bytes.begin() + batch * lse_bytes, lse_bytes, part.lse.bytes.begin());
      append(result, same_bits(output, part, alone.name));
    }
    const Reference reference = make_mla_reference(alone, one, MlaTruth::kStoredQuantised);
    append(result, within(alone, reference, output, mla_tolerance_for(alone, device.device().kind)));
  }
  return result;
}

AssertionResult mla_same_every_time(TestDevice& device, const MlaCase& test, const MlaCase& between) {
  MlaRun run(device, test, make_mla_inputs(test)), other(device, between, make_mla_inputs(between));
  run.launch();
  const PrefillOutput first = run.read();
  const int repeats = device.device().kind == DeviceKind::kCpu ? 5 : 100;
  for (int i = 0; i < repeats; ++i) {
    run.clear_output();
    other.launch();
    run.launch();
    if (AssertionResult same = same_bits(run.read(), first, fmt::format("{}, repeat {}", test.name, i)); !same) {
      return same;
    }
  }
  return AssertionSuccess();
}

AssertionResult mla_sinks_only_dilute(TestDevice& device, MlaCase test) {
  test.sinks = false;
  const PrefillOutput plain = run_mla(device, test, make_mla_inputs(test));
  test.sinks = true;
  MlaInputs inputs = make_mla_inputs(test);
  const PrefillOutput diluted = run_mla(device, test, inputs);
  AssertionResult result = AssertionSuccess();
  if (diluted.lse.bytes != plain.lse.bytes) append(result, AssertionFailure() << test.name << ": sinks change lse");
  const std::vector<float> before = plain.out.values(), after = diluted.out.values(), lse = plain.lse.values();
  for (std::size_t i = 0; i < before.size(); ++i) {
    const std::int64_t head = i / kLatentDim % test.h_q, row = i / kLatentDim / test.h_q;
    const double logit = lse[(row / test.s_q * test.h_q + head) * test.s_q + row % test.s_q];
    const double want = std::isinf(logit) ? 0.0 : before[i] / (1.0 + std::exp(inputs.sinks[head] - logit));
    if (std::abs(after[i] - want) <= 0x1p-7 * std::abs(want) + 1e-6) continue;
    return AssertionFailure() << test.name << ": head " << head << ": " << after[i] << ", expected " << want;
  }
  std::ranges::fill(inputs.sinks, -INFINITY);
  append(result, same_bits(run_mla(device, test, inputs), plain, test.name + ", sinks of -infinity"));
  return result;
}

AssertionResult mla_clamps_lengths(TestDevice& device, MlaCase test) {
  // The first sequence fills its row of the table, the second has nothing.
  const MlaInputs inputs = make_mla_inputs(test);
  const PrefillOutput want = run_mla(device, test, inputs);
  MlaCase wild = test;
  wild.lengths[0] += 1000000000;
  wild.lengths[1] = -5;
  return same_bits(run_mla(device, wild, inputs), want, test.name);
}

AssertionResult mla_sparse_equals_dense(TestDevice& device, MlaCase test) {
  MlaInputs inputs = make_mla_inputs(test);
  test.topk = std::ranges::max(test.lengths);
  for (std::int64_t row = 0; row < test.batch() * test.s_q; ++row) {
    for (std::int64_t i = 0; i < *test.topk; ++i) {
      const bool there = i < test.lengths[row / test.s_q];
      inputs.picked.push_back(there ? i : -1);
      inputs.indices.push_back(there ? inputs.slots[row / test.s_q][i] : -1);
    }
    inputs.topk_length.push_back(*test.topk);
  }
  const Reference reference = make_mla_reference(test, inputs, MlaTruth::kStoredQuantised);
  return within(test, reference, run_mla(device, test, inputs), mla_tolerance_for(test, device.device().kind));
}

}  // namespace fp8attn::test
