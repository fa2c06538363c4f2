#include "cli/input.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <string_view>

#include "cli/errors.h"
#include "cli/json_text.h"
#include "cli/npy.h"
#include "cli/safetensors.h"

namespace fp8attn::cli {
namespace {

bool is_digit(char c) { return std::isdigit(static_cast<unsigned char>(c)) != 0; }

// Whether a comes before b when runs of digits count as numbers: layers.2 before layers.10.
bool natural_less(std::string_view a, std::string_view b) {
  while (!a.empty() && !b.empty()) {
    if (is_digit(a[0]) && is_digit(b[0])) {
      const auto digits = [](std::string_view text) {
        text.remove_prefix(std::min(text.find_first_not_of('0'), text.size()));
        return text.substr(0, std::find_if_not(text.begin(), text.end(), is_digit) - text.begin());
      };
      const std::string_view left = digits(a), right = digits(b);
      if (left.size() != right.size()) return left.size() < right.size();
      if (left != right) return left < right;
      a.remove_prefix(std::find_if_not(a.begin(), a.end(), is_digit) - a.begin());
      b.remove_prefix(std::find_if_not(b.begin(), b.end(), is_digit) - b.begin());
      continue;
    }
    if (a[0] != b[0]) return a[0] < b[0];
    a.remove_prefix(1);
    b.remove_prefix(1);
  }
  return a.size() < b.size();
}

// Prefixes (with their dot) before which q, k and v all exist; "" where the plain names exist.
std::vector<std::string> layer_prefixes(const SafetensorsFile& file, const InputOptions& options) {
  std::vector<std::string> prefixes;
  for (const std::string& name : file.names()) {
    if (!name.ends_with(options.q)) continue;
    const std::string prefix = name.substr(0, name.size() - options.q.size());
    if (!prefix.empty() && prefix.back() != '.') continue;
    if (file.contains(prefix + options.k) && file.contains(prefix + options.v)) prefixes.push_back(prefix);
  }
  std::sort(prefixes.begin(), prefixes.end(), natural_less);
  return prefixes;
}

std::string layer_name(const std::string& prefix) { return prefix.substr(0, prefix.empty() ? 0 : prefix.size() - 1); }

bool is_layer(const std::string& name, const std::string& wanted) {
  if (name == wanted) return true;
  if (wanted.empty() || !std::all_of(wanted.begin(), wanted.end(), is_digit) || !name.ends_with(wanted)) return false;
  return name.size() == wanted.size() || !is_digit(name[name.size() - wanted.size() - 1]);
}

// Leaves the prefixes that --layer names, of the file's prefixes.
void select_layer(const std::string& wanted, std::vector<std::string>* prefixes) {
  std::vector<std::string> names;
  for (const std::string& prefix : *prefixes) {
    if (!prefix.empty()) names.push_back(layer_name(prefix));
  }
  if (names.empty()) {
    throw usage_error("--layer", fmt::format("'{}'", wanted), "none: the tensors of this file belong to no layer");
  }
  std::erase_if(*prefixes, [&](const std::string& prefix) { return !is_layer(layer_name(prefix), wanted); });
  if (prefixes->size() != 1) {
    throw usage_error("--layer", fmt::format("'{}'{}", wanted, prefixes->empty() ? "" : ", which names several layers"),
                      fmt::format("one of {}", fmt::join(names, ", ")));
  }
}

// [s, h, d] is a batch of one.
void require_rank(const std::string& name, HostTensor* tensor) {
  if (tensor->shape.size() == 3) tensor->shape.insert(tensor->shape.begin(), 1);
  if (tensor->shape.size() != 4) {
    throw usage_error(name + ".shape", shape_text(tensor->shape), "[b, s, h, d] or [s, h, d]");
  }
}

void require_matching(const std::string& prefix, const InputOptions& names, const Layer& layer) {
  const auto &q = layer.q.shape, &k = layer.k.shape, &v = layer.v.shape;
  const std::string k_name = prefix + names.k, v_name = prefix + names.v;
  const auto beside_q = [&](const char* expected) { return fmt::format("{} beside q {}", expected, shape_text(q)); };
  if (layer.k.dtype != layer.q.dtype) {
    throw usage_error(k_name + ".dtype", name_of(layer.k.dtype), fmt::format("{}, as q", name_of(layer.q.dtype)));
  }
  if (layer.v.dtype != layer.q.dtype) {
    throw usage_error(v_name + ".dtype", name_of(layer.v.dtype), fmt::format("{}, as q", name_of(layer.q.dtype)));
  }
  if (k[0] != q[0] || k[3] != q[3]) {
    throw usage_error(k_name + ".shape", shape_text(k), beside_q("the same batch and head dim"));
  }
  if (v[0] != k[0] || v[1] != k[1] || v[2] != k[2]) {
    throw usage_error(v_name + ".shape", shape_text(v),
                      fmt::format("[{}, {}, {}, d] beside k {}", k[0], k[1], k[2], shape_text(k)));
  }
  if (k[2] == 0 || q[2] % k[2] != 0) {
    throw usage_error(k_name + ".shape", fmt::format("{} ({} heads)", shape_text(k), k[2]),
                      beside_q("a number of heads that divides that of q"));
  }
}

std::optional<HostTensor> read_scale(const SafetensorsFile& file, const std::string& name, DType data_dtype) {
  const std::string scale_name = name + "_scale";
  if (!file.contains(scale_name)) return std::nullopt;
  if (data_dtype != DType::kE4M3) {
    throw usage_error(scale_name, fmt::format("a scale beside {} data", name_of(data_dtype)),
                      "scales beside F8_E4M3 data only");
  }
  HostTensor scale = file.read(scale_name);
  if (scale.dtype != DType::kF32) throw usage_error(scale_name + ".dtype", name_of(scale.dtype), "f32");
  if (scale.shape.size() > 3) {
    throw usage_error(scale_name + ".shape", shape_text(scale.shape), "at most 3 dims");
  }
  return scale;
}

Layer read_layer(const SafetensorsFile& file, const std::string& prefix, const InputOptions& options) {
  Layer layer;
  layer.name = layer_name(prefix);
  layer.q = file.read(prefix + options.q);
  layer.k = file.read(prefix + options.k);
  layer.v = file.read(prefix + options.v);
  require_rank(prefix + options.q, &layer.q);
  require_rank(prefix + options.k, &layer.k);
  require_rank(prefix + options.v, &layer.v);
  require_matching(prefix, options, layer);
  layer.q_scale = read_scale(file, prefix + options.q, layer.q.dtype);
  layer.k_scale = read_scale(file, prefix + options.k, layer.q.dtype);
  layer.v_scale = read_scale(file, prefix + options.v, layer.q.dtype);
  return layer;
}

// Of the file's metadata.
bool causal_of(const SafetensorsFile& file, const std::string& path) {
  const auto found = file.metadata().find("causal");
  if (found == file.metadata().end()) return false;
  for (const char* yes : {"true", "True", "1"}) {
    if (found->second == yes) return true;
  }
  for (const char* no : {"false", "False", "0"}) {
    if (found->second == no) return false;
  }
  throw usage_error(path, fmt::format("'causal' as '{}' in its metadata", shortened(found->second)),
                    "true, True, 1, false, False or 0");
}

Input load_safetensors(const InputOptions& options) {
  const SafetensorsFile file(options.file);
  std::vector<std::string> prefixes = layer_prefixes(file, options);
  if (prefixes.empty()) {
    // A name that is nowhere, neither alone nor after a prefix, is the one to report.
    for (const std::string& name : {options.q, options.k, options.v}) {
      const auto names = file.names();
      const bool found = std::any_of(names.begin(), names.end(), [&](const std::string& candidate) {
        return candidate == name || candidate.ends_with("." + name);
      });
      if (!found) file.read(name);  // throws, with the names that exist
    }
    throw usage_error(options.file, "no layer that has all of q, k and v",
                      fmt::format("{0}, {1}, {2} or *.{0}, *.{1}, *.{2}; the file has {3}", options.q, options.k,
                                  options.v, fmt::join(file.names(), ", ")));
  }
  if (!options.layer.empty()) select_layer(options.layer, &prefixes);
  Input input;
  for (const std::string& prefix : prefixes) input.layers.push_back(read_layer(file, prefix, options));
  input.causal = causal_of(file, options.file);
  return input;
}

Input load_npy(const InputOptions& options) {
  for (const auto& [option, value] :
       {std::pair{"--q", &options.q}, std::pair{"--k", &options.k}, std::pair{"--v", &options.v}}) {
    if (!value->ends_with(".npy")) {
      throw usage_error(option, fmt::format("'{}' and no FILE", *value),
                        "a .safetensors FILE, or three .npy files in --q, --k and --v");
    }
  }
  if (!options.layer.empty()) throw usage_error("--layer", options.layer, "none beside .npy files");
  Layer layer;
  layer.q = read_npy(options.q);
  layer.k = read_npy(options.k);
  layer.v = read_npy(options.v);
  require_rank(options.q, &layer.q);
  require_rank(options.k, &layer.k);
  require_rank(options.v, &layer.v);
  require_matching("", options, layer);
  Input input;
  input.layers.push_back(std::move(layer));
  return input;
}

}  // namespace

Input load_input(const InputOptions& options) {
  if (options.file.empty()) return load_npy(options);
  if (options.file.ends_with(".npy")) {
    throw usage_error("FILE", options.file, "a .safetensors file; .npy files go into --q, --k and --v");
  }
  return load_safetensors(options);
}

std::string describe(const Layer& layer) {
  const std::string k_and_v = layer.k.shape == layer.v.shape
                                  ? fmt::format("k and v {}", shape_text(layer.k.shape))
                                  : fmt::format("k {}, v {}", shape_text(layer.k.shape), shape_text(layer.v.shape));
  return fmt::format("q {}, {}, {}", shape_text(layer.q.shape), k_and_v, name_of(layer.q.dtype));
}

}  // namespace fp8attn::cli
