#include <fmt/format.h>

#include <algorithm>

#include "api/mla_decode_variants.h"
#include "mla_tests.h"

namespace fp8attn::test {
namespace {

constexpr std::int64_t kSparseTopk = 200;

// Which kinds a case is run with.
enum class Spread : std::uint8_t {
  kAll,
  kBf16Query,
  kToken128,  // of a bf16 query
  kOne,       // dense token128 of a bf16 query
};

class Table {
 public:
  explicit Table(DeviceKind device) : kinds_(mla_kinds(device)), cpu_(device == DeviceKind::kCpu) {}

  void add(const MlaCase& test, Spread spread) {
    for (const MlaCase& kind : kinds_) {
      if (spread != Spread::kAll && kind.q_dtype != DType::kBF16) continue;
      if (spread >= Spread::kToken128 && kind.format != CacheFormat::kToken128) continue;
      if (spread == Spread::kOne && kind.sparse()) continue;
      if (kind.sparse() && test.causal) continue;
      MlaCase one = test;
      one.name += "_" + kind.name;
      one.format = kind.format;
      one.q_dtype = kind.q_dtype;
      one.q_scale = test.q_scale != ScaleForm::kNone ? test.q_scale : kind.q_scale;
      one.topk = kind.topk;
      one.topk_lengths = kind.topk_lengths;
      if (test.q_scale != ScaleForm::kNone && kind.q_dtype != DType::kE4M3) continue;
      cases_.push_back(one);
    }
  }

  bool cpu() const { return cpu_; }
  std::vector<MlaCase> take() { return std::move(cases_); }

 private:
  const std::vector<MlaCase> kinds_;
  const bool cpu_;
  std::vector<MlaCase> cases_;
};

void add_lengths(Table& table) {
  using enum Spread;
  table.add({.name = "B_lengths", .h_q = 4, .lengths = {0, 1, 2, 15, 16, 17, 63, 64, 65, 127, 128, 129, 0}}, kAll);
  table.add({.name = "B_all_empty", .lengths = {0, 0, 0}}, kAll);
  table.add({.name = "K_uneven", .lengths = {300, 0, 4099, 1, 64, 1024, 257, 2000, 5}}, kBf16Query);
  table.add({.name = "K_one_long", .lengths = {9001}}, kOne);
  table.add({.name = "E_many", .lengths = std::vector<std::int64_t>(table.cpu() ? 300 : 3000, 7)}, kOne);
}

void add_heads_and_queries(Table& table) {
  using enum Spread;
  for (std::int64_t h_q : {1, 5, 7, 12, 16, 64, 128}) {
    const Spread spread = h_q == 7 ? kAll : h_q == 128 ? kBf16Query : kOne;
    table.add({.name = fmt::format("J_h{}", h_q), .h_q = h_q, .lengths = {300, 77}}, spread);
    table.add({.name = fmt::format("J_h{}_s2", h_q), .s_q = 2, .h_q = h_q, .lengths = {300, 77}, .causal = true},
              spread);
  }
  for (std::int64_t s_q = 1; s_q <= 16; ++s_q) {
    const std::vector<std::int64_t> lengths = {257, s_q, 3, 0, 64};
    table.add({.name = fmt::format("J_s{}_causal", s_q), .s_q = s_q, .h_q = 12, .lengths = lengths, .causal = true},
              s_q == 4 || s_q == 16 ? kBf16Query : kOne);
    table.add({.name = fmt::format("J_s{}", s_q), .s_q = s_q, .h_q = 12, .lengths = {257, 64}},
              s_q == 2 || s_q == 16 ? kToken128 : kOne);
  }
  table.add({.name = "C_more_queries_than_tokens", .s_q = 16, .lengths = {3, 1, 15, 16}, .causal = true}, kAll);
}

void add_pages(Table& table) {
  using enum Spread;
  for (std::int64_t page_size : {1, 2, 3, 16, 17, 32, 63, 64, 100, 128, 255, 256}) {
    const Spread spread = page_size == 17 ? kAll : page_size == 1 || page_size == 256 ? kBf16Query : kToken128;
    table.add({.name = fmt::format("H_page{}", page_size), .s_q = 2, .lengths = {700, 0, 129}, .page_size = page_size},
              spread);
  }
  table.add({.name = "H_int64", .lengths = {300, 65}, .index_dtype = DType::kI64}, kBf16Query);
}

void add_data(Table& table) {
  using enum Spread;
  for (MlaData data : {MlaData::kOutliers, MlaData::kLargeRope, MlaData::kRopeOnly, MlaData::kSmall, MlaData::kPeak,
                       MlaData::kGrowing, MlaData::kValueMean}) {
    table.add({.name = fmt::format("F_{}", name_of(data)), .s_q = 2, .lengths = {1000, 130}, .data = data},
              data == MlaData::kPeak ? kAll : kBf16Query);
  }
  table.add({.name = "F_normal", .h_q = 64, .lengths = {2048}}, kBf16Query);
  table.add({.name = "F_fp16", .lengths = {700}, .out_dtype = DType::kFP16}, kBf16Query);
  table.add({.name = "F_mean_32k", .h_q = 8, .lengths = {32768}, .data = MlaData::kValueMean}, kOne);
  table.add({.name = "F_mean_128k", .h_q = 2, .lengths = {131072}, .data = MlaData::kValueMean}, kOne);
  for (ScaleForm form : {ScaleForm::kScalar, ScaleForm::kHead, ScaleForm::kBatchHead, ScaleForm::kTokenHead}) {
    const std::string name = fmt::format("F_q_scale{}", static_cast<int>(form));
    table.add({.name = name, .s_q = 3, .h_q = 5, .lengths = {300, 129}, .q_scale = form}, kAll);
  }
}

void add_conventions(Table& table) {
  using enum Spread;
  for (float scale : {0.0f, -0.05f, 0.0721687836f}) {
    table.add({.name = fmt::format("L_scale{}", scale), .s_q = 2, .lengths = {300, 1}, .softmax_scale = scale},
              kBf16Query);
  }
  table.add({.name = "L_sinks", .s_q = 2, .h_q = 12, .lengths = {300, 0, 17}, .sinks = true}, kBf16Query);
}

}  // namespace

std::vector<MlaCase> mla_kinds(DeviceKind device) {
  std::vector<MlaCase> kinds;
  for (const MlaDecodeVariant& row : mla_decode_variants()) {
    if (row.device != device) continue;
    MlaCase kind{.name = fmt::format("{}_{}_{}", name_of(row.format), name_of(row.q_dtype), name_of(row.addressing)),
                 .format = row.format,
                 .q_dtype = row.q_dtype};
    if (row.addressing == Addressing::kSparse) kind.topk = kSparseTopk;
    kind.topk_lengths = kind.sparse();
    if (row.q_dtype == DType::kE4M3) kind.q_scale = ScaleForm::kHead;
    kinds.push_back(kind);
  }
  return kinds;
}

std::vector<MlaCase> mla_reference_cases(DeviceKind device) {
  Table table(device);
  add_lengths(table);
  add_heads_and_queries(table);
  add_pages(table);
  add_data(table);
  add_conventions(table);
  return table.take();
}

std::vector<MlaCase> mla_forms_of(MlaCase test, DeviceKind device) {
  if (device != DeviceKind::kCpu) return {test};
  std::vector<MlaCase> forms;
  for (CpuArithmetic arithmetic :
       {CpuArithmetic::kFloat32, CpuArithmetic::kFloat64, CpuArithmetic::kEmulated, CpuArithmetic::kEmulated13}) {
    test.arithmetic = arithmetic;
    forms.push_back(test);
  }
  return forms;
}

}  // namespace fp8attn::test
