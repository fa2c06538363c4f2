// The cases that are compared with the reference.
#include <fmt/format.h>

#include "prefill_tests.h"

namespace fp8attn::test {
namespace {

constexpr VLayout kLayouts[] = {VLayout::kRowMajor, VLayout::kPacked};

class Table {
 public:
  explicit Table(DeviceKind device) : cpu_(device == DeviceKind::kCpu) {}

  bool cpu() const { return cpu_; }

  void add(PrefillCase test) { cases_.push_back(std::move(test)); }

  std::vector<PrefillCase> take() { return std::move(cases_); }

 private:
  const bool cpu_;
  std::vector<PrefillCase> cases_;
};

PrefillCase scaled(std::string name, Dims n) {
  PrefillCase test{.name = std::move(name), .n = n};
  test.q_scale = test.k_scale = test.v_scale = ScaleForm::kBatchHead;
  return test;
}

void add_lengths(Table& table) {
  std::vector<std::pair<std::int64_t, std::int64_t>> lengths;  // s_q, s_kv
  for (std::int64_t s : {1, 2, 63, 64, 65, 127, 128, 129, 255, 257, 383, 1000}) lengths.push_back({s, s});
  for (auto pair : {std::pair{1, 257}, {65, 1000}, {129, 384}, {257, 1}, {1000, 65}, {64, 4097}})
    lengths.push_back(pair);
  if (!table.cpu()) lengths.insert(lengths.end(), {{4097, 4097}, {1, 32769}, {300, 16384}});
  int i = 0;
  for (const auto& [s_q, s_kv] : lengths) {
    for (bool causal : {false, true}) {
      // Head dims and layouts of V take turns, so that neighbouring lengths see all of them.
      const auto [d, d_v] = kKernelDims[i % std::size(kKernelDims)];
      PrefillCase test = scaled("", {.b = 2, .s_q = s_q, .s_kv = s_kv, .h_q = 2, .h_kv = 1, .d_qk = d, .d_v = d_v});
      test.causal = causal;
      test.v_layout = kLayouts[(i / 2 + (causal ? 1 : 0)) % 2];
      test.name = fmt::format("D_length_{}x{}_{}_d{}_{}", s_q, s_kv, causal ? "causal" : "full", d,
                              test.v_layout == VLayout::kPacked ? "packed" : "rowmajor");
      table.add(test);
    }
    ++i;
  }
}

// More query tiles than an H200 has multiprocessors, so that some take several one after the other; short ones, long
// ones, and ones that see no key in turn.
void add_many_tiles(Table& table) {
  const std::int64_t h_kv = table.cpu() ? 1 : 8;
  for (const auto& [d, d_v] : kKernelDims) {
    for (DType dtype : {DType::kE4M3, DType::kBF16}) {
      for (auto [s_q, s_kv] : {std::pair{400, 700}, {400, 330}}) {
        PrefillCase test{.name = fmt::format("G_many_tiles_{}_d{}_{}x{}", name_of(dtype), d, s_q, s_kv),
                         .n = {.b = 3, .s_q = s_q, .s_kv = s_kv, .h_q = 5 * h_kv, .h_kv = h_kv, .d_qk = d, .d_v = d_v},
                         .dtype = dtype,
                         .causal = true};
        if (dtype == DType::kE4M3) test.v_layout = VLayout::kPacked;
        table.add(test);
      }
    }
  }
}

// Every kernel variant at one length with tails in all directions.
void add_variants(Table& table) {
  for (const auto& [d, d_v] : kKernelDims) {
    for (bool causal : {false, true}) {
      const Dims n{.b = 2, .s_q = 193, .s_kv = 333, .h_q = 4, .h_kv = 2, .d_qk = d, .d_v = d_v};
      const std::string shape = fmt::format("d{}_{}", d, causal ? "causal" : "full");
      for (VLayout layout : kLayouts) {
        PrefillCase test =
            scaled(fmt::format("L_e4m3_{}_{}", layout == VLayout::kPacked ? "packed" : "rowmajor", shape), n);
        test.v_layout = layout;
        test.causal = causal;
        test.out_dtype = d == 64 ? DType::kFP16 : DType::kBF16;
        table.add(test);
      }
      table.add({.name = "L_bf16_" + shape, .n = n, .dtype = DType::kBF16, .causal = causal});
      table.add(
          {.name = "L_fp16_" + shape, .n = n, .dtype = DType::kFP16, .out_dtype = DType::kFP16, .causal = causal});
      if (table.cpu()) table.add({.name = "L_f32_" + shape, .n = n, .dtype = DType::kF32, .causal = causal});
    }
  }
  if (!table.cpu()) return;
  for (auto [d_qk, d_v] : {std::pair{40, 40}, {96, 96}, {1, 3}}) {
    const Dims n{.b = 1, .s_q = 70, .s_kv = 300, .h_q = 2, .h_kv = 2, .d_qk = d_qk, .d_v = d_v};
    for (VLayout layout : kLayouts) {
      PrefillCase test =
          scaled(fmt::format("L_dims_{}_{}_{}", d_qk, d_v, layout == VLayout::kPacked ? "packed" : "rowmajor"), n);
      test.v_layout = layout;
      test.causal = true;
      table.add(test);
    }
  }
}

void add_heads(Table& table) {
  for (std::int64_t group : {1, 5, 7, 12}) {
    for (std::int64_t h_kv : {1, 3}) {
      const Dims n{.b = 3, .s_q = 130, .s_kv = 200, .h_q = group * h_kv, .h_kv = h_kv, .d_qk = 64, .d_v = 64};
      PrefillCase test = scaled(fmt::format("J_group_{}_kv_{}", group, h_kv), n);
      test.causal = group % 2 == 1;
      test.v_layout = kLayouts[h_kv % 2];
      table.add(test);
      table.add({.name = fmt::format("J_bf16_group_{}_kv_{}", group, h_kv), .n = n, .dtype = DType::kBF16});
    }
  }
}

void add_extremes(Table& table) {
  const Dims n{.b = 1, .s_q = 200, .s_kv = 700, .h_q = 2, .h_kv = 1, .d_qk = 128, .d_v = 128};
  for (DataSet data : {DataSet::kOutliers, DataSet::kLlm, DataSet::kPeak, DataSet::kEqual, DataSet::kGrowing,
                       DataSet::kShrinking, DataSet::kNegative, DataSet::kZeros}) {
    for (DType dtype : {DType::kE4M3, DType::kBF16}) {
      for (bool causal : {false, true}) {
        PrefillCase test{.name = fmt::format("C_{}_{}_{}", name_of(data), name_of(dtype), causal ? "causal" : "full"),
                         .n = n,
                         .dtype = dtype,
                         .causal = causal,
                         .data = data};
        test.v_layout = dtype == DType::kE4M3 ? VLayout::kPacked : VLayout::kRowMajor;
        table.add(test);
      }
    }
  }
  for (float scale : {0.0f, -0.07f, 1.0f}) {
    PrefillCase test = scaled(fmt::format("C_softmax_scale_{}", scale == 0.0f  ? "zero"
                                                                : scale < 0.0f ? "negative"
                                                                               : "one"),
                              n);
    test.softmax_scale = scale;
    table.add(test);
  }
  // More queries than keys: the first rows, and whole tiles of them, see nothing.
  for (auto [s_q, s_kv] : {std::pair{300, 100}, {513, 1}, {129, 128}}) {
    PrefillCase test = scaled(fmt::format("C_no_key_{}x{}", s_q, s_kv), n);
    test.n.s_q = s_q;
    test.n.s_kv = s_kv;
    test.causal = true;
    table.add(test);
    table.add(
        {.name = fmt::format("C_no_key_bf16_{}x{}", s_q, s_kv), .n = test.n, .dtype = DType::kBF16, .causal = true});
  }
}

void add_scales(Table& table) {
  const Dims n{.b = 2, .s_q = 100, .s_kv = 300, .h_q = 6, .h_kv = 3, .d_qk = 64, .d_v = 64};
  struct Form {
    ScaleForm form;
    const char* name;
  };
  std::vector<Form> forms = {{ScaleForm::kScalar, "scalar"},
                             {ScaleForm::kTensor, "tensor"},
                             {ScaleForm::kHead, "head"},
                             {ScaleForm::kBatchHead, "batch_head"},
                             {ScaleForm::kExpandedBatchHead, "expanded"}};
  for (const auto& [form, name] : forms) {
    for (int which = 0; which < 3; ++which) {
      PrefillCase test{.name = fmt::format("F_{}_scale_{}", "qkv"[which], name), .n = n};
      (which == 0 ? test.q_scale : which == 1 ? test.k_scale : test.v_scale) = form;
      test.divide_by_scale = which == 2;
      test.scale_base = which == 2 ? 0.0137f : 0.83f;
      table.add(test);
    }
  }
  for (int which = 0; which < 4; ++which) {
    if (!table.cpu() && which % 2 == 1) continue;  // key scales per token are the CPU's alone
    PrefillCase test{.name = fmt::format("F_inner_scales_{}", which == 3 ? "all" : std::string(1, "qkv"[which])),
                     .n = n};
    test.causal = true;
    if (which == 0 || which == 3) test.q_scale = ScaleForm::kTokenHead;
    if (which == 1 || which == 3) test.k_scale = ScaleForm::kTokenHead;
    if (which == 2 || which == 3) test.v_scale = ScaleForm::kChannel;
    test.v_layout = kLayouts[which % 2];
    table.add(test);
  }
}

// What is added to out and lse, with every kind of V scale, in rows without a key too.
void add_addends(Table& table) {
  for (ScaleForm form : {ScaleForm::kNone, ScaleForm::kBatchHead, ScaleForm::kChannel}) {
    for (const auto& [d, d_v] : kKernelDims) {
      const char* name = form == ScaleForm::kNone ? "none" : form == ScaleForm::kChannel ? "channel" : "head";
      table.add({.name = fmt::format("F_addends_{}_d{}", name, d),
                 .n = {.b = 2, .s_q = 200, .s_kv = 150, .h_q = 6, .h_kv = 3, .d_qk = d, .d_v = d_v},
                 .causal = true,
                 .v_layout = kLayouts[d / 128 % 2],
                 .v_scale = form,
                 .addends = true});
    }
  }
}

// 16-bit tensors, 8-bit arithmetic: every member of a recipe alone and all together, odd lengths, groups of heads.
void add_recipes(Table& table) {
  using enum ScaleGranularity;
  const std::pair<const char*, QuantizeRecipe> recipes[] = {
      {"plain", {}},
      {"head", {.q_scale = kBatchHead}},
      {"channel", {.v_scale = kChannel}},
      {"smooth", {.smooth_k = true}},
      {"hadamard", {.hadamard = true, .hadamard_seed = 77}},
      {"center", {.center_v = true}},
      {"all", {.smooth_k = true, .hadamard = true, .center_v = true}},
      {"all_head_channel", {kBatchHead, kChannel, true, true, 1, true}}};
  for (const auto& [name, recipe] : recipes) {
    for (std::int64_t d : {64, 128}) {
      for (auto [s_q, s_kv] : {std::pair{193, 333}, {150, 90}}) {
        table.add({.name = fmt::format("F_recipe_{}_{}x{}_d{}", name, s_q, s_kv, d),
                   .n = {.b = 2, .s_q = s_q, .s_kv = s_kv, .h_q = 6, .h_kv = 2, .d_qk = d, .d_v = d},
                   .dtype = d == 64 ? DType::kFP16 : DType::kBF16,
                   .causal = true,
                   .quantize = recipe});
      }
    }
    if (std::string(name) != "plain" && std::string(name) != "all") continue;
    for (DataSet data : {DataSet::kNormal, DataSet::kOutliers, DataSet::kLlm, DataSet::kPeak, DataSet::kValueMean}) {
      table.add({.name = fmt::format("F_recipe_{}_{}", name, name_of(data)),
                 .n = {.b = 1, .s_q = 64, .s_kv = 4500, .h_q = 2, .h_kv = 1, .d_qk = 128, .d_v = 128},
                 .dtype = DType::kBF16,
                 .data = data,
                 .quantize = recipe});
    }
  }
  if (!table.cpu()) return;
  for (auto [d_qk, d_v] : {std::pair{192, 128}, {256, 256}, {40, 24}}) {
    table.add({.name = fmt::format("F_recipe_dims_{}_{}", d_qk, d_v),
               .n = {.b = 1, .s_q = 70, .s_kv = 300, .h_q = 2, .h_kv = 2, .d_qk = d_qk, .d_v = d_v},
               .dtype = DType::kF32,
               .quantize = QuantizeRecipe{.smooth_k = true, .hadamard = d_qk >= 64, .center_v = true}});
  }
}

void add_special_scales(Table& table) {
  const Dims n{.b = 1, .s_q = 100, .s_kv = 300, .h_q = 2, .h_kv = 2, .d_qk = 128, .d_v = 128};
  PrefillCase base{.name = "", .n = n};
  base.divide_by_scale = false;
  for (float scale : {0.0f, 1e-30f, 1e30f}) {
    const char* text = scale == 0.0f ? "zero" : scale < 1.0f ? "tiny" : "huge";
    base.scale_base = scale;
    PrefillCase value = base;
    value.name = fmt::format("F_{}_v_scale", text);
    value.v_scale = ScaleForm::kHead;
    table.add(value);
    if (scale > 1.0f) continue;
    PrefillCase query = base;
    query.name = fmt::format("F_{}_q_scale", text);
    query.q_scale = ScaleForm::kHead;
    table.add(query);
  }
  // Stored values up to 448, as a quantiser makes them: scores beyond the range of half precision.
  PrefillCase full = scaled("F_full_range", n);
  full.q_scale = full.k_scale = full.v_scale = ScaleForm::kTensor;
  full.scale_base = 0.0077f;
  table.add(full);
  PrefillCase saturated = full;
  saturated.name = "F_saturated";
  saturated.data = DataSet::kOutliers;
  table.add(saturated);
}

// With a V mean an accumulator that runs too far shows: its error grows with the length.
void add_long(Table& table) {
  const auto add = [&](DataSet data, std::int64_t s_q, std::int64_t s_kv) {
    for (VLayout layout : kLayouts) {
      const std::int64_t d = layout == VLayout::kPacked ? 128 : 64;
      table.add({.name = fmt::format("F_long_{}_{}_d{}", name_of(data), s_kv, d),
                 .n = {.b = 1, .s_q = s_q, .s_kv = s_kv, .h_q = 2, .h_kv = 1, .d_qk = d, .d_v = d},
                 .v_layout = layout,
                 .data = data});
    }
  };
  add(DataSet::kNormal, 128, 4096);
  add(DataSet::kValueMean, 128, 4096);
  add(DataSet::kValueMean, table.cpu() ? 16 : 128, 32768);
  if (!table.cpu()) add(DataSet::kValueMean, 128, 131072);
}

// More batch entries and heads than a grid's y and z dims can count.
void add_many(Table& table) {
  for (DType dtype : {DType::kE4M3, DType::kBF16}) {
    table.add({.name = fmt::format("E_batches_{}", name_of(dtype)),
               .n = {.b = 66000, .s_q = 1, .s_kv = 2, .h_q = 1, .h_kv = 1},
               .dtype = dtype});
    table.add({.name = fmt::format("E_heads_{}", name_of(dtype)),
               .n = {.b = 1, .s_q = 2, .s_kv = 2, .h_q = 66000, .h_kv = 33000},
               .dtype = dtype});
  }
}

}  // namespace

std::vector<PrefillCase> forms_of(PrefillCase test, DeviceKind device) {
  std::vector<PrefillCase> forms;
  const std::string name = test.name;
  const auto add = [&](const char* form) {
    test.name = fmt::format("{}, {}", name, form);
    forms.push_back(test);
  };
  if (test.dtype == DType::kE4M3 || test.quantize) {
    for (PMode mode : {PMode::kExact, PMode::kDefault, PMode::kFast}) {
      test.p_mode = mode;
      add(name_of(mode));
    }
  } else if (test.dtype != DType::kF32) {
    add(name_of(test.dtype));
  }
  if (device != DeviceKind::kCpu) return forms;
  if (test.dtype == DType::kE4M3) {
    test.p_mode = PMode::kDefault;
    test.arithmetic = CpuArithmetic::kEmulated13;
    add("emulated13");
  }
  if (test.out_dtype != DType::kE4M3) test.out_dtype = DType::kF32;
  for (CpuArithmetic arithmetic : {CpuArithmetic::kFloat32, CpuArithmetic::kFloat64}) {
    test.arithmetic = arithmetic;
    add(name_of(arithmetic));
  }
  return forms;
}

std::vector<PrefillCase> reference_cases(DeviceKind device) {
  Table table(device);
  add_lengths(table);
  add_many_tiles(table);
  add_variants(table);
  add_heads(table);
  add_extremes(table);
  add_scales(table);
  add_addends(table);
  add_recipes(table);
  add_special_scales(table);
  add_long(table);
  if (!table.cpu()) add_many(table);
  std::vector<PrefillCase> cases = table.take();
  for (PrefillCase& test : batch_cases(device)) cases.push_back(std::move(test));
  for (PrefillCase& test : short_cases()) cases.push_back(std::move(test));
  return cases;
}

}  // namespace fp8attn::test
