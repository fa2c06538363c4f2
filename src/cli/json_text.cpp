#include "cli/json_text.h"

#include <fmt/format.h>

#include <set>
#include <vector>

#include "cli/errors.h"

namespace fp8attn::cli {
namespace {

using nlohmann::json;

// Deeper values would exhaust the stack where they are written or destroyed.
constexpr int kMaxDepth = 16;

}  // namespace

json parse_json(const std::string& place, const std::string& what, const std::string& text) {
  std::vector<std::set<std::string>> keys;
  const auto on_event = [&](int depth, json::parse_event_t event, json& value) {
    using Event = json::parse_event_t;
    if ((event == Event::object_start || event == Event::array_start) && depth >= kMaxDepth) {
      throw usage_error(place, fmt::format("{} nested more than {} levels deep", what, kMaxDepth), "less");
    }
    if (event == Event::object_start) keys.emplace_back();
    if (event == Event::object_end) keys.pop_back();
    if (event == Event::key && !keys.back().insert(value.get<std::string>()).second) {
      throw usage_error(place, fmt::format("the name '{}' twice in {}", shortened(value.get<std::string>()), what),
                        "every name once");
    }
    return true;
  };
  try {
    return json::parse(text, on_event);
  } catch (const json::exception& error) {
    // The exception quotes what it read last, however long.
    const std::string reason = std::string(error.what()).substr(0, 200);
    throw usage_error(place, fmt::format("{} that is not JSON ({})", what, reason), "JSON");
  }
}

std::string shortened(const std::string& text) {
  constexpr std::size_t kMost = 80;
  return text.size() <= kMost ? text : text.substr(0, kMost) + "...";
}

std::string brief(const json& value) {
  return shortened(value.dump(-1, ' ', /*ensure_ascii=*/true, json::error_handler_t::replace));
}

std::string pretty(const nlohmann::ordered_json& value) {
  return value.dump(2, ' ', /*ensure_ascii=*/false, nlohmann::ordered_json::error_handler_t::replace);
}

}  // namespace fp8attn::cli
