#include "cli/table.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>

namespace fp8attn::cli {
namespace {

// "-" stands for no value.
bool is_numeric(const std::string& cell) {
  return cell == "-" || cell == "nan" || cell == "inf" ||
         (!cell.empty() && std::isdigit(static_cast<unsigned char>(cell[0])));
}

void strip_trailing_spaces(std::string* line) { line->erase(line->find_last_not_of(' ') + 1); }

}  // namespace

std::vector<std::size_t> Table::widths() const {
  std::vector<std::size_t> widths;
  for (std::size_t column = 0; column < header_.size(); ++column) {
    std::size_t width = header_[column].size();
    for (const auto& row : rows_) width = std::max(width, row[column].size());
    widths.push_back(width);
  }
  return widths;
}

std::string Table::text(const std::string& indent) const {
  const auto widths = this->widths();
  std::vector<bool> right;
  for (std::size_t column = 0; column < header_.size(); ++column) {
    right.push_back(!rows_.empty() &&
                    std::all_of(rows_.begin(), rows_.end(), [&](const auto& row) { return is_numeric(row[column]); }));
  }
  std::string result;
  const auto add_line = [&](const std::vector<std::string>& cells) {
    std::string line = indent;
    for (std::size_t column = 0; column < cells.size(); ++column) {
      line += right[column] ? fmt::format("{:>{}}", cells[column], widths[column])
                            : fmt::format("{:<{}}", cells[column], widths[column]);
      line += "  ";
    }
    strip_trailing_spaces(&line);
    result += line + '\n';
  };
  add_line(header_);
  std::vector<std::string> rules;
  for (const std::size_t width : widths) rules.emplace_back(width, '-');
  add_line(rules);
  for (const auto& row : rows_) add_line(row);
  return result;
}

std::string Table::markdown() const {
  std::string result;
  const auto add_line = [&](const std::vector<std::string>& cells) {
    for (const std::string& cell : cells) result += "| " + cell + ' ';
    result += "|\n";
  };
  add_line(header_);
  for (std::size_t column = 0; column < header_.size(); ++column) result += "|---";
  result += "|\n";
  for (const auto& row : rows_) add_line(row);
  return result;
}

}  // namespace fp8attn::cli
