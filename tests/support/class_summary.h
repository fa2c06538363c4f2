// A table of passed, failed and skipped tests by class of the test contract, printed when a test program ends.
#pragma once

namespace fp8attn::test {

// The class of a test is the letter in front of an underscore at the start of its name or of its parameter's name:
// "Prefill.A_PoisonedTail", "Cases/Prefill.Matches/F_ScalePerHead". Call before RUN_ALL_TESTS, or as the initialiser of
// a global. Returns true, so that it can be one.
bool print_summary_by_class();

}  // namespace fp8attn::test
