// Ends the program when a test hangs.
#pragma once

#include <chrono>

namespace fp8attn::test {

// From now on a test that runs for longer than `limit` aborts the process, after printing the test's name: a kernel
// that hangs cannot be stopped in any other way. Call once, before RUN_ALL_TESTS.
void watch_tests(std::chrono::seconds limit);

}  // namespace fp8attn::test
