#include "cli/common_options.h"

#include <fmt/format.h>

#include <cmath>

#include "cli/errors.h"

namespace fp8attn::cli {

void add_common_options(CLI::App& command, CommonOptions* options) {
  command.add_option("FILE", options->input.file, "A .safetensors file; none where --q, --k and --v name .npy files");
  command.add_option("--q", options->input.q, "Name of q in FILE, or a .npy file")->capture_default_str();
  command.add_option("--k", options->input.k, "Name of k in FILE, or a .npy file")->capture_default_str();
  command.add_option("--v", options->input.v, "Name of v in FILE, or a .npy file")->capture_default_str();
  command.add_option("--layer", options->input.layer, "Only the layer of this prefix (layers.3) or number (3)");
  command.add_option("--device", options->device, "cpu, cuda or cuda:N (default: the first usable GPU, else the CPU)");
  const auto set_causal = [options](std::int64_t count) { options->causal = count > 0; };
  command.add_flag("--causal,!--no-causal", set_causal,
                   "Causal mask, aligned to the last key (default: what FILE's metadata says, else none)");
  command.add_option("--softmax-scale", options->softmax_scale, "Default: 1 / sqrt(head dim)");
  command.add_option("--v-layout", options->v_layout,
                     "Layout of an e4m3 v for the kernel: row-major (default), packed");
  command.add_option("--arithmetic", options->arithmetic,
                     "Of the CPU: float32, float64, emulated (default: predicts the GPU), emulated13");
  command.add_flag("--json", options->json, "Print JSON");
}

AttentionOptions attention_options(const CommonOptions& options) {
  AttentionOptions result;
  if (!options.v_layout.empty()) result.v_layout = parse_v_layout(options.v_layout);
  if (!options.p_mode.empty()) result.p_mode = parse_p_mode(options.p_mode);
  if (options.softmax_scale && !std::isfinite(*options.softmax_scale)) {
    throw usage_error("--softmax-scale", fmt::format("{}", *options.softmax_scale), "a finite value");
  }
  result.softmax_scale = options.softmax_scale;
  result.device = parse_device(options.device);
  result.arithmetic = parse_arithmetic(options.arithmetic, result.device, CpuArithmetic::kEmulated);
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
