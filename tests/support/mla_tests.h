// The MLA decode tests of both backends: one table, registered for one device.
#pragma once

#include <vector>

#include "mla_case.h"
#include "registrar.h"

namespace fp8attn::test {

// Cases that are compared with the reference, by class.
std::vector<MlaCase> mla_reference_cases(DeviceKind device);

// Format, dtype of q and addressing of every row that the variants table has for the device.
std::vector<MlaCase> mla_kinds(DeviceKind device);

// The same inputs, on the CPU with every arithmetic.
std::vector<MlaCase> mla_forms_of(MlaCase test, DeviceKind device);

// Registers every MLA decode test that the device is to pass, in the suite `suite`. Call before RUN_ALL_TESTS, or as
// the initialiser of a global. Returns true.
bool register_mla_tests(const char* suite, DeviceKind device, const DeviceMaker& make_device);

}  // namespace fp8attn::test
