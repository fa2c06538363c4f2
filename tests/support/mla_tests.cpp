#include "mla_tests.h"

#include <fmt/format.h>

#include "mla_methods.h"

namespace fp8attn::test {
namespace {

// The test with what `kind` says of format, queries and addressing.
MlaCase named(const MlaCase& kind, MlaCase test) {
  test.name += "_" + kind.name;
  test.format = kind.format;
  test.q_dtype = kind.q_dtype;
  test.q_scale = kind.q_scale;
  test.topk = kind.topk;
  test.topk_lengths = kind.topk_lengths;
  return test;
}

void add_any_addressing(Registrar& registrar, const MlaCase& kind) {
  for (std::int64_t page_size : {64, 16, 5}) {
    MlaCase poison = named(kind, {.name = "A_poison",
                                  .s_q = 2,
                                  .h_q = 12,
                                  .lengths = {300, 0, 17, 129},
                                  .page_size = page_size,
                                  .causal = !kind.sparse()});
    poison.name += fmt::format("_page{}", page_size);
    registrar.add(poison.name, [=](TestDevice& device) { return mla_ignores_poison(device, poison); });
    MlaCase pages = poison;
    pages.name = fmt::format("H_other_pages_{}_page{}", kind.name, page_size);
    registrar.add(pages.name, [=](TestDevice& device) { return mla_same_in_other_pages(device, pages); });
  }
  for (std::int64_t s_q : {1, 3}) {
    MlaCase count = named(kind, {.name = "A_counts",
                                 .s_q = s_q,
                                 .h_q = 16,
                                 .lengths = {300, 0, 17, 64, 700, 129},
                                 .page_size = 17,
                                 .causal = !kind.sparse()});
    count.name += fmt::format("_s{}", s_q);
    registrar.add(count.name, [=](TestDevice& device) { return mla_counts_tokens(device, count); });
  }
  const MlaCase sinks =
      named(kind, {.name = "L_sinks_dilute", .s_q = 2, .h_q = 12, .lengths = {300, 0, 17}, .out_dtype = DType::kFP16});
  registrar.add(sinks.name, [=](TestDevice& device) { return mla_sinks_only_dilute(device, sinks); });
  const MlaCase faults = named(kind, {.name = "F_tolerance", .h_q = 12, .lengths = {256}, .page_size = 16});
  registrar.add(faults.name, [=](TestDevice& device) { return mla_tolerance_refuses_faults(device, faults); });
  // On a GPU enough work for every multiprocessor, so that a race has many chances to show.
  std::vector<std::int64_t> lengths = {300, 0, 17};
  if (!registrar.cpu()) lengths = {3000, 0, 17, 9000, 64, 700, 1, 2222, 5000, 256};
  const MlaCase repeat =
      named(kind, {.name = "G_repeat", .s_q = 2, .h_q = 16, .lengths = lengths, .causal = !kind.sparse()});
  const MlaCase between = named(kind, {.name = "between", .s_q = 1, .h_q = 7, .lengths = {130, 900}, .page_size = 16});
  registrar.add(repeat.name, [=](TestDevice& device) { return mla_same_every_time(device, repeat, between); });
}

void add_dense(Registrar& registrar, const MlaCase& kind) {
  const MlaCase shared =
      named(kind, {.name = "H_shared", .s_q = 2, .lengths = {500, 500, 300, 64, 17}, .causal = true});
  registrar.add(shared.name, [=](TestDevice& device) { return mla_same_when_shared(device, shared); });
  const MlaCase alone = named(kind, {.name = "K_alone", .s_q = 2, .lengths = {1500, 0, 300, 64}, .causal = true});
  registrar.add(alone.name, [=](TestDevice& device) { return mla_same_alone(device, alone); });
  const MlaCase clamped = named(kind, {.name = "H_clamped", .s_q = 2, .lengths = {512, 0, 30}, .causal = true});
  registrar.add(clamped.name, [=](TestDevice& device) { return mla_clamps_lengths(device, clamped); });
}

}  // namespace

bool register_mla_tests(const char* suite, DeviceKind device, const DeviceMaker& make_device) {
  Registrar registrar(suite, device, make_device);
  for (const MlaCase& kind : mla_kinds(device)) {
    add_any_addressing(registrar, kind);
    if (!kind.sparse()) {
      add_dense(registrar, kind);
      continue;
    }
    MlaCase dense = named(kind, {.name = "L_sparse_as_dense", .s_q = 2, .lengths = {300, 0, 129}});
    dense.topk.reset();
    dense.topk_lengths = false;
    registrar.add(dense.name, [=](TestDevice& target) { return mla_sparse_equals_dense(target, dense); });
  }
  for (const MlaCase& test : mla_reference_cases(device)) {
    const std::vector<MlaCase> forms = mla_forms_of(test, device);
    registrar.add(test.name, [=](TestDevice& target) { return mla_matches_reference(target, forms); });
  }
  return true;
}

}  // namespace fp8attn::test
