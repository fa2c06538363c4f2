// Test tensors on a CUDA device.
#pragma once

#include <memory>

#include "test_device.h"

namespace fp8attn::test {

// A device with guard bytes before and after every buffer; they are NaN in every element type, so that a read past the
// end shows as well as a write. With the environment variable FP8ATTN_TESTS_SANITIZER set there are none after: the
// buffer ends with its allocation, and compute-sanitizer sees the access itself.
std::unique_ptr<TestDevice> make_cuda_device(int index);

// The first device that the library runs on; null where there is none.
std::unique_ptr<TestDevice> make_default_cuda_device();

// Whether FP8ATTN_TESTS_SANITIZER is set.
bool under_sanitizer();

}  // namespace fp8attn::test
