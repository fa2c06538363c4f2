// How far an output is from the reference, and whether that is close enough.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>

#include "prefill_run.h"
#include "reference.h"

namespace fp8attn::test {

struct Tolerance {
  double relative_l2 = 0;  // per head: |out - reference| / |reference|. The cosine must be at least 1 - relative_l2^2
  double row_abs = 0;      // per row: largest error, in units of the head's largest |reference|
  double lse_abs = 0;      // per row
  // Whether relative_l2 is what the errors of many numbers come to, around which those of few rows scatter.
  bool averages = false;
};

// The worst head or row of each kind.
struct Errors {
  double relative_l2 = 0, cosine = 1, row_abs = 0, lse_abs = 0;
};

Errors measure(const PrefillCase& test, const Reference& reference, const PrefillOutput& output);

// Every head and row within the tolerance, rows without a key exactly 0 and -infinity. Says which failed.
::testing::AssertionResult check(const PrefillCase& test, const Reference& reference, const PrefillOutput& output,
                                 const Tolerance& tolerance);

}  // namespace fp8attn::test
