// Tables of text: fixed width for a terminal, or Markdown.
#pragma once

#include <string>
#include <vector>

namespace fp8attn::cli {

// Columns of text align left, columns whose cells all look like numbers right.
class Table {
 public:
  explicit Table(std::vector<std::string> header) : header_(std::move(header)) {}
  void add(std::vector<std::string> row) { rows_.push_back(std::move(row)); }

  std::string text(const std::string& indent = "") const;
  std::string markdown() const;

 private:
  std::vector<std::size_t> widths() const;

  std::vector<std::string> header_;
  std::vector<std::vector<std::string>> rows_;
};

}  // namespace fp8attn::cli
