// `fp8attn info`: what this build and this machine can do.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "api/mla_decode_variants.h"
#include "api/variants.h"
#include "cli/commands.h"
#include "cli/device.h"
#include "cli/json_text.h"
#include "cli/recipe.h"
#include "cli/table.h"

namespace fp8attn::cli {
namespace {

using nlohmann::ordered_json;

std::string dim_text(int dim) { return dim == 0 ? "any" : fmt::format("{}", dim); }

// Head dims "128" or, where v has its own, "192/128".
std::string dims_text(const PrefillVariant& variant) {
  if (variant.head_dim_qk == variant.head_dim_v) return dim_text(variant.head_dim_qk);
  return fmt::format("{}/{}", dim_text(variant.head_dim_qk), dim_text(variant.head_dim_v));
}

// P modes mean something where P becomes e4m3.
const char* p_mode_text(const PrefillVariant& variant) {
  if (variant.dtype != DType::kE4M3) return "-";
  return variant.device == DeviceKind::kCpu || variant.short_queries ? "all" : name_of(variant.p_mode);
}

ordered_json variant_json(const PrefillVariant& variant) {
  return {{"name", variant.name},
          {"backend", name_of(variant.device)},
          {"dtype", name_of(variant.dtype)},
          {"head_dim_qk", variant.head_dim_qk},
          {"head_dim_v", variant.head_dim_v},
          {"v_layout", name_of(variant.v_layout)},
          {"p_mode", p_mode_text(variant)},
          {"left_out_by", variant.left_out_by == nullptr ? ordered_json() : ordered_json(variant.left_out_by)}};
}

ordered_json variant_json(const MlaDecodeVariant& variant) {
  return {{"name", variant.name},
          {"backend", name_of(variant.device)},
          {"q_dtype", name_of(variant.q_dtype)},
          {"format", name_of(variant.format)},
          {"addressing", name_of(variant.addressing)},
          {"left_out_by", variant.left_out_by == nullptr ? ordered_json() : ordered_json(variant.left_out_by)}};
}

void print_json() {
  ordered_json mla_variants = ordered_json::array();
  for (const MlaDecodeVariant& variant : mla_decode_variants()) mla_variants.push_back(variant_json(variant));
  ordered_json backends = ordered_json::array(), variants = ordered_json::array(), names = ordered_json::array();
  for (const BackendInfo& backend : list_backends()) {
    ordered_json devices = ordered_json::array();
    for (std::size_t i = 0; i < backend.devices.size(); ++i) {
      devices.push_back(
          {{"description", backend.devices[i]}, {"usable", i < backend.usable.size() && backend.usable[i]}});
    }
    backends.push_back({{"kind", name_of(backend.kind)},
                        {"available", backend.available},
                        {"detail", backend.detail},
                        {"devices", devices}});
  }
  for (const PrefillVariant& variant : prefill_variants()) variants.push_back(variant_json(variant));
  for (const Recipe& recipe : recipes()) names.push_back({{"name", recipe.name}, {"description", describe(recipe)}});
  const ordered_json info = {{"version", version()},
                             {"default_device", device_text(default_device())},
                             {"backends", backends},
                             {"prefill_variants", variants},
                             {"mla_decode_variants", mla_variants},
                             {"recipes", names}};
  fmt::print("{}\n", pretty(info));
}

// Kernels that differ in head dims and forms of P only.
struct MatrixRow {
  DeviceKind device;
  DType dtype;
  VLayout v_layout;
  std::vector<std::string> dims, p_modes;

  bool same_kind(const MatrixRow& other) const {
    return device == other.device && dtype == other.dtype && v_layout == other.v_layout;
  }
};

// Adds `row` to the one that matches it but for `merged`, or to the end.
void merge_into(std::vector<MatrixRow>* rows, const MatrixRow& row, std::vector<std::string> MatrixRow::*merged,
                std::vector<std::string> MatrixRow::*same) {
  const auto match = std::find_if(rows->begin(), rows->end(), [&](const MatrixRow& other) {
    return other.same_kind(row) && other.*same == row.*same;
  });
  if (match == rows->end()) return rows->push_back(row);
  ((*match).*merged).insert(((*match).*merged).end(), (row.*merged).begin(), (row.*merged).end());
}

// Dtypes of q, formats and addressings of each backend.
std::string mla_markdown() {
  Table table({"backend", "dtype of q", "format of the cache", "tokens named by"});
  for (DeviceKind device : {DeviceKind::kCpu, DeviceKind::kCuda}) {
    // Rows that share dtypes and addressings are one.
    std::vector<std::pair<std::string, std::string>> rows;  // what they share, formats
    for (CacheFormat format : {CacheFormat::kBF16, CacheFormat::kTensor, CacheFormat::kToken128, CacheFormat::kToken}) {
      std::vector<std::string> dtypes, addressings;
      const auto add_once = [](std::vector<std::string>& list, const char* text) {
        if (std::find(list.begin(), list.end(), text) == list.end()) list.push_back(text);
      };
      for (const MlaDecodeVariant& variant : mla_decode_variants()) {
        if (variant.device != device || variant.format != format) continue;
        add_once(dtypes, name_of(variant.q_dtype));
        add_once(addressings, name_of(variant.addressing));
      }
      if (dtypes.empty()) continue;
      const std::string key = fmt::format("{}|{}", fmt::join(dtypes, ", "), fmt::join(addressings, ", "));
      const auto row = std::find_if(rows.begin(), rows.end(), [&](const auto& other) { return other.first == key; });
      if (row == rows.end()) {
        rows.emplace_back(key, name_of(format));
      } else {
        row->second += fmt::format(", {}", name_of(format));
      }
    }
    for (const auto& [key, formats] : rows) {
      const std::size_t bar = key.find('|');
      table.add({device == DeviceKind::kCpu ? "CPU" : "CUDA, compute capability 9.0", key.substr(0, bar), formats,
                 key.substr(bar + 1)});
    }
  }
  return table.markdown();
}

// A table of prefill and one of MLA decode, kernels that options left out of this build included: every build with the
// CUDA backend prints the same text, one without it only the rows of the CPU.
void print_markdown() {
  std::vector<MatrixRow> by_dims, rows;
  for (const PrefillVariant& variant : prefill_variants()) {
    if (variant.short_queries) continue;  // they take nothing that others do not
    const MatrixRow row{variant.device, variant.dtype, variant.v_layout, {dims_text(variant)}, {p_mode_text(variant)}};
    merge_into(&by_dims, row, &MatrixRow::p_modes, &MatrixRow::dims);
  }
  for (const MatrixRow& row : by_dims) merge_into(&rows, row, &MatrixRow::dims, &MatrixRow::p_modes);
  Table table({"backend", "dtype of q, k, v", "layout of v", "head dims (qk/v where they differ)", "forms of P"});
  for (const MatrixRow& row : rows) {
    table.add({row.device == DeviceKind::kCpu ? "CPU" : "CUDA, compute capability 9.0", name_of(row.dtype),
               name_of(row.v_layout), fmt::format("{}", fmt::join(row.dims, ", ")),
               fmt::format("{}", fmt::join(row.p_modes, ", "))});
  }
  fmt::print("{}\n{}", table.markdown(), mla_markdown());
}

void print_text() {
  fmt::print("fp8attn {}\n\nBackends\n", version());
  for (const BackendInfo& backend : list_backends()) {
    fmt::print("  {:<5} {}{}{}\n", name_of(backend.kind), backend.available ? "available" : "not available",
               backend.detail.empty() ? "" : ": ", backend.detail);
    for (std::size_t i = 0; i < backend.devices.size(); ++i) {
      const bool usable = i < backend.usable.size() && backend.usable[i];
      fmt::print("        {}  {}{}\n", device_text({backend.kind, static_cast<int>(i)}), backend.devices[i],
                 usable ? "" : "  (not usable: needs compute capability 9.0)");
    }
  }
  fmt::print("  default device: {}\n\nPrefill kernels\n", device_text(default_device()));
  Table table({"kernel", "backend", "dtype", "head dim", "layout of v", "P", "in this build"});
  for (const PrefillVariant& variant : prefill_variants()) {
    table.add({variant.name, name_of(variant.device), name_of(variant.dtype), dims_text(variant),
               name_of(variant.v_layout), p_mode_text(variant),
               variant.left_out_by == nullptr ? "yes" : fmt::format("no: left out by {}", variant.left_out_by)});
  }
  fmt::print("{}\nMLA decode kernels\n", table.text("  "));
  Table mla({"kernel", "backend", "q", "cache", "tokens", "in this build"});
  for (const MlaDecodeVariant& variant : mla_decode_variants()) {
    mla.add({variant.name, name_of(variant.device), name_of(variant.q_dtype), name_of(variant.format),
             name_of(variant.addressing),
             variant.left_out_by == nullptr ? "yes" : fmt::format("no: left out by {}", variant.left_out_by)});
  }
  fmt::print("{}\nRecipes of attend and compare\n", mla.text("  "));
  Table names({"recipe", "what it stores"});
  for (const Recipe& recipe : recipes()) names.add({recipe.name, describe(recipe)});
  fmt::print("{}", names.text("  "));
}

}  // namespace

void add_info(CLI::App& program, std::function<void()>* run) {
  struct Options {
    bool json = false, markdown = false;
  };
  auto* command = program.add_subcommand("info", "Backends, devices and kernels of this build and this machine");
  auto options = std::make_shared<Options>();
  auto* json = command->add_flag("--json", options->json, "Print JSON")->disable_flag_override();
  command->add_flag("--markdown", options->markdown, "Print the support matrix as a Markdown table")
      ->disable_flag_override()
      ->excludes(json);
  command->callback([options, run] {
    *run = options->json ? print_json : options->markdown ? print_markdown : print_text;
  });
}

}  // namespace fp8attn::cli
