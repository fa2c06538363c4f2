#include <fmt/format.h>

#include "prefill_batch_methods.h"
#include "prefill_methods.h"
#include "prefill_tests.h"

namespace fp8attn::test {
namespace {

// What reads q, k and v in ways of its own.
std::vector<PrefillCase> batch_kinds(bool cpu) {
  std::vector<PrefillCase> kinds = {
      {.name = "e4m3_rowmajor"},
      {.name = "e4m3_packed", .v_layout = VLayout::kPacked},
      {.name = "bf16", .dtype = DType::kBF16},
      {.name = "fp16", .dtype = DType::kFP16, .out_dtype = DType::kFP16},
      {.name = "bf16_q_of_e4m3", .q_dtype = DType::kBF16},
      {.name = "fp16_q_of_e4m3_packed", .q_dtype = DType::kFP16, .v_layout = VLayout::kPacked},
  };
  if (cpu) {
    kinds.push_back({.name = "e4m3_emulated13", .arithmetic = CpuArithmetic::kEmulated13});
    kinds.push_back({.name = "bf16_q_of_e4m3_float32",
                     .q_dtype = DType::kBF16,
                     .out_dtype = DType::kF32,
                     .arithmetic = CpuArithmetic::kFloat32});
    kinds.push_back(
        {.name = "f32_float64", .dtype = DType::kF32, .out_dtype = DType::kF32, .arithmetic = CpuArithmetic::kFloat64});
  }
  for (PrefillCase& kind : kinds) {
    if (kind.dtype != DType::kE4M3) continue;
    kind.k_scale = kind.v_scale = ScaleForm::kBatchHead;
    if (!kind.q_dtype) kind.q_scale = ScaleForm::kBatchHead;
  }
  return kinds;
}

PrefillCase named(const PrefillCase& kind, const char* prefix, Dims n, BatchForm batch = {}) {
  PrefillCase test = kind;
  test.name = fmt::format("{}_{}", prefix, kind.name);
  test.n = n;
  test.batch = std::move(batch);
  return test;
}

constexpr Dims kSmall{.b = 4, .s_q = 130, .s_kv = 300, .h_q = 4, .h_kv = 2, .d_qk = 64, .d_v = 64};

// Sequences of all sizes, none among them, some with more queries than keys.
BatchForm uneven(bool ragged_q, KeyForm keys, std::int64_t page_size = 64) {
  BatchForm form{.ragged_q = ragged_q, .keys = keys, .kv_lengths = {300, 65, 0, 33}, .page_size = page_size};
  if (ragged_q) form.q_lengths = {70, 130, 20, 1};
  return form;
}

// The ways in which the keys of a kind can lie unevenly. V is not packed beside ragged keys.
std::vector<BatchForm> uneven_forms(const PrefillCase& kind) {
  std::vector<BatchForm> forms = {uneven(true, KeyForm::kPaged), uneven(false, KeyForm::kDense)};
  if (kind.v_layout == VLayout::kPacked) return forms;
  forms.push_back(uneven(true, KeyForm::kRagged));
  forms.push_back(uneven(false, KeyForm::kPaged, 24));
  return forms;
}

void add_foreign_memory(Registrar& registrar, const PrefillCase& kind) {
  int i = 0;
  for (const BatchForm& form : uneven_forms(kind)) {
    PrefillCase test = named(kind, "A_uneven_poison", kSmall, form);
    test.causal = i % 2 == 0;
    test.window_left = i % 4 == 2 ? 40 : -1;
    test.name += fmt::format("_{}", i++);
    registrar.add(test.name, [=](TestDevice& device) { return ignores_poison(device, test); });
    test.name = fmt::format("A_neighbours_{}_{}", kind.name, i);
    registrar.add(test.name, [=](TestDevice& device) { return ignores_neighbours(device, test); });
  }
}

void add_layouts(Registrar& registrar, const PrefillCase& kind) {
  Dims n = kSmall;
  n.b = 3, n.s_q = 70, n.s_kv = 192;
  for (bool causal : {false, true}) {
    PrefillCase test = named(kind, causal ? "H_layouts_causal" : "H_layouts_full", n);
    test.causal = causal;
    test.batch.kv_lengths = {192, 0, 97};
    registrar.add(test.name, [=](TestDevice& device) { return same_in_every_layout(device, test); });
    test.name += "_uneven";
    test.batch.q_lengths = {70, 3, 40};
    test.window_left = 50;
    registrar.add(test.name, [=](TestDevice& device) { return same_in_every_layout(device, test); });
  }
  PrefillCase even = named(kind, "H_layouts_even", n);
  even.softcap = 2.0f;
  registrar.add(even.name, [=](TestDevice& device) { return same_in_every_layout(device, even); });
  PrefillCase alone = named(kind, "K_alone", kSmall, uneven(true, KeyForm::kPaged));
  alone.causal = true;
  registrar.add(alone.name, [=](TestDevice& device) { return same_alone(device, alone); });
}

void add_addressing(Registrar& registrar, const PrefillCase& kind) {
  Dims n = kSmall;
  n.b = 3, n.s_q = 40, n.s_kv = 192;
  for (bool int64 : {false, true}) {
    const char* bits = int64 ? "64" : "32";
    BatchForm form{.keys = KeyForm::kPaged, .kv_lengths = {192, 0, 97}, .page_size = 64, .int64 = int64};
    PrefillCase test = named(kind, "H_clamped_pages", n, form);
    test.name += bits;
    test.causal = true;
    registrar.add(test.name, [=](TestDevice& device) { return clamps_lengths(device, test); });
    test.name = fmt::format("H_clamped_dense_{}{}", kind.name, bits);
    test.batch.keys = KeyForm::kDense;
    registrar.add(test.name, [=](TestDevice& device) { return clamps_lengths(device, test); });
    form.kv_lengths = {192, 150, 97};
    const PrefillCase wild = named(kind, int64 ? "H_wild_pages64" : "H_wild_pages32", n, form);
    registrar.add(wild.name, [=](TestDevice& device) { return wild_pages_harm_their_sequence_only(device, wild); });
    if (kind.v_layout == VLayout::kPacked) continue;
    const BatchForm ragged{.ragged_q = true,
                           .keys = KeyForm::kRagged,
                           .q_lengths = {40, 5, 30},
                           .kv_lengths = {190, 0, 97},
                           .int64 = int64,
                           .spare_rows = false};
    PrefillCase offsets = named(kind, int64 ? "H_offsets64" : "H_offsets32", n, ragged);
    offsets.causal = true;
    registrar.add(offsets.name, [=](TestDevice& device) { return clamps_offsets(device, offsets); });
  }
}

// What every row sees, in every kind of batch.
void add_counts(Registrar& registrar, const PrefillCase& kind) {
  const auto add = [&](PrefillCase test, std::int64_t window, bool causal) {
    if (test.dtype == DType::kE4M3) test.v_scale = ScaleForm::kNone;
    test.causal = causal;
    test.window_left = window;
    test.name += fmt::format("_{}_window{}", causal ? "causal" : "full", window);
    registrar.add(test.name, [=](TestDevice& device) { return counts_keys(device, test); });
  };
  int i = 0;
  for (std::int64_t window : {-1, 0, 1, 40, 63, 64, 300}) {
    const std::vector<BatchForm> forms = uneven_forms(kind);
    for (bool causal : {false, true}) {
      PrefillCase test = named(kind, "L_count_uneven", kSmall, forms[i++ % forms.size()]);
      test.sinks = i % 3 == 0;
      add(test, window, causal);
    }
  }
  // Whole tiles that no row sees, in front of the window and, for the first rows, behind the diagonal.
  for (auto [s_q, s_kv, window] : {std::tuple{300, 1100, 20}, {300, 1100, 257}, {700, 700, 255}, {513, 200, 5}}) {
    for (bool causal : {false, true}) {
      PrefillCase test =
          named(kind, "G_count", {.b = 1, .s_q = s_q, .s_kv = s_kv, .h_q = 2, .h_kv = 1, .d_qk = 64, .d_v = 64});
      test.name += fmt::format("_{}x{}", s_q, s_kv);
      add(test, window, causal);
    }
  }
}

void add_logits_and_outputs(Registrar& registrar, const PrefillCase& kind) {
  const BatchForm ragged = uneven(true, KeyForm::kPaged);
  PrefillCase test = named(kind, "L_sinks_dilute", kSmall, ragged);
  test.causal = true;
  registrar.add(test.name, [=](TestDevice& device) { return sinks_only_dilute(device, test); });
  test.name = "L_lse_base_" + kind.name;
  registrar.add(test.name, [=](TestDevice& device) { return lse_bases_agree(device, test); });
  test.name = "L_long_window_" + kind.name;
  registrar.add(test.name, [=](TestDevice& device) { return long_windows_hide_nothing(device, test); });
  PrefillCase full = named(kind, "L_long_window_full", kSmall);
  registrar.add(full.name, [=](TestDevice& device) { return long_windows_hide_nothing(device, full); });
  full.name = "L_outputs_" + kind.name;
  registrar.add(full.name, [=](TestDevice& device) { return outputs_are_rounded(device, full); });
  test.name = "L_outputs_uneven_" + kind.name;
  registrar.add(test.name, [=](TestDevice& device) { return outputs_are_rounded(device, test); });
}

void add_repeats(Registrar& registrar, const PrefillCase& kind) {
  Dims n = kSmall;
  BatchForm form = uneven(true, KeyForm::kPaged);
  // On a GPU enough work for every multiprocessor, so that a race has many chances to show.
  if (!registrar.cpu()) {
    n.b = 6, n.s_q = 600, n.s_kv = 1500, n.h_q = 10;
    form.q_lengths = {600, 1, 0, 129, 300, 64};
    form.kv_lengths = {1500, 900, 64, 0, 301, 1027};
  }
  PrefillCase test = named(kind, "G_repeat_uneven", n, form);
  test.causal = true;
  test.window_left = 400;
  PrefillCase between = named(kind, "between", kSmall, uneven(false, KeyForm::kDense));
  registrar.add(test.name, [=](TestDevice& device) { return same_every_time(device, test, between); });
}

}  // namespace

void register_batch_tests(Registrar& registrar) {
  for (const PrefillCase& kind : batch_kinds(registrar.cpu())) {
    add_foreign_memory(registrar, kind);
    add_layouts(registrar, kind);
    add_addressing(registrar, kind);
    add_counts(registrar, kind);
    add_logits_and_outputs(registrar, kind);
    add_repeats(registrar, kind);
  }
}

}  // namespace fp8attn::test
