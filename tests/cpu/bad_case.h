// One way to make the arguments of a call wrong, and what the error has to say.
#pragma once

#include <gtest/gtest.h>

#include <ostream>
#include <string>
#include <vector>

namespace fp8attn::test {

template <class Arguments>
struct BadCase {
  const char* name;
  void (*spoil)(Arguments&);
  const char* argument;            // which one the reason names
  std::vector<const char*> texts;  // all of them in the reason
};

template <class Arguments>
void PrintTo(const BadCase<Arguments>& bad, std::ostream* stream) {
  *stream << bad.name;
}

// One reason, of the form "argument: got ..., expected ...".
template <class Arguments>
void expect_only_reason(const std::vector<std::string>& reasons, const BadCase<Arguments>& bad) {
  ASSERT_EQ(reasons.size(), 1u) << testing::PrintToString(reasons);
  const std::string& reason = reasons.front();
  EXPECT_TRUE(reason.starts_with(std::string(bad.argument) + ": got ")) << reason;
  for (const char* text : bad.texts) EXPECT_NE(reason.find(text), std::string::npos) << reason << "\nlacks " << text;
}

struct CaseName {
  template <class Case>
  std::string operator()(const testing::TestParamInfo<Case>& info) const {
    return info.param.name;
  }
};

}  // namespace fp8attn::test
