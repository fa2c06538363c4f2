// `fp8attn attend`: attention of tensors from files by one recipe, its error and its time.
#include <fmt/format.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cli/commands.h"
#include "cli/common_options.h"
#include "cli/errors.h"
#include "cli/format.h"
#include "cli/npy.h"
#include "cli/output_file.h"
#include "cli/progress.h"
#include "cli/safetensors.h"
#include "cli/table.h"

namespace fp8attn::cli {
namespace {

using nlohmann::ordered_json;

struct Options {
  CommonOptions common;
  std::string recipe, out;
};

struct LayerResult {
  std::string name, input;
  std::string rows;
  HostTensor out, lse;
  double quantize_ms = 0, attend_ms = 0;
  Errors end_to_end;                  // against exact attention of the tensors in the file
  std::optional<Errors> kernel_only;  // against exact attention of what the recipe made of them
};

// Null for "none", and where e4m3 input leaves nothing to choose.
const Recipe* chosen_recipe(const std::string& name, const Input& input) {
  const bool quantised = input.layers.front().q.dtype == DType::kE4M3;
  if (name == kNoRecipe || (name.empty() && quantised)) return nullptr;
  return &find_recipe(name.empty() ? kDefaultRecipe : name);
}

LayerResult attend(const Layer& layer, const Recipe* recipe, const AttentionOptions& options, Progress* progress) {
  const std::string suffix = layer.name.empty() ? "" : " of " + layer.name;
  progress->step("attention" + suffix);
  Attention attention(layer, recipe, options);
  LayerResult result{.name = layer.name,
                     .input = describe(layer),
                     .rows = {},
                     .out = {},
                     .lse = {},
                     .end_to_end = {},
                     .kernel_only = {}};
  result.attend_ms = attention.run();
  result.quantize_ms = attention.quantize_ms();
  result.out = attention.out();
  result.lse = attention.lse();
  const std::vector<RowRange> rows = checked_rows(layer);
  result.rows = rows_text(layer, rows);
  progress->step("exact attention" + suffix);
  result.end_to_end = errors_of(exact_attention(layer, options, rows), result.out, &result.lse);
  if (recipe != nullptr) {
    progress->step("exact attention of the stored tensors" + suffix);
    result.kernel_only = errors_of(exact_attention(attention.stored(), options, rows), result.out, &result.lse);
  }
  return result;
}

std::string output_bytes(const std::string& path, const std::vector<LayerResult>& results) {
  if (path.ends_with(".npy")) return serialize_npy(convert(results.front().out, DType::kF32));
  std::vector<std::pair<std::string, HostTensor>> tensors;
  for (const LayerResult& result : results) {
    const std::string prefix = result.name.empty() ? "" : result.name + ".";
    tensors.emplace_back(prefix + "out", result.out);
    tensors.emplace_back(prefix + "lse", result.lse);
  }
  return serialize_safetensors(tensors);
}

// The file that --out names, opened for writing.
std::unique_ptr<OutputFile> open_output(const std::string& path, const Input& input) {
  if (path.empty()) return nullptr;
  if (!path.ends_with(".npy") && !path.ends_with(".safetensors")) {
    throw usage_error("--out", fmt::format("'{}'", path), "a name that ends in .safetensors or .npy");
  }
  if (path.ends_with(".npy") && input.layers.size() > 1) {
    throw usage_error("--out", fmt::format("'{}' for {} layers", path, input.layers.size()),
                      "a .safetensors file, or one layer (--layer)");
  }
  return std::make_unique<OutputFile>("--out", path);
}

void print_text(const Options& options, const Recipe* recipe, const AttentionOptions& attention,
                const std::vector<LayerResult>& results) {
  const bool e4m3 = recipe == nullptr ? results.front().input.ends_with("e4m3") : recipe->dtype == DType::kE4M3;
  fmt::print("input    {}\n", options.common.input.file.empty() ? "three .npy files" : options.common.input.file);
  fmt::print("         {}{}\n", results.front().input, attention.causal ? ", causal" : "");
  if (recipe == nullptr) {
    fmt::print("recipe   {} (the tensors as they are)\n", kNoRecipe);
  } else {
    fmt::print("recipe   {}: {}\n", recipe->name, describe(*recipe));
  }
  if (attention.p_mode && e4m3) fmt::print("         P {} (--p-mode)\n", name_of(*attention.p_mode));
  if (e4m3) fmt::print("v layout {}\n", name_of(attention.v_layout));
  fmt::print("device   {}, {}\n", where(attention), device_name(attention.device));
  fmt::print("checked  {}, float64 reference\n\n", results.front().rows);
  Table table({"layer", "against", "rel L2", "cosine", "worst row", "lse error", "quantise ms", "attend ms"});
  const auto add = [&](const LayerResult& result, const char* against, const Errors& errors, bool times) {
    table.add({result.name.empty() ? "(only)" : result.name, against, error_text(errors.rel_l2),
               cosine_text(errors.cosine), error_text(errors.worst_row), error_text(errors.lse),
               times ? milliseconds_text(result.quantize_ms) : "-", times ? milliseconds_text(result.attend_ms) : "-"});
  };
  for (const LayerResult& result : results) {
    add(result, "exact, tensors of the file", result.end_to_end, true);
    if (result.kernel_only) add(result, "exact, tensors as stored", *result.kernel_only, false);
  }
  fmt::print("{}", table.text());
  fmt::print("\nrel L2: |out - exact| / |exact|. worst row: the largest of one token and head. lse error: largest.\n");
  if (!options.out.empty()) fmt::print("written  {}\n", options.out);
}

void print_json(const Options& options, const Recipe* recipe, const AttentionOptions& attention,
                const std::vector<LayerResult>& results) {
  ordered_json layers = ordered_json::array();
  for (const LayerResult& result : results) {
    layers.push_back({{"layer", result.name},
                      {"input", result.input},
                      {"rows_checked", result.rows},
                      {"end_to_end", errors_json(result.end_to_end)},
                      {"kernel_only", result.kernel_only ? errors_json(*result.kernel_only) : ordered_json()},
                      {"quantize_ms", result.quantize_ms},
                      {"attend_ms", result.attend_ms}});
  }
  const PMode p_mode = attention.p_mode.value_or(recipe == nullptr ? PMode::kDefault : recipe->p_mode);
  const ordered_json text = {{"file", options.common.input.file},
                             {"recipe", recipe == nullptr ? kNoRecipe : recipe->name},
                             {"device", where(attention)},
                             {"causal", attention.causal},
                             {"p_mode", name_of(p_mode)},
                             {"v_layout", name_of(attention.v_layout)},
                             {"layers", layers}};
  fmt::print("{}\n", text.dump(2));
}

void run_attend(const Options& options) {
  AttentionOptions attention = attention_options(options.common);
  if (!options.recipe.empty() && options.recipe != kNoRecipe) find_recipe(options.recipe);
  const Input input = load_input(options.common.input);
  attention.causal = options.common.causal.value_or(input.causal);
  const Recipe* recipe = chosen_recipe(options.recipe, input);
  const auto output = open_output(options.out, input);
  std::vector<LayerResult> results;
  {
    Progress progress("attend", input.layers.size() * (recipe == nullptr ? 2 : 3));
    for (const Layer& layer : input.layers) results.push_back(attend(layer, recipe, attention, &progress));
  }
  if (output) output->write(output_bytes(options.out, results));
  (options.common.json ? print_json : print_text)(options, recipe, attention, results);
}

}  // namespace

void add_attend(CLI::App& program, std::function<void()>* run) {
  auto* command = program.add_subcommand("attend", "Attention of tensors from files: its error and its time");
  auto options = std::make_shared<Options>();
  add_common_options(*command, &options->common);
  command->add_option("--recipe", options->recipe,
                      "How q, k and v are stored (fp8attn info lists the recipes), or none for the tensors as they are "
                      "(default: head; none for e4m3 input)");
  command->add_option("--p-mode", options->common.p_mode, "Form of P: exact, default, fast (default: the recipe's)");
  command->add_option("--out", options->out, "Write out and lse (.safetensors), or out as float32 (.npy)");
  command->callback([options, run] { *run = [options] { run_attend(*options); }; });
}

}  // namespace fp8attn::cli
