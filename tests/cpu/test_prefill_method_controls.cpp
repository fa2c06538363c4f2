// Every method of the batch tests must notice a backend that does what it looks for wrong. Such a backend is the right
// one with a problem that was tampered with.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <numeric>
#include <optional>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "prefill_batch_methods.h"
#include "prefill_methods.h"

namespace fp8attn::test {
namespace {

using Fault = std::function<void(PrefillProblem&)>;
using Method = std::function<::testing::AssertionResult(TestDevice&, const PrefillCase&)>;

struct MethodControl {
  const char* name;
  PrefillCase test;
  Method method;
  Fault fault;
};

void PrintTo(const MethodControl& control, std::ostream* stream) { *stream << control.name; }

std::vector<std::int64_t> integers_of(const TensorView& view) {
  std::vector<std::int64_t> values;
  for (std::int64_t i = 0; i < view.count(); ++i) {
    const std::int64_t columns = view.shape[view.rank - 1];
    const std::int64_t offset = i / columns * view.strides[0] + i % columns * view.strides[view.rank - 1];
    values.push_back(view.dtype == DType::kI64 ? static_cast<const std::int64_t*>(view.data)[offset]
                                               : static_cast<const std::int32_t*>(view.data)[offset]);
  }
  return values;
}

// Changes the integers of an argument, where the problem has it.
template <class Change>
Fault with_integers(std::optional<TensorView> PrefillProblem::*argument, Change change) {
  const auto memory = std::make_shared<std::vector<std::int64_t>>();
  return [=](PrefillProblem& problem) {
    std::optional<TensorView>& view = problem.*argument;
    if (!view) return;
    *memory = integers_of(*view);
    change(problem, *memory);
    view->data = memory->data();
    view->dtype = DType::kI64;
    view->strides = {view->rank == 2 ? view->shape[1] : 1, 1};
  };
}

Fault longer_by_one() {
  return with_integers(&PrefillProblem::kv_lengths, [](const auto&, auto& lengths) {
    for (std::int64_t& length : lengths) ++length;
  });
}

// Sequences with queries of 70, 3 and 40 and keys of 192, 0 and 97.
PrefillCase uneven(KeyForm keys, bool ragged_q = true) {
  PrefillCase test{.name = "control",
                   .n = {.b = 3, .s_q = 70, .s_kv = 192, .h_q = 2, .h_kv = 1},
                   .batch = {.ragged_q = ragged_q, .keys = keys, .kv_lengths = {192, 0, 97}}};
  if (ragged_q) test.batch.q_lengths = {70, 3, 40};
  test.k_scale = test.v_scale = ScaleForm::kBatchHead;
  return test;
}

PrefillCase counted(PrefillCase test) {
  test.v_scale = ScaleForm::kNone;
  test.window_left = 20;
  test.causal = true;
  return test;
}

PrefillCase clamped_offsets() {
  PrefillCase test = uneven(KeyForm::kRagged);
  test.batch.q_lengths = {70, 5, 40};
  test.batch.spare_rows = false;
  return test;
}

std::vector<MethodControl> counting_controls() {
  return {
      {"L_CountsAWindowTooWide", counted(uneven(KeyForm::kDense)), counts_keys,
       [](PrefillProblem& problem) { ++problem.window_left; }},
      {"L_CountsAWindowTooNarrow", counted(uneven(KeyForm::kPaged)), counts_keys,
       [](PrefillProblem& problem) { --problem.window_left; }},
      {"L_CountsAWindowLost", counted(uneven(KeyForm::kRagged)), counts_keys,
       [](PrefillProblem& problem) { problem.window_left = -1; }},
      {"L_CountsAMaskLost", counted(uneven(KeyForm::kPaged)), counts_keys,
       [](PrefillProblem& problem) { problem.causal = false; }},
      {"L_CountsAKeyBehindTheLast", counted(uneven(KeyForm::kPaged)), counts_keys, longer_by_one()},
      {"L_CountsAnotherPage", counted(uneven(KeyForm::kPaged)), counts_keys,
       with_integers(&PrefillProblem::block_table, [](const auto&, auto& table) { std::swap(table[0], table[1]); })},
  };
}

std::vector<MethodControl> memory_controls() {
  return {
      {"A_PoisonBehindTheLastKey", uneven(KeyForm::kDense), ignores_poison, longer_by_one()},
      {"A_PoisonInAnotherPage", uneven(KeyForm::kPaged), ignores_poison,
       with_integers(&PrefillProblem::block_table,
                     [](const auto& problem, auto& table) {
                       // Of a page that no sequence has.
                       for (std::int64_t page = 0; page < problem.k.shape[0]; ++page) {
                         if (std::ranges::count(table, page) == 0) table[2] = page;
                       }
                     })},
      {"A_NeighboursInFront", uneven(KeyForm::kRagged), ignores_neighbours,
       with_integers(&PrefillProblem::kv_offsets, [](const auto&, auto& offsets) { --offsets[2]; })},
      {"A_NeighboursQueries", uneven(KeyForm::kPaged), ignores_neighbours,
       with_integers(&PrefillProblem::q_offsets, [](const auto&, auto& offsets) { --offsets[2]; })},
      {"A_QueriesOfNoSequence", uneven(KeyForm::kPaged), same_in_every_layout,
       with_integers(&PrefillProblem::q_offsets, [](const auto&, auto& offsets) { ++offsets.back(); })},
      {"H_LayoutOfOnePageSize", uneven(KeyForm::kPaged), same_in_every_layout,
       with_integers(&PrefillProblem::block_table,
                     [](const auto& problem, auto& table) {
                       if (problem.k.shape[1] == 63) table[0] = table[1];
                     })},
      {"K_AloneAndTogether", uneven(KeyForm::kPaged), same_alone,
       [](PrefillProblem& problem) { problem.causal = problem.block_table.has_value(); }},
  };
}

std::vector<MethodControl> clamping_controls() {
  return {
      {"H_LengthsBeyondTheCapacity", uneven(KeyForm::kPaged, false), clamps_lengths,
       with_integers(&PrefillProblem::kv_lengths,
                     [](const auto&, auto& lengths) {
                       if (lengths[0] > 192) lengths[0] = 191;
                     })},
      {"H_LengthsBelowZero", uneven(KeyForm::kPaged, false), clamps_lengths,
       with_integers(&PrefillProblem::kv_lengths,
                     [](const auto&, auto& lengths) {
                       if (lengths[1] < 0) lengths[1] = -lengths[1];
                     })},
      {"H_OffsetsBelowZero", clamped_offsets(), clamps_offsets,
       with_integers(&PrefillProblem::q_offsets,
                     [](const auto&, auto& offsets) { offsets[0] = offsets[0] < 0 ? -offsets[0] : offsets[0]; })},
      {"H_OffsetsBeyondTheEnd", clamped_offsets(), clamps_offsets,
       with_integers(&PrefillProblem::kv_offsets,
                     [](const auto& problem, auto& offsets) {
                       if (offsets[3] > problem.k.shape[0]) offsets[3] = problem.k.shape[0] - 1;
                     })},
      {"H_OffsetsThatFall", clamped_offsets(), clamps_offsets,
       with_integers(&PrefillProblem::q_offsets,
                     [](const auto&, auto& offsets) {
                       std::inclusive_scan(offsets.begin(), offsets.end(), offsets.begin(),
                                           [](std::int64_t a, std::int64_t b) { return std::max(a, b); });
                     })},
      {"H_WildPages", uneven(KeyForm::kPaged, false), wild_pages_harm_their_sequence_only,
       with_integers(&PrefillProblem::block_table,
                     [](const auto&, auto& table) {
                       const std::size_t columns = table.size() / 3;
                       if (table[columns] < 0) table[0] = table[1];
                     })},
  };
}

std::vector<MethodControl> logit_controls() {
  PrefillCase sinks = uneven(KeyForm::kPaged), capped = uneven(KeyForm::kDense);
  capped.softcap = 2.0f;
  sinks.sinks = true;
  const Method matches = [](TestDevice& device, const PrefillCase& test) { return matches_reference(device, {test}); };
  return {
      {"L_WindowsIn32Bits", uneven(KeyForm::kDense), long_windows_hide_nothing,
       [](PrefillProblem& problem) { problem.window_left &= 0x7FFFFFFF; }},
      {"L_SinksLost", uneven(KeyForm::kDense), sinks_only_dilute,
       [](PrefillProblem& problem) { problem.attention_sink.reset(); }},
      {"L_SinksOfOneHead", uneven(KeyForm::kDense), sinks_only_dilute,
       [](PrefillProblem& problem) {
         if (problem.attention_sink) problem.attention_sink->strides[0] = 0;
       }},
      {"L_OutputScaleLost", uneven(KeyForm::kPaged), outputs_are_rounded,
       [](PrefillProblem& problem) { problem.out_scale.reset(); }},
      {"L_OneBase", uneven(KeyForm::kPaged), lse_bases_agree,
       [](PrefillProblem& problem) { problem.lse_base = LseBase::kE; }},
      {"L_SoftcapLost", capped, matches, [](PrefillProblem& problem) { problem.softcap = 0.0f; }},
      {"L_SinksLostToTheReference", sinks, matches, [](PrefillProblem& problem) { problem.attention_sink.reset(); }},
  };
}

class PrefillMethod : public ::testing::TestWithParam<MethodControl> {};

TEST_P(PrefillMethod, NoticesTheFault) {
  const auto device = make_cpu_device();
  PrefillCase test = GetParam().test;
  EXPECT_TRUE(GetParam().method(*device, test));
  test.fault = GetParam().fault;
  EXPECT_FALSE(GetParam().method(*device, test));
}

std::string name_of_control(const ::testing::TestParamInfo<MethodControl>& info) { return info.param.name; }

INSTANTIATE_TEST_SUITE_P(Counting, PrefillMethod, ::testing::ValuesIn(counting_controls()), name_of_control);
INSTANTIATE_TEST_SUITE_P(Memory, PrefillMethod, ::testing::ValuesIn(memory_controls()), name_of_control);
INSTANTIATE_TEST_SUITE_P(Clamping, PrefillMethod, ::testing::ValuesIn(clamping_controls()), name_of_control);
INSTANTIATE_TEST_SUITE_P(Logits, PrefillMethod, ::testing::ValuesIn(logit_controls()), name_of_control);

}  // namespace
}  // namespace fp8attn::test
