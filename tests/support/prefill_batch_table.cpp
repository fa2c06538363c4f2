// The cases that are compared with the reference: sequences of uneven lengths in every layout, what is done to logits
// and outputs, and head dims without a kernel of their own.
#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "prefill_tests.h"

namespace fp8attn::test {
namespace {

// The dtypes and layouts of V that cases take in turn.
struct Kind {
  const char* name;
  DType dtype = DType::kE4M3;
  std::optional<DType> q_dtype = {};
  VLayout v_layout = VLayout::kRowMajor;

  // Ragged keys have no packed V.
  bool fits(KeyForm keys) const { return keys != KeyForm::kRagged || v_layout == VLayout::kRowMajor; }
};

constexpr Kind kKinds[] = {{.name = "e4m3"},
                           {.name = "e4m3_packed", .v_layout = VLayout::kPacked},
                           {.name = "bf16", .dtype = DType::kBF16},
                           {.name = "bf16_q", .q_dtype = DType::kBF16},
                           {.name = "fp16", .dtype = DType::kFP16},
                           {.name = "fp16_q_packed", .q_dtype = DType::kFP16, .v_layout = VLayout::kPacked}};
constexpr int kKindCount = std::size(kKinds);

constexpr KeyForm kForms[] = {KeyForm::kPaged, KeyForm::kDense, KeyForm::kRagged};

constexpr const char* name_of(KeyForm form) {
  return form == KeyForm::kPaged ? "paged" : form == KeyForm::kRagged ? "ragged" : "dense";
}

class BatchTable {
 public:
  explicit BatchTable(DeviceKind device) : cpu_(device == DeviceKind::kCpu) {}

  bool cpu() const { return cpu_; }

  // The case as a kind.
  void add(PrefillCase test, const Kind& kind) {
    test.name += fmt::format("_{}", kind.name);
    test.dtype = kind.dtype;
    test.q_dtype = kind.q_dtype;
    test.v_layout = kind.v_layout;
    if (kind.dtype == DType::kE4M3) {
      if (test.k_scale == ScaleForm::kNone) test.k_scale = ScaleForm::kBatchHead;
      if (test.v_scale == ScaleForm::kNone) test.v_scale = ScaleForm::kBatchHead;
      if (test.q_scale == ScaleForm::kNone && !kind.q_dtype) test.q_scale = ScaleForm::kBatchHead;
    }
    cases_.push_back(std::move(test));
  }

  // The case as the next kind that its keys allow, so that neighbouring cases see all of them.
  void add_next(PrefillCase test) {
    do ++turn_;
    while (!kKinds[turn_ % kKindCount].fits(test.batch.keys));
    add(std::move(test), kKinds[turn_ % kKindCount]);
  }

  std::vector<PrefillCase> take() { return std::move(cases_); }

 private:
  const bool cpu_;
  int turn_ = 0;
  std::vector<PrefillCase> cases_;
};

// Lengths of no token: of queries, of keys, of some sequences, of all of them, and no sequence at all.
void add_nothing_to_do(BatchTable& table) {
  using Lengths = std::vector<std::int64_t>;
  const std::tuple<const char*, Lengths, Lengths> cases[] = {
      {"some", {0, 70, 0, 5}, {100, 0, 0, 64}},
      {"queries", {0, 0, 0}, {64, 5, 100}},
      {"keys", {3, 70, 1}, {0, 0, 0}},
      {"all", {0, 0}, {0, 0}},
      {"sequences", {}, {}},
  };
  for (const auto& [name, q_lengths, kv_lengths] : cases) {
    for (KeyForm keys : kForms) {
      PrefillCase test{.name = fmt::format("B_no_{}_{}", name, name_of(keys)),
                       .n = {.b = std::ssize(q_lengths), .s_q = 70, .s_kv = 100, .h_q = 4, .h_kv = 2},
                       .batch = {.ragged_q = true, .keys = keys, .q_lengths = q_lengths, .kv_lengths = kv_lengths},
                       .causal = true};
      table.add_next(test);
      table.add_next(test);
    }
  }
}

void add_uneven(BatchTable& table) {
  using Lengths = std::vector<std::int64_t>;
  const std::pair<Lengths, Lengths> cases[] = {
      {{1, 2, 700, 3, 64, 129}, {1, 900, 700, 3, 0, 257}},     // one sequence outweighs the others
      {{1, 1, 1, 1, 1, 1, 1}, {1, 64, 65, 700, 0, 255, 256}},  // a step of decoding
      {{63, 64, 65, 128, 5}, {63, 64, 65, 128, 5}},            // prompts
      {{300, 10, 130}, {100, 0, 129}},                         // rows without a key, whole tiles of them
      {{17, 200, 33}, {817, 600, 289}},                        // chunks of longer prompts
  };
  int i = 0;
  for (const auto& [q_lengths, kv_lengths] : cases) {
    const Dims n{.b = std::ssize(q_lengths),
                 .s_q = std::ranges::max(q_lengths),
                 .s_kv = std::ranges::max(kv_lengths),
                 .h_q = 4,
                 .h_kv = 2};
    for (KeyForm keys : kForms) {
      for (bool causal : {false, true}) {
        PrefillCase test{.name = fmt::format("G_uneven_{}_{}_{}", i, name_of(keys), causal ? "causal" : "full"),
                         .n = n,
                         .batch = {.ragged_q = true, .keys = keys, .q_lengths = q_lengths, .kv_lengths = kv_lengths},
                         .causal = causal};
        test.n.d_qk = test.n.d_v = causal ? 128 : 64;
        table.add_next(test);
      }
    }
    ++i;
  }
}

void add_pages(BatchTable& table) {
  int i = 0;
  for (std::int64_t page_size : {1, 5, 16, 24, 48, 63, 64, 65, 96, 128, 256, 1024}) {
    for (bool ragged_q : {false, true}) {
      PrefillCase test{.name = fmt::format("H_pages_of_{}_{}", page_size, ragged_q ? "ragged" : "dense"),
                       .n = {.b = 3, .s_q = 40, .s_kv = 400, .h_q = 4, .h_kv = 2},
                       .batch = {.ragged_q = ragged_q,
                                 .keys = KeyForm::kPaged,
                                 .kv_lengths = {400, 57, 130},
                                 .page_size = page_size,
                                 .page_seed = static_cast<std::uint64_t>(page_size),
                                 .int64 = ragged_q},
                       .causal = true};
      if (ragged_q) test.batch.q_lengths = {40, 40, 7};
      const auto d = std::int64_t{64} << i++ % 3;
      test.n.d_qk = test.n.d_v = d;
      for (const Kind& kind : {kKinds[i % 2 == 0 ? 0 : 3], kKinds[2], kKinds[1]}) {
        if (kind.v_layout == VLayout::kPacked && page_size % (table.cpu() ? 16 : 64) != 0) continue;
        table.add(test, kind);
      }
    }
  }
  // A decode step and a short chunk of a long cache.
  for (std::int64_t s_q : {1, 5}) {
    PrefillCase test{.name = fmt::format("D_long_cache_{}", s_q),
                     .n = {.b = 2, .s_q = s_q, .s_kv = 5000, .h_q = 7, .h_kv = 1, .d_qk = 128, .d_v = 128},
                     .batch = {.keys = KeyForm::kPaged, .kv_lengths = {5000, 4097}, .page_size = 16},
                     .causal = true};
    table.add(test, kKinds[0]);
    table.add(test, kKinds[2]);
    test.window_left = 1000;
    test.name += "_window";
    table.add(test, kKinds[3]);
  }
}

void add_windows(BatchTable& table) {
  int i = 0;
  for (std::int64_t window : {0, 1, 20, 63, 64, 100, 255, 256, 500}) {
    for (bool causal : {false, true}) {
      PrefillCase test{.name = fmt::format("L_window_{}_{}", window, causal ? "causal" : "full"),
                       .n = {.b = 2, .s_q = 300, .s_kv = 800, .h_q = 2, .h_kv = 1},
                       .causal = causal,
                       .window_left = window};
      test.n.d_qk = test.n.d_v = i++ % 2 == 0 ? 64 : 128;
      table.add_next(test);
      test.name += "_uneven";
      test.batch = {.ragged_q = true, .keys = kForms[i % 3], .q_lengths = {300, 77}, .kv_lengths = {700, 77}};
      table.add_next(test);
    }
  }
  PrefillCase wide{.name = "G_window_d256",
                   .n = {.b = 1, .s_q = 300, .s_kv = 1000, .h_q = 2, .h_kv = 1, .d_qk = 256, .d_v = 256},
                   .causal = true,
                   .window_left = 130};
  table.add(wide, kKinds[0]);
  table.add(wide, kKinds[2]);
}

void add_logits(BatchTable& table) {
  const Dims n{.b = 2, .s_q = 130, .s_kv = 333, .h_q = 4, .h_kv = 2, .d_qk = 128, .d_v = 128};
  for (float softcap : {0.5f, 5.0f, 50.0f, 1e4f, 1e30f}) {
    for (const Kind& kind : kKinds) {
      table.add({.name = fmt::format("L_softcap_{:g}", softcap), .n = n, .causal = true, .softcap = softcap}, kind);
    }
  }
  // Logits that the cap alone keeps from deciding everything, of both signs and of none.
  for (float scale : {3.0f, -3.0f, 0.0f}) {
    for (int kind : {0, 2, 3}) {
      table.add({.name = fmt::format("C_capped_{}", scale > 0   ? "huge"
                                                    : scale < 0 ? "negative"
                                                                : "zero"),
                 .n = n,
                 .softcap = 4.0f,
                 .softmax_scale = scale},
                kKinds[kind]);
    }
  }
  for (const Kind& kind : kKinds) {
    table.add({.name = "L_sinks_full", .n = n, .sinks = true}, kind);
    PrefillCase test{.name = "L_sinks_window", .n = n, .causal = true, .window_left = 30, .sinks = true};
    test.n.s_q = 400;  // the first rows see no key
    table.add(test, kind);
    table.add({.name = "L_lse_base_2", .n = n, .causal = true, .lse_base = LseBase::k2}, kind);
  }
  for (float scale : {0.0f, -0.07f}) {
    const PrefillCase test{.name = scale == 0.0f ? "C_uneven_scale_zero" : "C_uneven_scale_negative",
                           .n = n,
                           .batch = {.ragged_q = true,
                                     .keys = KeyForm::kPaged,
                                     .q_lengths = {130, 50},
                                     .kv_lengths = {100, 333},
                                     .page_size = 24},
                           .causal = true,
                           .window_left = 90,
                           .softmax_scale = scale};
    for (int kind : {0, 2, 3}) table.add(test, kKinds[kind]);
  }
  // Keys all alike, logits that grow or fall with the position, within windows and under a cap.
  for (DataSet data : {DataSet::kEqual, DataSet::kGrowing, DataSet::kShrinking, DataSet::kPeak}) {
    PrefillCase test{.name = fmt::format("C_window_{}", test::name_of(data)),
                     .n = n,
                     .causal = true,
                     .window_left = 70,
                     .softcap = 30.0f,
                     .data = data};
    test.n.s_kv = 700;
    table.add(test, kKinds[0]);
    table.add(test, kKinds[2]);
  }
}

void add_outputs(BatchTable& table) {
  const Dims n{.b = 2, .s_q = 100, .s_kv = 300, .h_q = 4, .h_kv = 2, .d_qk = 128, .d_v = 128};
  for (const Kind& kind : kKinds) {
    for (auto [dtype, name] : {std::pair{DType::kF32, "f32"}, {DType::kE4M3, "e4m3"}, {DType::kFP16, "fp16"}}) {
      PrefillCase test{.name = fmt::format("L_out_{}", name), .n = n, .out_dtype = dtype, .causal = true};
      if (dtype == DType::kE4M3) test.out_scale = 0.0137f;
      table.add(test, kind);
      test.name += "_uneven";
      test.batch = {.ragged_q = true, .keys = KeyForm::kPaged, .q_lengths = {100, 3}, .kv_lengths = {77, 300}};
      table.add(test, kind);
    }
  }
}

// On CUDA these run in the tile of the next larger kernel.
void add_head_dims(BatchTable& table) {
  for (auto [d_qk, d_v] : {std::pair{16, 16},
                           {48, 48},
                           {80, 80},
                           {96, 96},
                           {112, 112},
                           {160, 160},
                           {224, 224},
                           {192, 128},
                           {48, 112},
                           {224, 64},
                           {16, 256},
                           {176, 80}}) {
    PrefillCase test{.name = fmt::format("J_dims_{}_{}", d_qk, d_v),
                     .n = {.b = 2, .s_q = 70, .s_kv = 300, .h_q = 4, .h_kv = 2, .d_qk = d_qk, .d_v = d_v},
                     .causal = true};
    // The error of a head is that of its elements: of few channels it takes more rows for the bound to hold.
    if (d_v < 32) test.n.s_q = 280;
    for (const Kind& kind : {kKinds[0], kKinds[1], kKinds[2], kKinds[3]}) table.add(test, kind);
    test.name += "_uneven";
    test.batch = {.ragged_q = true,
                  .keys = d_qk % 32 == 0 ? KeyForm::kRagged : KeyForm::kPaged,
                  .q_lengths = {test.n.s_q, test.n.s_q * 2 / 7},
                  .kv_lengths = {300, 65},
                  .page_size = 48};
    for (const Kind& kind : {kKinds[0], kKinds[2]}) table.add(test, kind);
  }
}

void add_heads(BatchTable& table) {
  for (std::int64_t group : {5, 7, 12}) {
    for (std::int64_t h_kv : {1, 3}) {
      table.add_next({.name = fmt::format("J_uneven_group_{}_kv_{}", group, h_kv),
                      .n = {.b = 3, .s_q = 70, .s_kv = 200, .h_q = group * h_kv, .h_kv = h_kv},
                      .batch = {.ragged_q = true,
                                .keys = h_kv == 1 ? KeyForm::kPaged : KeyForm::kRagged,
                                .q_lengths = {1, 70, 33},
                                .kv_lengths = {200, 70, 129}},
                      .causal = true,
                      .sinks = group == 5});
    }
  }
}

// Scales, means and biases of tokens, heads and channels, where tokens lie unevenly.
void add_scales(BatchTable& table) {
  for (KeyForm keys : kForms) {
    PrefillCase test{.name = fmt::format("F_uneven_scales_{}", name_of(keys)),
                     .n = {.b = 3, .s_q = 70, .s_kv = 200, .h_q = 6, .h_kv = 3},
                     .batch = {.ragged_q = true,
                               .keys = keys,
                               .q_lengths = {70, 3, 40},
                               .kv_lengths = {200, 65, 30},
                               .page_size = 64},
                     .causal = true};
    test.q_scale = ScaleForm::kTokenHead;
    test.v_scale = ScaleForm::kChannel;
    table.add(test, kKinds[0]);
    test.addends = true;
    test.name += "_addends";
    table.add(test, kKinds[0]);
    test.lse_base = LseBase::k2;
    test.name += "_base2";
    table.add(test, kKinds[keys == KeyForm::kRagged ? 0 : 1]);
    if (!table.cpu()) continue;  // key scales per token are the CPU's alone
    test.k_scale = ScaleForm::kTokenHead;
    test.name += "_of_keys";
    table.add(test, kKinds[0]);
    test.name += "_capped";
    test.softcap = 3.0f;
    test.addends = false;
    table.add(test, kKinds[0]);
  }
}

// All at once.
void add_everything(BatchTable& table) {
  for (const Kind& kind : kKinds) {
    for (KeyForm keys : kForms) {
      if (!kind.fits(keys)) continue;
      table.add({.name = fmt::format("L_everything_{}", name_of(keys)),
                 .n = {.b = 4, .s_q = 260, .s_kv = 600, .h_q = 10, .h_kv = 2, .d_qk = 96, .d_v = 80},
                 .batch = {.ragged_q = true,
                           .keys = keys,
                           .q_lengths = {260, 0, 1, 130},
                           .kv_lengths = {600, 100, 513, 60},
                           .page_size = kind.v_layout == VLayout::kPacked ? 64 : 80,
                           .int64 = true},
                 .out_dtype = DType::kF32,
                 .causal = true,
                 .window_left = 150,
                 .softcap = 20.0f,
                 .sinks = true,
                 .lse_base = LseBase::k2},
                kind);
    }
  }
}

// More sequences than a grid's y and z dims can count.
void add_many(BatchTable& table) {
  PrefillCase test{.name = "E_sequences", .n = {.b = 66000, .s_q = 1, .s_kv = 2, .h_q = 1, .h_kv = 1}};
  test.batch = {.ragged_q = true, .keys = KeyForm::kRagged};
  table.add(test, kKinds[0]);
  test.batch.keys = KeyForm::kPaged;
  test.batch.page_size = 1;
  test.name += "_paged";
  table.add(test, kKinds[2]);
}

}  // namespace

std::vector<PrefillCase> batch_cases(DeviceKind device) {
  BatchTable table(device);
  add_nothing_to_do(table);
  add_uneven(table);
  add_pages(table);
  add_windows(table);
  add_logits(table);
  add_outputs(table);
  add_head_dims(table);
  add_heads(table);
  add_scales(table);
  add_everything(table);
  if (!table.cpu()) add_many(table);
  return table.take();
}

}  // namespace fp8attn::test
