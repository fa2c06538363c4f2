// `fp8attn compare`: every recipe on the given tensors.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cli/commands.h"
#include "cli/common_options.h"
#include "cli/compare_mla.h"
#include "cli/errors.h"
#include "cli/format.h"
#include "cli/json_text.h"
#include "cli/progress.h"
#include "cli/table.h"

namespace fp8attn::cli {
namespace {

using nlohmann::ordered_json;

struct RecipeResult {
  const Recipe* recipe = nullptr;
  std::string device;
  Errors end_to_end, kernel_only;
  double attend_ms = 0;
};

struct LayerResult {
  std::string name, input, rows;
  std::vector<RecipeResult> recipes;
};

// Names of recipes, and why: the chosen device has no kernel for them, or they are left out.
using Reasons = std::vector<std::pair<std::string, std::string>>;

// All layers get the same recipes, those that suit every one.
std::vector<const Recipe*> recipes_for(const Input& input, Reasons* left_out) {
  std::vector<const Recipe*> chosen;
  for (const Recipe& recipe : recipes()) {
    std::string reason;
    for (const Layer& layer : input.layers) {
      if (reason.empty()) reason = misfit(recipe, layer.q.shape[3]);
    }
    if (reason.empty()) {
      chosen.push_back(&recipe);
    } else {
      left_out->emplace_back(recipe.name, reason);
    }
  }
  return chosen;
}

bool same_storage(const Recipe& a, const Recipe& b) {
  return !a.within_call && !b.within_call && a.dtype == b.dtype && a.query == b.query && a.key == b.key &&
         a.value == b.value;
}

// Runs the recipes on one layer. Exact attention of the stored tensors is the slow part; neighbours in the list of
// recipes that store the same share it.
class LayerComparison {
 public:
  LayerComparison(const Layer& layer, const AttentionOptions& options)
      : layer_(layer), options_(options), rows_(checked_rows(layer)), exact_(exact_attention(layer, options, rows_)) {}

  RecipeResult run(const Recipe& recipe, Reasons* fallbacks) {
    AttentionOptions options = options_;
    auto attention = std::make_unique<Attention>(layer_, &recipe, options);
    if (const Support support = attention->support(); !support && options.device.kind == DeviceKind::kCuda) {
      const auto known = [&](const auto& fallback) { return fallback.first == recipe.name; };
      if (std::none_of(fallbacks->begin(), fallbacks->end(), known)) {
        fallbacks->emplace_back(recipe.name, fmt::format("{}", fmt::join(support.reasons, "; ")));
      }
      options.device = Device{};
      attention = std::make_unique<Attention>(layer_, &recipe, options);
    }
    RecipeResult result{.recipe = &recipe, .device = where(options), .end_to_end = {}, .kernel_only = {}};
    result.attend_ms = attention->run();
    const HostTensor out = attention->out(), lse = attention->lse();
    result.end_to_end = errors_of(exact_, out, &lse);
    result.kernel_only = recipe.stored_dtype(layer_.q.dtype) == layer_.q.dtype
                             ? result.end_to_end
                             : errors_of(stored_exact(recipe, *attention), out, &lse);
    return result;
  }

  std::string rows() const { return rows_text(layer_, rows_); }

 private:
  const Reference& stored_exact(const Recipe& recipe, const Attention& attention) {
    if (stored_recipe_ == nullptr || !same_storage(*stored_recipe_, recipe)) {
      stored_exact_ = exact_attention(attention.stored(), options_, rows_);
      stored_recipe_ = &recipe;
    }
    return stored_exact_;
  }

  const Layer& layer_;
  AttentionOptions options_;
  std::vector<RowRange> rows_;
  Reference exact_, stored_exact_;
  const Recipe* stored_recipe_ = nullptr;
};

// Means of the figures over the layers; the worst row is the worst of all.
LayerResult mean_of(const std::vector<LayerResult>& layers) {
  LayerResult mean{.name = fmt::format("mean of {} layers", layers.size()),
                   .input = layers.front().input,
                   .rows = layers.front().rows,
                   .recipes = layers.front().recipes};
  const auto add = [](Errors* sum, const Errors& errors) {
    sum->rel_l2 += errors.rel_l2;
    sum->cosine += errors.cosine;
    sum->worst_row = std::max(sum->worst_row, errors.worst_row);
    sum->lse += errors.lse;
  };
  const auto divide = [&](Errors* sum) {
    const auto count = static_cast<double>(layers.size());
    sum->rel_l2 /= count;
    sum->cosine /= count;
    sum->lse /= count;
  };
  for (std::size_t i = 0; i < mean.recipes.size(); ++i) {
    RecipeResult& result = mean.recipes[i];
    for (std::size_t layer = 1; layer < layers.size(); ++layer) {
      add(&result.end_to_end, layers[layer].recipes[i].end_to_end);
      add(&result.kernel_only, layers[layer].recipes[i].kernel_only);
      result.attend_ms += layers[layer].recipes[i].attend_ms;
    }
    divide(&result.end_to_end);
    divide(&result.kernel_only);
    result.attend_ms /= static_cast<double>(layers.size());
  }
  return mean;
}

void print_layer(const LayerResult& layer) {
  fmt::print("\n{}{}({})\n", layer.name, layer.name.empty() ? "" : "  ", layer.rows);
  Table table({"recipe", "rel L2", "cosine", "worst row", "lse error", "kernel rel L2", "ms", "device"});
  for (const RecipeResult& result : layer.recipes) {
    table.add({result.recipe->name, error_text(result.end_to_end.rel_l2), cosine_text(result.end_to_end.cosine),
               error_text(result.end_to_end.worst_row), error_text(result.end_to_end.lse),
               error_text(result.kernel_only.rel_l2), milliseconds_text(result.attend_ms), result.device});
  }
  fmt::print("{}", table.text("  "));
}

void print_text(const CommonOptions& options, const AttentionOptions& attention, const std::vector<LayerResult>& layers,
                const Reasons& fallbacks, const Reasons& left_out) {
  fmt::print("input   {}\n", options.input.file.empty() ? "three .npy files" : options.input.file);
  fmt::print("        {}{}\n", layers.front().input, attention.causal ? ", causal" : "");
  fmt::print("device  {}, {}\n", where(attention), device_name(attention.device));
  for (const LayerResult& layer : layers) print_layer(layer);
  if (layers.size() > 1) print_layer(mean_of(layers));
  fmt::print(
      "\nrel L2, cosine, worst row, lse error: against exact (float64) attention of the tensors in the file. worst "
      "row:\n"
      "the largest relative error of one token and head. lse error: the largest absolute error of a log-sum-exp, in\n"
      "nats. kernel rel L2: against exact attention of the tensors as the recipe stores them, so without the error of\n"
      "storing them. The recipes with smooth-k or hadamard store 16 bits, and quantise within the call.\n");
  for (const auto& [recipe, reasons] : fallbacks) {
    fmt::print("{} ran on the CPU because {} has no kernel for it: {}\n", recipe, device_text(attention.device),
               reasons);
  }
  for (const auto& [recipe, reason] : left_out) fmt::print("{} was left out: {}\n", recipe, reason);
}

ordered_json reasons_json(const Reasons& list, const char* field) {
  ordered_json result = ordered_json::array();
  for (const auto& [recipe, reason] : list) result.push_back({{"recipe", recipe}, {field, reason}});
  return result;
}

ordered_json layer_json(const LayerResult& layer) {
  ordered_json rows = ordered_json::array();
  for (const RecipeResult& result : layer.recipes) {
    rows.push_back({{"recipe", result.recipe->name},
                    {"end_to_end", errors_json(result.end_to_end)},
                    {"kernel_only", errors_json(result.kernel_only)},
                    {"attend_ms", result.attend_ms},
                    {"device", result.device}});
  }
  return {{"layer", layer.name}, {"input", layer.input}, {"rows_checked", layer.rows}, {"recipes", rows}};
}

void print_json(const CommonOptions& options, const AttentionOptions& attention, const std::vector<LayerResult>& layers,
                const Reasons& fallbacks, const Reasons& left_out) {
  ordered_json layer_list = ordered_json::array();
  for (const LayerResult& layer : layers) layer_list.push_back(layer_json(layer));
  const ordered_json text = {{"file", options.input.file},
                             {"device", where(attention)},
                             {"causal", attention.causal},
                             {"v_layout", name_of(attention.v_layout)},
                             {"layers", layer_list},
                             {"mean", layer_json(mean_of(layers))},
                             {"ran_on_cpu", reasons_json(fallbacks, "reasons")},
                             {"left_out", reasons_json(left_out, "reason")}};
  fmt::print("{}\n", pretty(text));
}

void run_compare(const CommonOptions& options) {
  AttentionOptions attention = attention_options(options);
  const Input input = load_input(options.input);
  for (const Layer& layer : input.layers) {
    if (layer.q.dtype != DType::kE4M3) continue;
    throw usage_error(fmt::format("{}{}q.dtype", layer.name, layer.name.empty() ? "" : "."), "e4m3",
                      "bf16, fp16 or f32, which recipes start from (attend takes e4m3)");
  }
  attention.causal = options.causal.value_or(input.causal);
  std::vector<LayerResult> layers;
  Reasons fallbacks, left_out;
  {
    const std::vector<const Recipe*> chosen = recipes_for(input, &left_out);
    Progress progress("compare", input.layers.size() * (chosen.size() + 1));
    for (const Layer& layer : input.layers) {
      const std::string suffix = layer.name.empty() ? "" : ", " + layer.name;
      progress.step("exact attention" + suffix);
      LayerComparison comparison(layer, attention);
      LayerResult result{layer.name, describe(layer), comparison.rows(), {}};
      for (const Recipe* recipe : chosen) {
        progress.step(recipe->name + suffix);
        result.recipes.push_back(comparison.run(*recipe, &fallbacks));
      }
      layers.push_back(std::move(result));
    }
  }
  (options.json ? print_json : print_text)(options, attention, layers, fallbacks, left_out);
}

}  // namespace

void add_compare(CLI::App& program, std::function<void()>* run) {
  auto* command = program.add_subcommand("compare", "Every recipe on tensors from files: error and time of each");
  auto options = std::make_shared<CommonOptions>();
  add_common_options(*command, options.get());
  auto mla = std::make_shared<MlaCompareOptions>();
  auto* flag =
      command->add_flag("--mla", mla->wanted, "Instead: ways to store the latent cache of MLA, on synthetic data");
  flag->disable_flag_override();
  command->add_option("--tokens", mla->tokens, "With --mla: tokens of each data set")
      ->capture_default_str()
      ->needs(flag);
  command->add_option("--longest", mla->longest, "With --mla: the longest of the growing lengths")
      ->capture_default_str()
      ->needs(flag);
  for (const char* name :
       {"FILE", "--q", "--k", "--v", "--layer", "--causal", "--no-causal", "--softmax-scale", "--v-layout"}) {
    flag->excludes(command->get_option(name));
  }
  command->callback([options, mla, run] {
    if (!mla->wanted) {
      *run = [options] { run_compare(*options); };
      return;
    }
    mla->device = options->device;
    mla->arithmetic = options->arithmetic;
    mla->json = options->json;
    *run = [mla] { run_compare_mla(*mla); };
  });
}

}  // namespace fp8attn::cli
