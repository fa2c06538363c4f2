// The tests of merge_attention() of both backends, registered for one device.
#pragma once

#include "registrar.h"

namespace fp8attn::test {

// Registers every test of merges that the device is to pass, in the suite `suite`. Call before RUN_ALL_TESTS, or as the
// initialiser of a global. Returns true.
bool register_merge_tests(const char* suite, DeviceKind device, const DeviceMaker& make_device);

}  // namespace fp8attn::test
