// The time of a measurement.
#pragma once

#include <ctime>
#include <string>

namespace fp8attn::cli {

// "2026-11-30T13:05:00Z"
inline std::string utc_now() {
  const std::time_t now = std::time(nullptr);
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", std::gmtime(&now));
  return text;
}

}  // namespace fp8attn::cli
