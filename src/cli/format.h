// How figures are written in tables and JSON.
#pragma once

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "cli/reference.h"

namespace fp8attn::cli {

// Three significant digits: "2.41e-02".
inline std::string error_text(double value) { return fmt::format("{:.2e}", value); }

inline std::string cosine_text(double value) { return fmt::format("{:.6f}", value); }

inline std::string milliseconds_text(double value) { return fmt::format("{:.3g}", value); }

inline nlohmann::ordered_json errors_json(const Errors& errors) {
  return {{"rel_l2", errors.rel_l2}, {"cosine", errors.cosine}, {"worst_row", errors.worst_row}, {"lse", errors.lse}};
}

}  // namespace fp8attn::cli
