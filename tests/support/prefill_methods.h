// The ways in which a prefill case is judged (the methods of the test contract).
#pragma once

#include <gtest/gtest.h>

#include <vector>

#include "metrics.h"
#include "prefill_case.h"
#include "test_device.h"

namespace fp8attn::test {

// What an exact, an 8-bit and a 16-bit kernel are allowed.
Tolerance tolerance_for(const PrefillCase& test, DeviceKind device);

// Output and lse of every form of a case against float64. The forms differ in arithmetic only. Of many rows 64 of each
// head are compared.
::testing::AssertionResult matches_reference(TestDevice& device, const std::vector<PrefillCase>& forms);

// Strided tensors, NaN in all memory that no element lies in, for q, k and v apart and together: the bits of the dense
// run, and no byte written between the elements of out and lse.
::testing::AssertionResult ignores_poison(TestDevice& device, const PrefillCase& test);

// q = 0 and V made of indicator columns count the keys that every row sees.
::testing::AssertionResult counts_keys(TestDevice& device, PrefillCase test);

// Stride 0 over heads and over batch entries, odd strides of size-1 dims: the bits of the dense run.
::testing::AssertionResult same_when_expanded(TestDevice& device, const PrefillCase& test);

// Every tensor one element past an aligned address (CPU alone): the bits of the dense run.
::testing::AssertionResult same_when_shifted(TestDevice& device, const PrefillCase& test);

// q and k hold one large number, so that every logit is the same: out is the mean of the visible values, lse finite.
::testing::AssertionResult equal_logits_give_the_mean(TestDevice& device, const PrefillCase& test, float number);

// Makes the first head of a scale NaN: NaN in every out and lse that it reaches, the bits of the clean run elsewhere.
::testing::AssertionResult nan_scale_reaches_its_heads(TestDevice& device, PrefillCase test,
                                                       HostScale PrefillInputs::*scale);

// A softmax scale near the largest float: every row takes the value of its largest logit.
::testing::AssertionResult survives_the_largest_softmax_scale(TestDevice& device, PrefillCase test);

// 100 times the same bits, with another problem in between.
::testing::AssertionResult same_every_time(TestDevice& device, const PrefillCase& test, const PrefillCase& between);

// An explicit softmax scale of 1 / sqrt(d_qk) gives the bits of the default.
::testing::AssertionResult default_softmax_scale_is_usual(TestDevice& device, PrefillCase test);

// NaN in the value of the last key reaches the rows that see it and no other (causal cases).
::testing::AssertionResult nan_reaches_its_rows_only(TestDevice& device, const PrefillCase& test);

// Keys with a constant added to each channel, which smooth-K takes away: out and lse as exact attention has them, and a
// constant that would show in lse by more than its tolerance.
::testing::AssertionResult smoothed_keys_keep_their_lse(TestDevice& device, const PrefillCase& test);

// kDefault's error at most 5% above kExact's, kFast's at most 25%.
::testing::AssertionResult p_modes_keep_their_bounds(TestDevice& device, PrefillCase test);

// A device's output is nearer to the CPU's emulation than either is to exact attention.
::testing::AssertionResult is_predicted_by_emulation(TestDevice& device, const PrefillCase& test);

}  // namespace fp8attn::test
