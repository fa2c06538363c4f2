// JSON as the program reads and writes it.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace fp8attn::cli {

// `text` as JSON, at most 16 levels deep and without a key twice in an object (a parser would keep the last one
// silently). Throws Error, with `place` as its argument, for anything else; `what` names the text there ("a header").
nlohmann::json parse_json(const std::string& place, const std::string& what, const std::string& text);

// At most about 80 characters of `text`, for messages.
std::string shortened(const std::string& text);

// shortened() JSON of a value.
std::string brief(const nlohmann::json& value);

// JSON for output, indented by two. Bytes that are no UTF-8 (of file names) become U+FFFD.
std::string pretty(const nlohmann::ordered_json& value);

}  // namespace fp8attn::cli
