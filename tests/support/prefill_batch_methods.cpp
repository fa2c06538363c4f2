#include "prefill_batch_methods.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>
#include <optional>
#include <utility>
#include <vector>

#include "codec.h"
#include "method_tools.h"
#include "prefill_run.h"

namespace fp8attn::test {
namespace {

using ::testing::AssertionFailure;
using ::testing::AssertionResult;
using ::testing::AssertionSuccess;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Elements of one index of the first dim.
std::int64_t part_bytes(const HostTensor& tensor) { return tensor.count() / tensor.shape[0] * size_of(tensor.dtype); }

HostTensor part_of(const HostTensor& tensor, std::int64_t index) {
  HostTensor part{tensor.dtype, tensor.shape, {}};
  part.shape[0] = 1;
  const auto begin = tensor.bytes.begin() + index * part_bytes(tensor);
  part.bytes.assign(begin, begin + part_bytes(tensor));
  return part;
}

PrefillOutput part_of(const PrefillOutput& output, std::int64_t sequence) {
  return {part_of(output.out, sequence), part_of(output.lse, sequence), output.wrong_write};
}

// The first `tokens` of [1, s, h, d], or of [1, h, 1, s].
HostTensor first_tokens(const HostTensor& tensor, std::int64_t tokens, int token_dim) {
  TokenMap map{.outer = 1, .inner = tokens, .rows = {{}}};
  for (std::int64_t token = 0; token < tokens; ++token) map.rows[0].push_back(token);
  return spread(tensor, map, token_dim, Gap::kZeros);
}

// Of scales that have one for each sequence and head, or for each of its channels.
HostScale part_of(HostScale scale, std::int64_t sequence, std::int64_t sequences) {
  if (scale.form != ScaleForm::kBatchHead && scale.form != ScaleForm::kChannel) return scale;
  const std::int64_t count = std::ssize(scale.values) / sequences;
  const auto begin = scale.values.begin() + sequence * count;
  scale.values = std::vector<float>(begin, begin + count);
  return scale;
}

std::string text_of(const BatchForm& form, const RunOptions& options) {
  constexpr const char* kKeys[] = {"dense", "ragged", "paged"};
  return fmt::format("{} q, {} k, pages of {}, seed {}, {} bits{}", form.ragged_q ? "ragged" : "dense",
                     kKeys[static_cast<int>(form.keys)], form.page_size, form.page_seed, form.int64 ? 64 : 32,
                     options.wide_indices ? ", strided" : "");
}

// Every way in which the sequences of a case can lie. Packed pages are whole groups of tokens, on CUDA whole blocks.
std::vector<BatchForm> forms_of_batch(const PrefillCase& test, DeviceKind device) {
  const bool packed = test.v_layout == VLayout::kPacked;
  // On CUDA short queries have a kernel of their own, unless they are ragged, or the keys are: other bits.
  const bool is_short = device == DeviceKind::kCuda && test.n.s_q * test.n.h_q / test.n.h_kv <= 64;
  std::vector<BatchForm> forms;
  BatchForm form = test.batch;
  for (bool ragged_q : {false, true}) {
    if (!ragged_q && !form.q_lengths.empty()) continue;
    if (is_short && ragged_q) continue;
    form.ragged_q = ragged_q;
    form.keys = KeyForm::kDense;
    forms.push_back(form);
    form.int64 = !form.int64;
    form.keys = KeyForm::kRagged;
    if (!packed && !is_short) forms.push_back(form);
    form.keys = KeyForm::kPaged;
    for (std::int64_t page_size : {1, 5, 16, 24, 48, 63, 64, 65, 128, 192, 256, 1024}) {
      if (packed && page_size % (device == DeviceKind::kCpu ? 16 : 64) != 0) continue;
      form.page_size = page_size;
      form.int64 = !form.int64;
      ++form.page_seed;
      forms.push_back(form);
    }
  }
  return forms;
}

void fill_with_nan(HostTensor& tensor, std::int64_t sequence) {
  const std::vector<std::uint8_t> nan = gap_bytes(part_bytes(tensor), tensor.dtype, Gap::kNan);
  std::ranges::copy(nan, tensor.bytes.begin() + sequence * part_bytes(tensor));
}

// out as real numbers.
std::vector<float> real_output(const PrefillCase& test, const PrefillOutput& output) {
  std::vector<float> values = output.out.values();
  for (float& value : values) value *= test.out_scale.value_or(1.0f);
  return values;
}

// Calls visit(index in out, index in lse) for every element of out that a query has.
template <class Visit>
void for_each_output(const PrefillCase& test, Visit visit) {
  const Dims& n = test.n;
  for (std::int64_t i = 0; i < n.b * n.s_q * n.h_q * n.d_v; ++i) {
    const std::int64_t head = i / n.d_v % n.h_q, row = i / (n.d_v * n.h_q) % n.s_q, b = i / (n.d_v * n.h_q * n.s_q);
    if (row < test.queries(b)) visit(i, (b * n.h_q + head) * n.s_q + row);
  }
}

}  // namespace

AssertionResult same_in_every_layout(TestDevice& device, const PrefillCase& test) {
  const PrefillInputs inputs = make_inputs(test);
  std::optional<PrefillOutput> first;
  AssertionResult result = AssertionSuccess();
  PrefillCase laid_out = test;
  for (const BatchForm& form : forms_of_batch(test, device.device().kind)) {
    laid_out.batch = form;
    const RunOptions options{.wide_indices = form.page_seed % 3 == 0};
    const PrefillOutput output = run_prefill(device, laid_out, inputs, options);
    if (!first) first = output;
    append(result, same_bits(output, *first, fmt::format("{}, {}", test.name, text_of(form, options))));
  }
  return result;
}

AssertionResult same_alone(TestDevice& device, const PrefillCase& test) {
  const PrefillInputs inputs = make_inputs(test);
  const PrefillOutput together = run_prefill(device, test, inputs);
  AssertionResult result = AssertionSuccess();
  for (std::int64_t i = 0; i < test.n.b; ++i) {
    PrefillCase alone = test;
    alone.batch = {.ragged_q = true};  // short dense queries have a kernel of their own on CUDA
    alone.n.b = 1;
    alone.n.s_q = test.queries(i);
    alone.n.s_kv = test.keys(i);
    PrefillInputs own = inputs;
    own.q = first_tokens(part_of(inputs.q, i), alone.n.s_q, 1);
    own.k = first_tokens(part_of(inputs.k, i), alone.n.s_kv, 1);
    own.v = first_tokens(part_of(inputs.v, i), alone.n.s_kv, 1);
    for (HostScale PrefillInputs::*scale :
         {&PrefillInputs::q_scale, &PrefillInputs::k_scale, &PrefillInputs::v_scale}) {
      own.*scale = part_of(inputs.*scale, i, test.n.b);
    }
    PrefillOutput want = part_of(together, i);
    want.out = first_tokens(want.out, alone.n.s_q, 1);
    want.lse = first_tokens(want.lse, alone.n.s_q, 3);
    append(result, same_bits(run_prefill(device, alone, own), want, fmt::format("{}, sequence {}", test.name, i)));
  }
  return result;
}

AssertionResult ignores_neighbours(TestDevice& device, const PrefillCase& test) {
  const PrefillInputs inputs = make_inputs(test);
  const PrefillOutput clean = run_prefill(device, test, inputs);
  AssertionResult result = AssertionSuccess();
  for (HostTensor PrefillInputs::*tensor : {&PrefillInputs::q, &PrefillInputs::k, &PrefillInputs::v}) {
    for (std::int64_t kept = 0; kept < test.n.b; ++kept) {
      PrefillInputs spoilt = inputs;
      for (std::int64_t i = 0; i < test.n.b; ++i) {
        if (i != kept) fill_with_nan(spoilt.*tensor, i);
      }
      const char* name = tensor == &PrefillInputs::q ? "q" : tensor == &PrefillInputs::k ? "k" : "v";
      append(result, same_bits(part_of(run_prefill(device, test, spoilt), kept), part_of(clean, kept),
                               fmt::format("{}, NaN in {} of all sequences but {}", test.name, name, kept)));
    }
  }
  return result;
}

AssertionResult clamps_lengths(TestDevice& device, const PrefillCase& test) {
  const PrefillInputs inputs = make_inputs(test);
  const PrefillOutput want = run_prefill(device, test, inputs);
  AssertionResult result = AssertionSuccess();
  std::vector<std::int64_t> beyond = {test.n.s_kv + 1, 0x7FFFFFFF}, below = {-1, -0x7FFFFFFF};
  if (test.batch.int64) {
    beyond.push_back(std::int64_t{1} << 32);  // 0 in the lower half
    below.push_back(-(std::int64_t{1} << 32) + 50);
  }
  PrefillRun run(device, test, inputs);
  for (std::size_t i = 0; i < beyond.size(); ++i) {
    std::vector<std::int64_t> lengths = run.keys().lengths;
    lengths[0] = beyond[i];
    lengths[1] = below[i];
    run.clear_output();
    run.set_indices(*run.problem().kv_lengths, lengths);
    run.launch();
    append(result, same_bits(run.read(), want, fmt::format("{}, lengths {} and {}", test.name, beyond[i], below[i])));
  }
  return result;
}

AssertionResult clamps_offsets(TestDevice& device, const PrefillCase& test) {
  PrefillRun run(device, test, make_inputs(test));
  const auto outputs_of = [&](const std::vector<std::int64_t>& q_offsets, const std::vector<std::int64_t>& kv_offsets) {
    run.clear_output();
    run.set_indices(*run.problem().q_offsets, q_offsets);
    run.set_indices(*run.problem().kv_offsets, kv_offsets);
    run.launch();
    return run.read();
  };
  const std::vector<std::int64_t> q = run.queries().offsets, kv = run.keys().offsets;
  const std::int64_t far = test.batch.int64 ? std::int64_t{1} << 40 : 0x7FFFFFFF;
  AssertionResult result = AssertionSuccess();
  append(result, same_bits(outputs_of({-5, q[1], q[2], q[3] + 1}, {-far, kv[1], kv[2], far}), outputs_of(q, kv),
                           test.name + ", offsets beyond both ends"));
  // The first sequence has no query then, and rows behind the third are nobody's.
  const std::int64_t half = q[1] / 2;
  append(result, same_bits(outputs_of({q[1], half, half, q[1]}, kv), outputs_of({half, half, half, q[1]}, kv),
                           test.name + ", query offsets that fall"));
  // The second sequence has no key still. The third's reach into the first's, which leaves both unspecified, but
  // nothing else may be written.
  const PrefillOutput fallen = outputs_of(q, {0, kv[1], kv[1] / 3, kv[3]});
  append(result, same_bits(part_of(fallen, 1), part_of(outputs_of(q, kv), 1), test.name + ", falling key offsets"));
  if (!fallen.wrong_write.empty()) {
    append(result, AssertionFailure() << test.name << ", falling key offsets: " << fallen.wrong_write);
  }
  return result;
}

AssertionResult wild_pages_harm_their_sequence_only(TestDevice& device, const PrefillCase& test) {
  const PrefillInputs inputs = make_inputs(test);
  PrefillRun run(device, test, inputs);
  run.launch();
  const PrefillOutput want = run.read();
  std::vector<std::int64_t> wild = {-1, run.keys().outer, 0x7FFFFFFF, -0x7FFFFFFF - 1};
  if (test.batch.int64) wild.insert(wild.end(), {std::int64_t{1} << 32, std::int64_t{1} << 40});
  AssertionResult result = AssertionSuccess();
  for (std::int64_t page : wild) {
    std::vector<std::int64_t> table = run.keys().block_table;
    const std::int64_t pages = run.keys().max_pages;
    for (std::int64_t i = 0; i < pages; i += 2) table[pages + i] = page;  // of the second sequence
    run.set_indices(*run.problem().block_table, table);
    run.clear_output();
    run.launch();
    const PrefillOutput output = run.read();
    for (std::int64_t i = 0; i < test.n.b; ++i) {
      if (i == 1) continue;
      append(result, same_bits(part_of(output, i), part_of(want, i),
                               fmt::format("{}, page {} beside sequence {}", test.name, page, i)));
    }
  }
  return result;
}

AssertionResult long_windows_hide_nothing(TestDevice& device, PrefillCase test) {
  const PrefillInputs inputs = make_inputs(test);
  const PrefillOutput want = run_prefill(device, test, inputs);
  AssertionResult result = AssertionSuccess();
  for (std::int64_t window : {test.n.s_kv - 1, std::int64_t{0x7FFFFFFF}, std::int64_t{1} << 31, std::int64_t{1} << 32,
                              std::numeric_limits<std::int64_t>::max()}) {
    test.window_left = window;
    append(result, same_bits(run_prefill(device, test, inputs), want, fmt::format("{}, window {}", test.name, window)));
  }
  return result;
}

AssertionResult sinks_only_dilute(TestDevice& device, PrefillCase test) {
  test.sinks = true;
  PrefillInputs inputs = make_inputs(test);
  const PrefillOutput diluted = run_prefill(device, test, inputs);
  const auto with_sinks_of = [&](float logit) {
    std::ranges::fill(inputs.sinks, logit);
    return run_prefill(device, test, inputs);
  };
  const PrefillOutput none = with_sinks_of(-kInfinity), all = with_sinks_of(1e4f);
  const std::vector<float> sinks = std::exchange(inputs.sinks, {});
  const PrefillOutput plain = run_prefill(device, test, inputs);
  AssertionResult result = same_bits(none, plain, test.name + ", sinks of -infinity");
  for (const PrefillOutput* output : {&diluted, &all}) {
    if (output->lse.bytes != plain.lse.bytes) append(result, AssertionFailure() << test.name << ": sinks change lse");
  }
  const std::vector<float> before = real_output(test, plain), after = real_output(test, diluted),
                           nothing = real_output(test, all), lse = plain.lse.values();
  const std::vector<float> given = make_inputs(test).sinks;
  for_each_output(test, [&](std::int64_t i, std::int64_t row) {
    const std::int64_t head = i / test.n.d_v % test.n.h_q;
    const double want = std::isinf(lse[row]) ? 0.0 : before[i] / (1.0 + std::exp(double{given[head]} - lse[row]));
    const bool right = std::abs(after[i] - want) <= 0x1p-7 * std::abs(want) + 1e-6 && nothing[i] == 0.0f;
    if (right || !result) return;
    append(result, AssertionFailure() << test.name << ": head " << head << ": " << after[i] << ", expected " << want
                                      << "; " << nothing[i] << " beside large sinks");
  });
  return result;
}

AssertionResult outputs_are_rounded(TestDevice& device, PrefillCase test) {
  const PrefillInputs inputs = make_inputs(test);
  test.out_dtype = DType::kF32;
  const std::vector<float> exact = run_prefill(device, test, inputs).out.values();
  float largest = 0.0f;
  for_each_output(test, [&](std::int64_t i, std::int64_t) { largest = std::max(largest, std::abs(exact[i])); });
  AssertionResult result = AssertionSuccess();
  for (DType dtype : {DType::kBF16, DType::kFP16, DType::kE4M3}) {
    test.out_dtype = dtype;
    test.out_scale.reset();
    // So that the largest outputs saturate, and small ones are subnormal.
    if (dtype == DType::kE4M3) test.out_scale = largest / 700.0f;
    const float unit = test.out_scale.value_or(1.0f);
    const std::vector<float> got = run_prefill(device, test, inputs).out.values();
    std::int64_t saturated = 0;
    for_each_output(test, [&](std::int64_t i, std::int64_t) {
      // Of the numbers in reach of another order of the divisions, one must round to what is there.
      const auto rounds_to = [&](float value) {
        std::uint8_t bytes[4];
        encode(dtype, value, bytes);
        return decode(dtype, bytes) == got[i];
      };
      const float want = exact[i] / unit, slack = dtype == DType::kE4M3 ? 1e-6f * std::abs(want) : 0.0f;
      saturated += std::abs(got[i]) == 448.0f;
      if (!result || rounds_to(want) || rounds_to(want - slack) || rounds_to(want + slack)) return;
      append(result,
             AssertionFailure() << fmt::format("{}: {} became {} in {}", test.name, want, got[i], name_of(dtype)));
    });
    if (dtype == DType::kE4M3 && saturated == 0) append(result, AssertionFailure() << test.name << ": none saturated");
  }
  return result;
}

AssertionResult lse_bases_agree(TestDevice& device, PrefillCase test) {
  const PrefillInputs inputs = make_inputs(test);
  const PrefillOutput natural = run_prefill(device, test, inputs);
  test.lse_base = LseBase::k2;
  const PrefillOutput binary = run_prefill(device, test, inputs);
  if (natural.out.bytes != binary.out.bytes) return AssertionFailure() << test.name << ": the base changes out";
  const std::vector<float> e = natural.lse.values(), two = binary.lse.values();
  AssertionResult result = AssertionSuccess();
  for_each_output(test, [&](std::int64_t, std::int64_t row) {
    const double want = e[row] * std::numbers::log2e;
    if (two[row] == want || std::abs(two[row] - want) <= 1e-6 * std::abs(want) + 1e-6 || !result) return;
    append(result, AssertionFailure() << test.name << ": lse " << two[row] << " in base 2, expected " << want);
  });
  return result;
}

}  // namespace fp8attn::test
