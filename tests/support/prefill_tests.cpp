#include "prefill_tests.h"

#include <fmt/format.h>

#include "prefill_methods.h"
#include "registrar.h"

namespace fp8attn::test {
namespace {

// The element types and layouts of V that every method is run with.
std::vector<PrefillCase> kinds(bool cpu) {
  std::vector<PrefillCase> cases = {
      {.name = "e4m3_rowmajor"},
      {.name = "e4m3_packed", .v_layout = VLayout::kPacked},
      {.name = "e4m3_exact", .v_layout = VLayout::kPacked, .p_mode = PMode::kExact},
      {.name = "e4m3_fast", .v_layout = VLayout::kPacked, .p_mode = PMode::kFast},
      {.name = "bf16", .dtype = DType::kBF16},
      {.name = "fp16", .dtype = DType::kFP16, .out_dtype = DType::kFP16},
      {.name = "bf16_quantized", .dtype = DType::kBF16, .quantize = QuantizeRecipe{.smooth_k = true, .hadamard = true}},
      {.name = "fp16_quantized",
       .dtype = DType::kFP16,
       .quantize = QuantizeRecipe{.q_scale = ScaleGranularity::kBatchHead, .v_scale = ScaleGranularity::kChannel}},
  };
  for (PrefillCase& test : cases) {
    if (test.dtype == DType::kE4M3) test.q_scale = test.k_scale = test.v_scale = ScaleForm::kBatchHead;
  }
  if (!cpu) return cases;
  PrefillCase emulated13 = cases[0];
  emulated13.name = "e4m3_emulated13";
  emulated13.arithmetic = CpuArithmetic::kEmulated13;
  cases.push_back(emulated13);
  for (DType dtype : {DType::kE4M3, DType::kF32}) {
    for (CpuArithmetic arithmetic : {CpuArithmetic::kFloat32, CpuArithmetic::kFloat64}) {
      cases.push_back({.name = fmt::format("{}_{}", name_of(dtype), name_of(arithmetic)),
                       .dtype = dtype,
                       .out_dtype = DType::kF32,
                       .arithmetic = arithmetic});
    }
  }
  return cases;
}

PrefillCase named(PrefillCase test, const char* prefix, Dims n, bool causal = false) {
  test.name = fmt::format("{}_{}_{}x{}_d{}_{}", prefix, test.name, n.s_q, n.s_kv, n.d_qk, causal ? "causal" : "full");
  test.n = n;
  test.causal = causal;
  return test;
}

void add_foreign_memory(Registrar& registrar) {
  for (const PrefillCase& kind : kinds(registrar.cpu())) {
    for (auto [s_q, s_kv, d] : {std::tuple{1, 1, 64}, {63, 65, 128}, {129, 257, 64}, {200, 383, 128}}) {
      const bool causal = s_q != 63;
      const PrefillCase test =
          named(kind, "A_poison", {.b = 2, .s_q = s_q, .s_kv = s_kv, .h_q = 4, .h_kv = 2, .d_qk = d, .d_v = d}, causal);
      registrar.add(test.name, [=](TestDevice& device) { return ignores_poison(device, test); });
    }
  }
}

void add_nothing_to_do(Registrar& registrar) {
  const auto add = [&](const char* what, const PrefillCase& kind, Dims n) {
    PrefillCase test = kind;
    test.n = n;
    test.causal = true;
    test.name = fmt::format("B_{}_{}", what, kind.name);
    registrar.add(test.name, [=](TestDevice& device) { return matches_reference(device, {test}); });
  };
  for (const PrefillCase& kind : kinds(registrar.cpu())) {
    add("no_batch", kind, {.b = 0});
    add("no_query", kind, {.b = 2, .s_q = 0});
    add("no_key", kind, {.b = 2, .s_q = 70, .s_kv = 0});
    add("no_head", kind, {.h_q = 0, .h_kv = 0});
  }
}

void add_layouts_and_counts(Registrar& registrar) {
  for (const PrefillCase& kind : kinds(registrar.cpu())) {
    const PrefillCase expanded =
        named(kind, "I_expanded", {.b = 2, .s_q = 70, .s_kv = 130, .h_q = 4, .h_kv = 2, .d_qk = 64, .d_v = 64});
    const PrefillCase ones = named(kind, "I_ones", {.b = 1, .s_q = 1, .s_kv = 1, .h_q = 1, .h_kv = 1});
    for (const PrefillCase& test : {expanded, ones}) {
      registrar.add(test.name, [=](TestDevice& device) { return same_when_expanded(device, test); });
    }
    for (auto [s_q, s_kv] : {std::pair{1, 127}, {300, 300}, {129, 1000}, {200, 90}}) {
      for (bool causal : {false, true}) {
        PrefillCase test = named(
            kind, "L_count", {.b = 1, .s_q = s_q, .s_kv = s_kv, .h_q = 2, .h_kv = 1, .d_qk = 128, .d_v = 128}, causal);
        test.v_scale = ScaleForm::kNone;
        registrar.add(test.name, [=](TestDevice& device) { return counts_keys(device, test); });
      }
    }
    const PrefillCase usual = named(kind, "L_default_scale", {.s_q = 70, .s_kv = 130});
    registrar.add(usual.name, [=](TestDevice& device) { return default_softmax_scale_is_usual(device, usual); });
  }
}

constexpr CpuArithmetic kArithmetics[] = {CpuArithmetic::kFloat32, CpuArithmetic::kFloat64, CpuArithmetic::kEmulated,
                                          CpuArithmetic::kEmulated13};

// Rows that begin at addresses of no alignment but that of an element, which the CPU backend alone reads.
void add_misaligned(Registrar& registrar) {
  for (DType dtype : {DType::kE4M3, DType::kBF16, DType::kFP16, DType::kF32}) {
    for (CpuArithmetic arithmetic : kArithmetics) {
      for (std::int64_t d : {17, 20, 36, 100}) {
        PrefillCase test{.name = fmt::format("I_misaligned_{}_{}_d{}", name_of(dtype), name_of(arithmetic), d),
                         .n = {.b = 2, .s_q = 67, .s_kv = 135, .h_q = 2, .h_kv = 1, .d_qk = d, .d_v = d},
                         .dtype = dtype,
                         .arithmetic = arithmetic};
        registrar.add(test.name, [=](TestDevice& device) { return matches_reference(device, {test}); });
        test.name += "_shifted";
        registrar.add(test.name, [=](TestDevice& device) { return same_when_shifted(device, test); });
        if (dtype != DType::kE4M3) continue;
        test.name += "_packed";
        test.v_layout = VLayout::kPacked;
        registrar.add(test.name, [=](TestDevice& device) { return same_when_shifted(device, test); });
      }
    }
  }
}

void add_largest_softmax_scale(Registrar& registrar) {
  for (DType dtype : {DType::kE4M3, DType::kBF16, DType::kFP16, DType::kF32}) {
    for (CpuArithmetic arithmetic : kArithmetics) {
      PrefillCase test{.name = fmt::format("C_largest_scale_{}_{}", name_of(dtype), name_of(arithmetic)),
                       .n = {.b = 1, .s_q = 70, .s_kv = 130, .h_q = 2, .h_kv = 1, .d_qk = 128, .d_v = 128},
                       .dtype = dtype,
                       .out_dtype = DType::kF32,
                       .arithmetic = arithmetic};
      registrar.add(test.name, [=](TestDevice& device) { return survives_the_largest_softmax_scale(device, test); });
      test.name += "_equal";
      test.softmax_scale = 3e38f;
      registrar.add(test.name, [=](TestDevice& device) { return counts_keys(device, test); });
    }
  }
}

void add_special_numbers(Registrar& registrar) {
  const Dims n{.b = 1, .s_q = 70, .s_kv = 70, .h_q = 4, .h_kv = 2};
  for (const PrefillCase& kind : kinds(registrar.cpu())) {
    if (kind.dtype == DType::kE4M3) {
      const auto add = [&](const char* what, HostScale PrefillInputs::*scale) {
        const PrefillCase test = named(kind, what, n);
        registrar.add(test.name, [=](TestDevice& device) { return nan_scale_reaches_its_heads(device, test, scale); });
      };
      add("C_nan_q_scale", &PrefillInputs::q_scale);
      add("C_nan_k_scale", &PrefillInputs::k_scale);
      continue;
    }
    if (kind.quantize) continue;  // numbers of that size are no part of what 8 bits promise
    for (float number : {8000.0f, 9999.0f, 12000.0f}) {
      for (bool causal : {false, true}) {
        PrefillCase test = named(kind, "C_equal_huge", n, causal);
        test.name += fmt::format("_{}", number);
        registrar.add(test.name, [=](TestDevice& device) { return equal_logits_give_the_mean(device, test, number); });
      }
    }
  }
}

void add_repeats(Registrar& registrar) {
  // On a GPU enough work for every multiprocessor, so that a race has many chances to show.
  Dims n{.b = 1, .s_q = 70, .s_kv = 300, .h_q = 2, .h_kv = 1, .d_qk = 64, .d_v = 64};
  if (!registrar.cpu()) n = {.b = 2, .s_q = 1000, .s_kv = 1500, .h_q = 10, .h_kv = 2, .d_qk = 64, .d_v = 64};
  for (const PrefillCase& kind : kinds(registrar.cpu())) {
    const PrefillCase test = named(kind, "G_repeat", n, true);
    PrefillCase between = kind;
    between.n = {.b = 1, .s_q = 65, .s_kv = 130, .h_q = 1, .h_kv = 1, .d_qk = 128, .d_v = 128};
    registrar.add(test.name, [=](TestDevice& device) { return same_every_time(device, test, between); });
  }
}

void add_smoothed_keys(Registrar& registrar) {
  for (std::int64_t d : {64, 128}) {
    for (bool hadamard : {false, true}) {
      for (ScaleGranularity q_scale : {ScaleGranularity::kTokenHead, ScaleGranularity::kBatchHead}) {
        const PrefillCase test{
            .name = fmt::format("F_smoothed_lse_d{}_{}_{}", d, hadamard ? "rotated" : "plain", name_of(q_scale)),
            .n = {.b = 2, .s_q = 150, .s_kv = 1000, .h_q = 4, .h_kv = 2, .d_qk = d, .d_v = d},
            .dtype = DType::kBF16,
            .quantize = QuantizeRecipe{.q_scale = q_scale, .smooth_k = true, .hadamard = hadamard}};
        registrar.add(test.name, [=](TestDevice& device) { return smoothed_keys_keep_their_lse(device, test); });
      }
    }
  }
}

void add_p_modes(Registrar& registrar) {
  for (const auto& [d, d_v] : kKernelDims) {
    PrefillCase test{.name = fmt::format("F_p_modes_d{}", d),
                     .n = {.b = 1, .s_q = 256, .s_kv = 4096, .h_q = 2, .h_kv = 1, .d_qk = d, .d_v = d_v},
                     .v_layout = VLayout::kPacked};
    test.q_scale = test.k_scale = test.v_scale = ScaleForm::kTensor;
    registrar.add(test.name, [=](TestDevice& device) { return p_modes_keep_their_bounds(device, test); });
    if (registrar.cpu()) continue;
    for (PMode mode : {PMode::kExact, PMode::kDefault, PMode::kFast}) {
      PrefillCase predicted = test;
      predicted.name = fmt::format("F_predicted_{}_d{}", name_of(mode), d);
      predicted.p_mode = mode;
      registrar.add(predicted.name, [=](TestDevice& device) { return is_predicted_by_emulation(device, predicted); });
    }
  }
}

}  // namespace

bool register_prefill_tests(const char* suite, DeviceKind device, const DeviceMaker& make_device) {
  Registrar registrar(suite, device, make_device);
  add_foreign_memory(registrar);
  add_nothing_to_do(registrar);
  add_layouts_and_counts(registrar);
  add_special_numbers(registrar);
  if (registrar.cpu()) {
    add_misaligned(registrar);
    add_largest_softmax_scale(registrar);
  }
  add_repeats(registrar);
  add_smoothed_keys(registrar);
  add_p_modes(registrar);
  register_batch_tests(registrar);
  register_short_tests(registrar);
  for (const PrefillCase& test : reference_cases(device)) {
    const std::vector<PrefillCase> forms = forms_of(test, device);
    registrar.add(test.name, [=](TestDevice& target) { return matches_reference(target, forms); });
  }
  return true;
}

}  // namespace fp8attn::test
