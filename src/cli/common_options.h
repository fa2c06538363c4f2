// Options that `attend` and `compare` share.
#pragma once

#include <CLI/App.hpp>
#include <optional>
#include <string>

#include "cli/attention.h"
#include "cli/input.h"
#include "cli/reference.h"

namespace fp8attn::cli {

struct CommonOptions {
  InputOptions input;
  std::string device, v_layout, p_mode, arithmetic, softmax_scale;
  std::optional<bool> causal;  // not given: what the file says
  bool json = false;
};

// A check that refuses ''; an option that is not given stays the empty string.
CLI::Validator not_empty();

void add_device_option(CLI::App& command, std::string* device);
void add_common_options(CLI::App& command, CommonOptions* options);

// Checks the values that need no file.
AttentionOptions attention_options(const CommonOptions& options);

// The rows that are compared with exact attention: all up to 4096, a sample of 256 above.
std::vector<RowRange> checked_rows(const Layer& layer);

// "error against exact attention: all 1000 rows" and the like.
std::string rows_text(const Layer& layer, const std::vector<RowRange>& rows);

}  // namespace fp8attn::cli
