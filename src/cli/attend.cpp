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

// What the options and the input come to.
struct Job {
  const Recipe* recipe;  // null: the tensors as they are
  DType stored;          // of q, k and v for the kernel
  AttentionOptions attention;
  bool e4m3() const { return stored == DType::kE4M3; }
};

// Null for "none", and where e4m3 input leaves nothing to choose.
const Recipe* chosen_recipe(const std::string& name, const Input& input) {
  const bool quantised = input.layers.front().q.dtype == DType::kE4M3;
  if (name == kNoRecipe || (name.empty() && quantised)) return nullptr;
  return &find_recipe(name.empty() ? kDefaultRecipe : name);
}

// Throws Error for an option that would do nothing.
Job job_of(const Options& options, const Input& input, AttentionOptions attention) {
  attention.causal = options.common.causal.value_or(input.causal);
  const Recipe* recipe = chosen_recipe(options.recipe, input);
  const DType stored = recipe == nullptr ? input.layers.front().q.dtype : recipe->dtype;
  const Job job{recipe, stored, attention};
  const std::string got = fmt::format("a value beside {} tensors", name_of(stored));
  if (!job.e4m3() && attention.p_mode) throw usage_error("--p-mode", got, "e4m3: only there P has several forms");
  if (!job.e4m3() && attention.v_layout == VLayout::kPacked) {
    throw usage_error("--v-layout", got, "e4m3: only that has a packed layout");
  }
  return job;
}

LayerResult attend(const Layer& layer, const Job& job, Progress* progress) {
  const std::string suffix = layer.name.empty() ? "" : " of " + layer.name;
  progress->step("attention" + suffix);
  Attention attention(layer, job.recipe, job.attention);
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
  result.end_to_end = errors_of(exact_attention(layer, job.attention, rows), result.out, &result.lse);
  if (job.recipe != nullptr) {
    progress->step("exact attention of the stored tensors" + suffix);
    result.kernel_only = errors_of(exact_attention(attention.stored(), job.attention, rows), result.out, &result.lse);
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

void print_text(const Options& options, const Job& job, const std::vector<LayerResult>& results) {
  const AttentionOptions& attention = job.attention;
  fmt::print("input    {}\n", options.common.input.file.empty() ? "three .npy files" : options.common.input.file);
  fmt::print("         {}{}\n", results.front().input, attention.causal ? ", causal" : "");
  if (job.recipe == nullptr) {
    fmt::print("recipe   {} (the tensors as they are)\n", kNoRecipe);
  } else {
    fmt::print("recipe   {}: {}\n", job.recipe->name, describe(*job.recipe));
  }
  if (attention.p_mode) fmt::print("         P {} (--p-mode)\n", name_of(*attention.p_mode));
  if (job.e4m3()) fmt::print("v layout {}\n", name_of(attention.v_layout));
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

void print_json(const Options& options, const Job& job, const std::vector<LayerResult>& results) {
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
  const PMode recipe_mode = job.recipe == nullptr ? PMode::kDefault : job.recipe->p_mode;
  const char* p_mode = name_of(job.attention.p_mode.value_or(recipe_mode));
  const ordered_json text = {{"file", options.common.input.file},
                             {"recipe", job.recipe == nullptr ? kNoRecipe : job.recipe->name},
                             {"device", where(job.attention)},
                             {"causal", job.attention.causal},
                             {"p_mode", job.e4m3() ? ordered_json(p_mode) : ordered_json()},
                             {"v_layout", name_of(job.attention.v_layout)},
                             {"layers", layers}};
  fmt::print("{}\n", text.dump(2));
}

void run_attend(const Options& options) {
  const AttentionOptions attention = attention_options(options.common);
  if (!options.recipe.empty() && options.recipe != kNoRecipe) find_recipe(options.recipe);
  const Input input = load_input(options.common.input);
  const Job job = job_of(options, input, attention);
  const auto output = open_output(options.out, input);
  std::vector<LayerResult> results;
  {
    Progress progress("attend", input.layers.size() * (job.recipe == nullptr ? 2 : 3));
    for (const Layer& layer : input.layers) results.push_back(attend(layer, job, &progress));
  }
  if (output) output->write(output_bytes(options.out, results));
  (options.common.json ? print_json : print_text)(options, job, results);
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
