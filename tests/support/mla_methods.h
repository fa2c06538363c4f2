// The ways in which an MLA decode case is judged (the methods of the test contract).
#pragma once

#include <gtest/gtest.h>

#include <vector>

#include "metrics.h"
#include "mla_case.h"
#include "test_device.h"

namespace fp8attn::test {

// What a head or row may be off by against exact attention of the stored tokens and of queries rounded as the kernels
// round them, and what all heads together may be off by.
struct MlaTolerance {
  Tolerance worst;
  double overall = 0;     // relative L2 of all rows and heads
  double end_to_end = 0;  // the same against exact attention of bf16 tokens and queries; 0 for no bound
};

MlaTolerance mla_tolerance_for(const MlaCase& test, DeviceKind device);

// Output and lse of every form of a case against float64. The forms differ in arithmetic only.
::testing::AssertionResult mla_matches_reference(TestDevice& device, const std::vector<MlaCase>& forms);

// The tolerance refuses zeros, one head copied over another, a scale left out, a token too many, and lse off by log
// 448.
::testing::AssertionResult mla_tolerance_refuses_faults(TestDevice& device, const MlaCase& test);

// NaN in tails of pages, in pages of no sequence and between records, table entries past the length that name no page,
// wide strides: the bits of the plain run, and no byte written between the elements of out and lse.
::testing::AssertionResult mla_ignores_poison(TestDevice& device, const MlaCase& test);

// q = 0 and latents with one indicator a token count the tokens that every query sees.
::testing::AssertionResult mla_counts_tokens(TestDevice& device, MlaCase test);

// Other pages, and 64-bit tables: the same bits.
::testing::AssertionResult mla_same_in_other_pages(TestDevice& device, const MlaCase& test);

// Sequences that share pages give what each gives with pages of its own.
::testing::AssertionResult mla_same_when_shared(TestDevice& device, const MlaCase& test);

// A sequence's output does not depend on the others beyond rounding: each alone is within the tolerance too, and on the
// CPU has the same bits.
::testing::AssertionResult mla_same_alone(TestDevice& device, const MlaCase& test);

// 100 times (CPU: 5) the same bits, with another problem in between.
::testing::AssertionResult mla_same_every_time(TestDevice& device, const MlaCase& test, const MlaCase& between);

// Sinks lower out by exp(lse) / (exp(lse) + exp(sink)) and leave lse alone; sinks of -infinity change no bit.
::testing::AssertionResult mla_sinks_only_dilute(TestDevice& device, MlaCase test);

// Lengths that are negative or beyond the table count as 0 and as all that the table holds.
::testing::AssertionResult mla_clamps_lengths(TestDevice& device, MlaCase test);

// indices that name what the table names, in its order: within the tolerance of the dense case.
::testing::AssertionResult mla_sparse_equals_dense(TestDevice& device, MlaCase test);

}  // namespace fp8attn::test
