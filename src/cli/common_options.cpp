#include "cli/common_options.h"

#include <fmt/format.h>

#include <charconv>
#include <cmath>
#include <system_error>

#include "cli/errors.h"

namespace fp8attn::cli {

CLI::Validator not_empty() {
  return CLI::Validator([](std::string& text) { return std::string(text.empty() ? "got '', expected a value" : ""); },
                        "", "not_empty");
}

void add_device_option(CLI::App& command, std::string* device) {
  command.add_option("--device", *device, "cpu, cuda or cuda:N (default: the first usable GPU, else the CPU)")
      ->check(not_empty());
}

void add_common_options(CLI::App& command, CommonOptions* options) {
  const auto add = [&](const char* name, std::string* value, const char* description) {
    return command.add_option(name, *value, description)->check(not_empty());
  };
  add("FILE", &options->input.file, "A .safetensors file; none where --q, --k and --v name .npy files");
  add("--q", &options->input.q, "Name of q in FILE, or a .npy file")->capture_default_str();
  add("--k", &options->input.k, "Name of k in FILE, or a .npy file")->capture_default_str();
  add("--v", &options->input.v, "Name of v in FILE, or a .npy file")->capture_default_str();
  add("--layer", &options->input.layer, "Only the layer of this prefix (layers.3) or number (3)");
  add_device_option(command, &options->device);
  auto* causal = command.add_flag_callback(
      "--causal", [options] { options->causal = true; },
      "Causal mask, aligned to the last key (default: what FILE's metadata says, else none)");
  auto* full = command.add_flag_callback(
      "--no-causal", [options] { options->causal = false; }, "No mask");
  causal->disable_flag_override()->excludes(full);
  full->disable_flag_override();
  add("--softmax-scale", &options->softmax_scale, "Factor of the scores (default: 1 / sqrt(head dim))");
  add("--v-layout", &options->v_layout, "Layout of an e4m3 v for the kernel: row-major (default), packed");
  add("--arithmetic", &options->arithmetic,
      "Of the CPU: float32, float64, emulated (default: predicts the GPU), emulated13");
  command.add_flag("--json", options->json, "Print JSON")->disable_flag_override();
}

namespace {

// A number that float holds: 1e-60 is not 0, and 1e300 is not infinite.
float parse_softmax_scale(const std::string& text) {
  float value = 0;
  const char* begin = text.data() + (text.starts_with('+') ? 1 : 0);
  const char* end = text.data() + text.size();
  const auto [stop, status] = std::from_chars(begin, end, value);
  if (status == std::errc::result_out_of_range) {
    throw usage_error("--softmax-scale", text, "0, or a magnitude between 1e-45 and 3.4e38");
  }
  if (status != std::errc{} || stop != end || !std::isfinite(value)) {
    throw usage_error("--softmax-scale", fmt::format("'{}'", text), "a finite number");
  }
  return value;
}

}  // namespace

AttentionOptions attention_options(const CommonOptions& options) {
  AttentionOptions result;
  if (!options.v_layout.empty()) result.v_layout = parse_v_layout(options.v_layout);
  if (!options.p_mode.empty()) result.p_mode = parse_p_mode(options.p_mode);
  if (!options.softmax_scale.empty()) result.softmax_scale = parse_softmax_scale(options.softmax_scale);
  result.device = parse_device(options.device);
  result.arithmetic = parse_arithmetic(options.arithmetic, result.device, CpuArithmetic::kEmulated);
  const bool emulated =
      result.arithmetic == CpuArithmetic::kEmulated || result.arithmetic == CpuArithmetic::kEmulated13;
  if (result.p_mode && result.device.kind == DeviceKind::kCpu && !emulated) {
    throw usage_error("--p-mode", fmt::format("'{}' beside --arithmetic {}", options.p_mode, options.arithmetic),
                      "an emulated arithmetic: the others do not round P");
  }
  return result;
}

std::vector<RowRange> checked_rows(const Layer& layer) { return sample_rows(layer.q.shape[1], 4096, 16, 16); }

std::string rows_text(const Layer& layer, const std::vector<RowRange>& rows) {
  std::int64_t count = 0;
  for (const RowRange range : rows) count += range.end - range.begin;
  const std::int64_t all = layer.q.shape[1];
  return count == all ? fmt::format("all {} query tokens", all) : fmt::format("{} of {} query tokens", count, all);
}

}  // namespace fp8attn::cli
