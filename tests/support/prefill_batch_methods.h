// The ways in which prefill cases are judged beyond prefill_methods.h: batches of sequences that are not alike, and
// what is done to logits and outputs.
#pragma once

#include <gtest/gtest.h>

#include "prefill_case.h"
#include "test_device.h"

namespace fp8attn::test {

// The same sequences dense where they are alike, ragged, and in pages of many sizes scattered in several ways,
// addressed in 32 and 64 bits: the same bits.
::testing::AssertionResult same_in_every_layout(TestDevice& device, const PrefillCase& test);

// Each sequence as a batch of its own: the bits that it has among others.
::testing::AssertionResult same_alone(TestDevice& device, const PrefillCase& test);

// NaN in all other sequences, in q, k and v apart: the bits of a sequence stay.
::testing::AssertionResult ignores_neighbours(TestDevice& device, const PrefillCase& test);

// Lengths below 0 are none, lengths beyond the capacity are the capacity: a case whose first sequence fills it and
// whose second has nothing.
::testing::AssertionResult clamps_lengths(TestDevice& device, const PrefillCase& test);

// Offsets below 0, beyond the tensor and below the one before them: a case of three ragged sequences without spare rows
// whose second has no keys.
::testing::AssertionResult clamps_offsets(TestDevice& device, const PrefillCase& test);

// Entries of the table that are no page, within the length of a sequence: the others keep their bits.
::testing::AssertionResult wild_pages_harm_their_sequence_only(TestDevice& device, const PrefillCase& test);

// Windows that are longer than any sequence hide nothing: the bits of none.
::testing::AssertionResult long_windows_hide_nothing(TestDevice& device, PrefillCase test);

// Sinks change no lse and scale out down by what they add to the denominator; those of -infinity change nothing, large
// ones leave 0.
::testing::AssertionResult sinks_only_dilute(TestDevice& device, PrefillCase test);

// bf16, fp16 and e4m3 outputs, the last with a scale that saturates some, are the f32 output rounded.
::testing::AssertionResult outputs_are_rounded(TestDevice& device, PrefillCase test);

// lse in base 2 is the other one times log2(e), and out has the same bits.
::testing::AssertionResult lse_bases_agree(TestDevice& device, PrefillCase test);

}  // namespace fp8attn::test
