// What the methods of several files use.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "prefill_run.h"

namespace fp8attn::test {

inline ::testing::AssertionResult same_bits(const PrefillOutput& got, const PrefillOutput& want,
                                            const std::string& what) {
  if (!got.wrong_write.empty()) return ::testing::AssertionFailure() << what << ": " << got.wrong_write;
  if (got == want) return ::testing::AssertionSuccess();
  const auto differ = [](const HostTensor& a, const HostTensor& b) {
    return std::mismatch(a.bytes.begin(), a.bytes.end(), b.bytes.begin()).first - a.bytes.begin();
  };
  return ::testing::AssertionFailure() << what << ": first differing byte of out " << differ(got.out, want.out)
                                       << " of " << want.out.bytes.size() << ", of lse " << differ(got.lse, want.lse)
                                       << " of " << want.lse.bytes.size();
}

inline void append(::testing::AssertionResult& all, const ::testing::AssertionResult& one) {
  if (one) return;
  if (all) all = ::testing::AssertionFailure();
  all << one.message() << "\n";
}

}  // namespace fp8attn::test
