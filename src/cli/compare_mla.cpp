#include "cli/compare_mla.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <nlohmann/json.hpp>
#include <vector>

#include "cli/attention.h"
#include "cli/device.h"
#include "cli/errors.h"
#include "cli/format.h"
#include "cli/json_text.h"
#include "cli/mla_study.h"
#include "cli/mla_weights_study.h"
#include "cli/progress.h"
#include "cli/recipe.h"
#include "cli/table.h"

namespace fp8attn::cli {
namespace {

using nlohmann::ordered_json;

constexpr std::int64_t kShortest = 1024;
constexpr std::int64_t kMostTokens = std::int64_t{1} << 20;

struct StorageErrors {
  const char* data;
  std::int64_t tokens;
  const char* storage;
  double stored = 0;       // exact attention of the stored tokens
  double end_to_end = 0;   // the kernel
  double kernel_only = 0;  // the kernel against exact attention of the stored tokens and the rounded query
  std::string device;
};

struct WeightRow {
  const char* data;
  std::int64_t tokens;
  WeightErrors errors;
};

AttentionOptions exact_options() {
  AttentionOptions options;
  options.arithmetic = CpuArithmetic::kFloat64;
  return options;
}

StorageErrors errors_of_storage(MlaDataSet data, const MlaTensors& tensors, const HostTensor& exact,
                                const MlaStorage& storage, const AttentionOptions& options) {
  const StoredMla stored = store_mla(tensors, storage);
  AttentionOptions used = options;
  if (!supports_mla(stored, options)) {
    used.device = Device{};
    used.arithmetic = CpuArithmetic::kEmulated13;
  }
  const HostTensor stored_exact = decode_mla(stored, exact_options()), out = decode_mla(stored, used);
  return {.data = name_of(data),
          .tokens = tensors.count(),
          .storage = storage.name,
          .stored = relative_l2(stored_exact, exact),
          .end_to_end = relative_l2(out, exact),
          .kernel_only = relative_l2(out, decode_mla(with_rounded_query(stored), exact_options())),
          .device = where(used)};
}

std::vector<std::int64_t> growing_lengths(std::int64_t longest) {
  std::vector<std::int64_t> lengths;
  for (std::int64_t length = longest; length >= kShortest; length /= 4) lengths.insert(lengths.begin(), length);
  return lengths;
}

struct Study {
  std::vector<StorageErrors> formats, growth;
  std::vector<WeightRow> weights;
};

Study run_study(const MlaCompareOptions& options, const AttentionOptions& attention) {
  Study study;
  const std::vector<std::int64_t> lengths = growing_lengths(options.longest);
  const auto grows = [](MlaDataSet data) { return data == MlaDataSet::kNormal || data == MlaDataSet::kMean; };
  Progress progress("compare --mla", mla_data_sets().size() * mla_storages().size() + 2 * lengths.size());
  for (MlaDataSet data : mla_data_sets()) {
    const MlaTensors tensors = mla_tensors(data, options.tokens);
    const HostTensor exact = decode_mla(store_mla(tensors, mla_storages().front()), exact_options());
    for (const MlaStorage& storage : mla_storages()) {
      progress.step(fmt::format("{}, {}", name_of(data), storage.name));
      study.formats.push_back(errors_of_storage(data, tensors, exact, storage, attention));
    }
  }
  for (MlaDataSet data : mla_data_sets()) {
    for (std::int64_t length : grows(data) ? lengths : std::vector<std::int64_t>{}) {
      progress.step(fmt::format("{}, {} tokens", name_of(data), length));
      const MlaTensors tensors = mla_tensors(data, length);
      const HostTensor exact = decode_mla(store_mla(tensors, mla_storages().front()), exact_options());
      for (const MlaStorage& storage : mla_storages()) {
        if (storage.rotated || storage.page) continue;
        study.growth.push_back(errors_of_storage(data, tensors, exact, storage, attention));
      }
      study.weights.push_back({name_of(data), length, weight_errors(tensors)});
    }
  }
  return study;
}

void print_storages(const char* title, const std::vector<StorageErrors>& rows) {
  fmt::print("\n{}\n", title);
  Table table({"data", "tokens", "cache", "stored", "end to end", "kernel only", "device"});
  for (const StorageErrors& row : rows) {
    table.add({row.data, fmt::to_string(row.tokens), row.storage, error_text(row.stored), error_text(row.end_to_end),
               error_text(row.kernel_only), row.device});
  }
  fmt::print("{}", table.text("  "));
}

void print_weights(const std::vector<WeightRow>& rows) {
  fmt::print("\nP V alone\n");
  Table table({"data", "tokens", "P bf16", "P e4m3", "and 13 bits, folded", "and never folded"});
  for (const WeightRow& row : rows) {
    table.add({row.data, fmt::to_string(row.tokens), error_text(row.errors.bf16), error_text(row.errors.e4m3),
               error_text(row.errors.e4m3_folded), error_text(row.errors.e4m3_never_folded)});
  }
  fmt::print("{}", table.text("  "));
}

void print_text(const Study& study, const AttentionOptions& attention) {
  fmt::print("device  {}, {}\n", where(attention), device_name(attention.device));
  fmt::print("        1 sequence, 1 query token, {} heads, pages of {} tokens\n", kStudyHeads, kStudyPage);
  print_storages("Formats", study.formats);
  print_storages("Growing lengths", study.growth);
  print_weights(study.weights);
  fmt::print(
      "\nRelative L2. stored: float64 attention of the stored tokens, and end to end: the kernel, both against "
      "float64\n"
      "attention of the bf16 tokens. kernel only: the kernel against float64 attention of the stored tokens and of\n"
      "the query as the kernel rounds it.\n"
      "P V alone: the weighted sum of a cache of format token against the same in float64; P e4m3: probability times\n"
      "the token's scale, rounded, sums in float32; 13 bits: sums as the 8-bit tensor core keeps them, moved to "
      "float32\n"
      "every 256 tokens (folded) or at the end.\n");
}

ordered_json json_of(const std::vector<StorageErrors>& rows) {
  ordered_json list = ordered_json::array();
  for (const StorageErrors& row : rows) {
    list.push_back({{"data", row.data},
                    {"tokens", row.tokens},
                    {"cache", row.storage},
                    {"stored", row.stored},
                    {"end_to_end", row.end_to_end},
                    {"kernel_only", row.kernel_only},
                    {"device", row.device}});
  }
  return list;
}

void print_json(const Study& study, const AttentionOptions& attention) {
  ordered_json weights = ordered_json::array();
  for (const WeightRow& row : study.weights) {
    weights.push_back({{"data", row.data},
                       {"tokens", row.tokens},
                       {"p_bf16", row.errors.bf16},
                       {"p_e4m3", row.errors.e4m3},
                       {"p_e4m3_13bit_folded", row.errors.e4m3_folded},
                       {"p_e4m3_13bit_never_folded", row.errors.e4m3_never_folded}});
  }
  const ordered_json text = {{"device", where(attention)},
                             {"formats", json_of(study.formats)},
                             {"growth", json_of(study.growth)},
                             {"p_v", weights}};
  fmt::print("{}\n", pretty(text));
}

void check_tokens(const char* option, std::int64_t tokens, std::int64_t least) {
  if (tokens >= least && tokens <= kMostTokens) return;
  throw usage_error(option, fmt::to_string(tokens), fmt::format("from {} to {}", least, kMostTokens));
}

}  // namespace

void run_compare_mla(const MlaCompareOptions& options) {
  check_tokens("--tokens", options.tokens, 1);
  check_tokens("--longest", options.longest, kShortest);
  AttentionOptions attention;
  attention.device = parse_device(options.device);
  attention.arithmetic = parse_arithmetic(options.arithmetic, attention.device, CpuArithmetic::kEmulated13);
  const Study study = run_study(options, attention);
  (options.json ? print_json : print_text)(study, attention);
}

}  // namespace fp8attn::cli
