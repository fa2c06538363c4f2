// `fp8attn attend`: attention of tensors from files by one recipe, its error and its time.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cli/commands.h"
#include "cli/common_options.h"
#include "cli/errors.h"
#include "cli/format.h"
#include "cli/json_text.h"
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

// What the options and a layer come to.
struct Job {
  const Recipe* recipe;  // null: the tensors as they are
  DType stored;          // of q, k and v for the call
  AttentionOptions attention;
  bool e4m3() const { return stored == DType::kE4M3; }
  bool e4m3_arithmetic() const { return e4m3() || (recipe != nullptr && recipe->within_call); }
};

std::string of_layer(const Layer& layer) { return layer.name.empty() ? "" : " of " + layer.name; }

// Null for "none", and where e4m3 input leaves nothing to choose.
const Recipe* chosen_recipe(const std::string& name, const Layer& layer) {
  if (name == kNoRecipe || (name.empty() && layer.q.dtype == DType::kE4M3)) return nullptr;
  return &find_recipe(name.empty() ? kDefaultRecipe : name);
}

// Throws Error for an option that would do nothing.
Job job_of(const Options& options, const Layer& layer, const AttentionOptions& attention) {
  const Recipe* recipe = chosen_recipe(options.recipe, layer);
  if (recipe != nullptr && layer.q.dtype == DType::kE4M3) {
    throw usage_error("--recipe", fmt::format("'{}' for the e4m3 tensors{}", recipe->name, of_layer(layer)),
                      fmt::format("'{}': a recipe starts from bf16, fp16 or f32", kNoRecipe));
  }
  const Job job{recipe, recipe == nullptr ? layer.q.dtype : recipe->stored_dtype(layer.q.dtype), attention};
  const std::string got = fmt::format("a value beside the {} tensors{}", name_of(job.stored), of_layer(layer));
  if (!job.e4m3_arithmetic() && attention.p_mode)
    throw usage_error("--p-mode", got, "e4m3: only there P has several forms");
  if (!job.e4m3() && attention.v_layout == VLayout::kPacked) {
    throw usage_error("--v-layout", got, "e4m3: only that has a packed layout");
  }
  return job;
}

// Throws Error where the device has no kernel for a recipe. What the file itself asks for, prefill() judges.
void require_support(const Attention& attention, const Job& job) {
  if (job.recipe == nullptr || job.attention.device.kind == DeviceKind::kCpu) return;
  if (const Support support = attention.support(); !support) {
    throw usage_error(
        "--recipe", fmt::format("'{}' on {}", job.recipe->name, where(job.attention)),
        fmt::format("--device cpu, where every recipe runs, or another recipe ({})", fmt::join(support.reasons, "; ")));
  }
}

LayerResult attend(const Layer& layer, const Job& job, Progress* progress) {
  const std::string suffix = of_layer(layer);
  progress->step("attention" + suffix);
  Attention attention(layer, job.recipe, job.attention);
  require_support(attention, job);
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
  if (job.recipe != nullptr && !job.recipe->within_call) {
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

// The file that --out names, opened for writing. Not one that holds the input: that would be lost.
std::unique_ptr<OutputFile> open_output(const std::string& path, const Input& input, const InputOptions& from) {
  if (path.empty()) return nullptr;
  for (const std::string& read : {from.file, from.q, from.k, from.v}) {
    std::error_code absent;
    if (!read.empty() && std::filesystem::equivalent(path, read, absent)) {
      throw usage_error("--out", fmt::format("'{}'", path), "a file that is not read");
    }
  }
  if (!path.ends_with(".npy") && !path.ends_with(".safetensors")) {
    throw usage_error("--out", fmt::format("'{}'", path), "a name that ends in .safetensors or .npy");
  }
  if (path.ends_with(".npy") && input.layers.size() > 1) {
    throw usage_error("--out", fmt::format("'{}' for {} layers", path, input.layers.size()),
                      "a .safetensors file, or one layer (--layer)");
  }
  return std::make_unique<OutputFile>("--out", path);
}

// What is stored and how, once for all layers that share it.
void print_recipes(const std::vector<Job>& jobs, const std::vector<LayerResult>& results) {
  const auto same = [](const Job& a, const Job& b) { return a.recipe == b.recipe && a.stored == b.stored; };
  for (std::size_t i = 0; i < jobs.size(); ++i) {
    const Job& job = jobs[i];
    std::vector<std::string> layers;
    for (std::size_t j = 0; j < jobs.size(); ++j) {
      if (same(jobs[j], job)) layers.push_back(results[j].name);
    }
    if (layers.front() != results[i].name) continue;  // told already
    const std::string name = job.recipe == nullptr ? kNoRecipe : job.recipe->name;
    const std::string text = job.recipe == nullptr ? "the tensors as they are" : describe(*job.recipe);
    fmt::print("input    {}{}\n", results[i].input, job.attention.causal ? ", causal" : "");
    fmt::print("recipe   {}: {}\n", name, text);
    if (layers.size() < jobs.size()) fmt::print("         in {}\n", fmt::join(layers, ", "));
  }
}

void print_text(const Options& options, const std::vector<Job>& jobs, const std::vector<LayerResult>& results) {
  const AttentionOptions& attention = jobs.front().attention;
  fmt::print("file     {}\n", options.common.input.file.empty() ? "three .npy files" : options.common.input.file);
  print_recipes(jobs, results);
  if (attention.p_mode) fmt::print("         P {} (--p-mode)\n", name_of(*attention.p_mode));
  if (std::any_of(jobs.begin(), jobs.end(), [](const Job& job) { return job.e4m3(); })) {
    fmt::print("v layout {}\n", name_of(attention.v_layout));
  }
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
  fmt::print(
      "\nrel L2: |out - exact| / |exact|. worst row: the largest of one token and head. lse error: the largest\n"
      "absolute error of a log-sum-exp, in nats.\n");
  if (!options.out.empty()) fmt::print("written  {}\n", options.out);
}

ordered_json layer_json(const Job& job, const LayerResult& result) {
  const PMode recipe_mode = job.recipe == nullptr ? PMode::kDefault : job.recipe->p_mode;
  const char* p_mode = name_of(job.attention.p_mode.value_or(recipe_mode));
  return {{"layer", result.name},
          {"input", result.input},
          {"recipe", job.recipe == nullptr ? kNoRecipe : job.recipe->name},
          {"p_mode", job.e4m3() ? ordered_json(p_mode) : ordered_json()},
          {"rows_checked", result.rows},
          {"end_to_end", errors_json(result.end_to_end)},
          {"kernel_only", result.kernel_only ? errors_json(*result.kernel_only) : ordered_json()},
          {"quantize_ms", result.quantize_ms},
          {"attend_ms", result.attend_ms}};
}

void print_json(const Options& options, const std::vector<Job>& jobs, const std::vector<LayerResult>& results) {
  ordered_json layers = ordered_json::array();
  for (std::size_t i = 0; i < jobs.size(); ++i) layers.push_back(layer_json(jobs[i], results[i]));
  const AttentionOptions& attention = jobs.front().attention;
  const ordered_json text = {{"file", options.common.input.file},
                             {"device", where(attention)},
                             {"causal", attention.causal},
                             {"v_layout", name_of(attention.v_layout)},
                             {"layers", layers}};
  fmt::print("{}\n", pretty(text));
}

void run_attend(const Options& options) {
  AttentionOptions attention = attention_options(options.common);
  if (!options.recipe.empty() && options.recipe != kNoRecipe) find_recipe(options.recipe);
  const Input input = load_input(options.common.input);
  attention.causal = options.common.causal.value_or(input.causal);
  std::vector<Job> jobs;
  std::size_t steps = 0;
  for (const Layer& layer : input.layers) {
    jobs.push_back(job_of(options, layer, attention));
    const Recipe* recipe = jobs.back().recipe;
    steps += recipe == nullptr || recipe->within_call ? 2 : 3;
  }
  const auto output = open_output(options.out, input, options.common.input);
  std::vector<LayerResult> results;
  {
    Progress progress("attend", steps);
    for (std::size_t i = 0; i < jobs.size(); ++i) results.push_back(attend(input.layers[i], jobs[i], &progress));
  }
  if (output) output->write(output_bytes(options.out, results));
  (options.common.json ? print_json : print_text)(options, jobs, results);
}

}  // namespace

void add_attend(CLI::App& program, std::function<void()>* run) {
  auto* command = program.add_subcommand("attend", "Attention of tensors from files: its error and its time");
  auto options = std::make_shared<Options>();
  add_common_options(*command, &options->common);
  command
      ->add_option("--recipe", options->recipe,
                   "How q, k and v are stored (fp8attn info lists the recipes), or none for the tensors as they are "
                   "(default: head; none for e4m3 input)")
      ->check(not_empty());
  command->add_option("--p-mode", options->common.p_mode, "Form of P: exact, default, fast (default: the recipe's)")
      ->check(not_empty());
  command->add_option("--out", options->out, "Write out and lse (.safetensors), or out as float32 (.npy)")
      ->check(not_empty());
  command->callback([options, run] { *run = [options] { run_attend(*options); }; });
}

}  // namespace fp8attn::cli
