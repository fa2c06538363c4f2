#include "class_summary.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <array>
#include <cstdio>
#include <map>
#include <string>

namespace fp8attn::test {
namespace {

const std::map<std::string, const char*> kMeanings = {
    {"A", "foreign memory"},
    {"B", "nothing to do"},
    {"C", "extreme logits, rows without a key"},
    {"D", "size"},
    {"E", "launch limits"},
    {"F", "fp8 numerics"},
    {"G", "hangs, races, lifetime"},
    {"H", "page tables"},
    {"I", "strides"},
    {"J", "heads"},
    {"K", "splits, graphs"},
    {"L", "conventions"},
    {"M", "environment"},
};

std::string class_of(const ::testing::TestInfo& info) {
  const std::string name = info.name();
  for (const std::string& part : {name, name.substr(name.rfind('/') + 1)}) {
    if (part.size() > 1 && part[1] == '_' && kMeanings.count(part.substr(0, 1)) > 0) return part.substr(0, 1);
  }
  return "-";
}

class ClassSummary final : public ::testing::EmptyTestEventListener {
  void OnTestEnd(const ::testing::TestInfo& info) override {
    auto& counts = counts_[class_of(info)];
    const auto& result = *info.result();
    ++counts[result.Skipped() ? kSkipped : result.Passed() ? kPassed : kFailed];
  }

  void OnTestProgramEnd(const ::testing::UnitTest&) override {
    fmt::print("\n{:<40} {:>7} {:>7} {:>8}\n", "class", "passed", "failed", "skipped");
    for (const auto& [letter, counts] : counts_) {
      const auto meaning = kMeanings.find(letter);
      const std::string label = meaning == kMeanings.end() ? "other" : fmt::format("{}  {}", letter, meaning->second);
      fmt::print("{:<40} {:>7} {:>7} {:>8}\n", label, counts[kPassed], counts[kFailed], counts[kSkipped]);
    }
    std::fflush(stdout);
  }

  enum Outcome { kPassed, kFailed, kSkipped };
  std::map<std::string, std::array<int, 3>> counts_;
};

}  // namespace

bool print_summary_by_class() {
  ::testing::UnitTest::GetInstance()->listeners().Append(new ClassSummary);  // GoogleTest deletes it
  return true;
}

}  // namespace fp8attn::test
