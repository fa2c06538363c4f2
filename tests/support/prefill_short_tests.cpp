// Short queries: on CUDA they have kernels of their own, which split the keys of a sequence among CTAs.
#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "prefill_batch_methods.h"
#include "prefill_methods.h"
#include "prefill_tests.h"

namespace fp8attn::test {
namespace {

using Lengths = std::vector<std::int64_t>;

// What those kernels tell apart.
std::vector<PrefillCase> short_kinds() {
  std::vector<PrefillCase> kinds = {{.name = "e4m3"},
                                    {.name = "bf16", .dtype = DType::kBF16},
                                    {.name = "bf16_q", .q_dtype = DType::kBF16},
                                    {.name = "fp16", .dtype = DType::kFP16, .out_dtype = DType::kFP16},
                                    {.name = "fp16_q", .q_dtype = DType::kFP16, .out_dtype = DType::kF32}};
  for (PrefillCase& kind : kinds) {
    if (kind.dtype != DType::kE4M3) continue;
    kind.k_scale = kind.v_scale = ScaleForm::kBatchHead;
    if (!kind.q_dtype) kind.q_scale = ScaleForm::kBatchHead;
  }
  return kinds;
}

PrefillCase named(const PrefillCase& kind, std::string name, const Dims& n, BatchForm batch = {}) {
  PrefillCase test = kind;
  test.name = fmt::format("{}_{}", name, kind.name);
  test.n = n;
  test.batch = std::move(batch);
  return test;
}

// A batch of as many sequences as there are lengths.
PrefillCase of_lengths(const PrefillCase& kind, const std::string& name, Dims n, KeyForm keys, const Lengths& lengths,
                       std::int64_t page_size = 64) {
  n.b = std::ssize(lengths);
  n.s_kv = std::ranges::max(lengths);
  return named(kind, name, n, {.keys = keys, .kv_lengths = lengths, .page_size = page_size, .int64 = page_size != 64});
}

// Every number of rows of a tile, in every head dim.
void add_rows(std::vector<PrefillCase>& cases) {
  const std::pair<std::int64_t, std::int64_t> rows[] = {
      {1, 1}, {1, 4}, {1, 5}, {1, 7}, {1, 8}, {1, 12}, {1, 16}, {1, 64},  // query tokens, heads of a group
      {2, 8}, {3, 5}, {4, 4}, {4, 8}, {5, 7}, {5, 12}, {8, 4},  {16, 1}, {16, 4}, {64, 1}};
  const std::vector<PrefillCase> kinds = short_kinds();
  std::size_t turn = 0;
  for (const auto& [s_q, group] : rows) {
    for (const auto& [d_qk, d_v] : {std::pair{128, 128}, {64, 64}, {192, 128}, {256, 256}, {96, 80}}) {
      // 128 rather than 64: the error of one row over few keys strays beyond a tolerance made for more.
      Lengths lengths = {700, 128, 1, 0, 257};
      // So many rows that tolerance_for() knows them as such.
      for (std::size_t i = 0; group == 64 && i < 10; ++i) lengths.push_back(lengths[i]);
      const Dims n{.s_q = s_q, .h_q = 2 * group, .h_kv = 2, .d_qk = d_qk, .d_v = d_v};
      const KeyForm keys = turn % 3 == 0 ? KeyForm::kDense : KeyForm::kPaged;
      PrefillCase test =
          of_lengths(kinds[turn % kinds.size()], fmt::format("J_short_{}x{}_d{}_{}", s_q, group, d_qk, d_v), n, keys,
                     lengths, turn % 3 == 1 ? 16 : 64);
      test.causal = turn % 2 == 0;
      cases.push_back(std::move(test));
      ++turn;
    }
  }
}

// From one sequence in very many parts to many sequences in one each.
void add_splits(std::vector<PrefillCase>& cases) {
  Lengths falling, alike(150, 130);
  for (std::int64_t i = 0; i < 40; ++i) falling.push_back(1 + (40 - i) * (40 - i));
  const std::pair<const char*, Lengths> batches[] = {
      {"one", {20000}},     {"two", {20000, 63}}, {"uneven", {5000, 1, 0, 64, 300, 4097, 128, 127}},
      {"falling", falling}, {"alike", alike},     {"none", {0, 0, 0}}};
  const Dims n{.s_q = 2, .h_q = 8, .h_kv = 2, .d_qk = 128, .d_v = 128};
  for (const PrefillCase& kind : short_kinds()) {
    std::int64_t page_size = 8;
    for (const auto& [name, lengths] : batches) {
      PrefillCase test = of_lengths(kind, fmt::format("K_split_{}", name), n, KeyForm::kDense, lengths);
      test.causal = true;
      cases.push_back(test);
      test =
          of_lengths(kind, fmt::format("K_split_{}_paged_{}", name, page_size), n, KeyForm::kPaged, lengths, page_size);
      cases.push_back(std::move(test));
      page_size = page_size == 8 ? 1 : page_size == 1 ? 128 : page_size == 128 ? 24 : 32;
    }
  }
}

// What is done to logits and outputs.
void add_options(std::vector<PrefillCase>& cases) {
  const Dims n{.s_q = 3, .h_q = 10, .h_kv = 2, .d_qk = 128, .d_v = 128};
  const Lengths lengths = {3000, 2, 0, 700};
  for (const PrefillCase& kind : short_kinds()) {
    const auto add = [&](const char* name, auto change) {
      PrefillCase test = of_lengths(kind, fmt::format("L_short_{}", name), n, KeyForm::kPaged, lengths, 48);
      change(test);
      cases.push_back(std::move(test));
    };
    for (std::int64_t window : {0, 1, 31, 64, 500, 5000}) {
      for (bool causal : {false, true}) {
        add(fmt::format("window_{}_{}", window, causal ? "causal" : "full").c_str(), [&](PrefillCase& test) {
          test.window_left = window;
          test.causal = causal;
        });
      }
    }
    for (float cap : {0.5f, 5.0f, 50.0f, 1e30f}) {
      add(fmt::format("cap_{:g}", cap).c_str(), [&](PrefillCase& test) { test.softcap = cap; });
    }
    add("sinks", [](PrefillCase& test) { test.sinks = test.causal = true; });
    add("base_2", [](PrefillCase& test) { test.lse_base = LseBase::k2; });
    add("scale_zero", [](PrefillCase& test) { test.softmax_scale = 0.0f; });
    add("scale_negative", [](PrefillCase& test) { test.softmax_scale = -0.07f; });
    add("f32", [](PrefillCase& test) { test.out_dtype = DType::kF32; });
    add("out_e4m3", [](PrefillCase& test) {
      test.out_dtype = DType::kE4M3;
      test.out_scale = 0.0137f;
    });
    add("everything", [](PrefillCase& test) {
      test.n.d_qk = 112, test.n.d_v = 48;
      test.causal = test.sinks = true;
      test.window_left = 900;
      test.softcap = 20.0f;
      test.lse_base = LseBase::k2;
    });
    if (kind.dtype != DType::kE4M3) continue;
    add("scales", [](PrefillCase& test) {
      if (!test.q_dtype) test.q_scale = ScaleForm::kTokenHead;
      test.k_scale = ScaleForm::kHead;
      test.v_scale = ScaleForm::kChannel;
      test.addends = test.causal = true;
    });
    // Logits that grow, fall and stay alike along a split sequence.
    for (DataSet data : {DataSet::kGrowing, DataSet::kShrinking, DataSet::kEqual}) {
      add(name_of(data), [&](PrefillCase& test) { test.data = data; });
    }
  }
}

}  // namespace

std::vector<PrefillCase> short_cases() {
  std::vector<PrefillCase> cases;
  add_rows(cases);
  add_splits(cases);
  add_options(cases);
  return cases;
}

void register_short_tests(Registrar& registrar) {
  const Dims n{.b = 4, .s_q = 3, .s_kv = 700, .h_q = 8, .h_kv = 2, .d_qk = 128, .d_v = 128};
  const Lengths lengths = {700, 65, 0, 33};
  for (const PrefillCase& kind : short_kinds()) {
    const auto batch = [&](KeyForm keys, std::int64_t page_size = 64) {
      return BatchForm{.keys = keys, .kv_lengths = lengths, .page_size = page_size};
    };
    for (const BatchForm& form : {batch(KeyForm::kDense), batch(KeyForm::kPaged), batch(KeyForm::kPaged, 24)}) {
      PrefillCase test =
          named(kind, fmt::format("A_short_{}_{}", static_cast<int>(form.keys), form.page_size), n, form);
      registrar.add(test.name, [=](TestDevice& device) { return ignores_poison(device, test); });
      if (kind.dtype == DType::kE4M3) test.v_scale = ScaleForm::kNone;
      test.name = "L_count_" + test.name;
      for (std::int64_t window : {-1, 0, 40}) {
        test.window_left = window;
        test.causal = window != 0;
        test.name += "_";
        registrar.add(test.name, [=](TestDevice& device) { return counts_keys(device, test); });
      }
    }
    PrefillCase layouts = named(kind, "H_short_layouts", n, batch(KeyForm::kPaged));
    layouts.causal = true;
    registrar.add(layouts.name, [=](TestDevice& device) { return same_in_every_layout(device, layouts); });
    layouts.name = "H_short_layouts_even_" + kind.name;
    layouts.batch = {};
    registrar.add(layouts.name, [=](TestDevice& device) { return same_in_every_layout(device, layouts); });
    PrefillCase pages = named(kind, "H_short_wild", n, batch(KeyForm::kPaged));
    pages.batch.kv_lengths = {700, 150, 0, 33};
    registrar.add(pages.name, [=](TestDevice& device) { return wild_pages_harm_their_sequence_only(device, pages); });
    pages.name = "H_short_clamped_" + kind.name;
    pages.batch.kv_lengths = {704, 0, 33, 64};
    pages.n.s_kv = 704;
    registrar.add(pages.name, [=](TestDevice& device) { return clamps_lengths(device, pages); });
    PrefillCase expanded = named(kind, "I_short_expanded", n);
    registrar.add(expanded.name, [=](TestDevice& device) { return same_when_expanded(device, expanded); });
    PrefillCase repeat = named(kind, "G_short_repeat", n, batch(KeyForm::kPaged));
    if (!registrar.cpu()) {
      repeat.n.s_kv = 5000;
      repeat.batch.kv_lengths = {5000, 1, 0, 3333};
    }
    const PrefillCase between = named(kind, "between", {.b = 2, .s_q = 16, .s_kv = 300, .h_q = 4, .h_kv = 1});
    registrar.add(repeat.name, [=](TestDevice& device) { return same_every_time(device, repeat, between); });
  }
}

}  // namespace fp8attn::test
