// The prefill tests of both backends: one table, registered for one device.
#pragma once

#include <string>
#include <vector>

#include "prefill_case.h"
#include "registrar.h"

namespace fp8attn::test {

// Cases that are compared with the reference on a device, by class.
std::vector<PrefillCase> reference_cases(DeviceKind device);

// Those of them that are not dense, or that do something to logits and outputs.
std::vector<PrefillCase> batch_cases(DeviceKind device);

// Those of them whose queries are short.
std::vector<PrefillCase> short_cases();

// The same inputs with every p_mode (e4m3) and, on the CPU, every arithmetic.
std::vector<PrefillCase> forms_of(PrefillCase test, DeviceKind device);

// Registers the methods of prefill_batch_methods.h, and those of prefill_methods.h on batches that are not dense.
void register_batch_tests(Registrar& registrar);

// Registers methods of both on short queries.
void register_short_tests(Registrar& registrar);

// Registers every prefill test that the device is to pass, in the suite `suite`. Call before RUN_ALL_TESTS, or as the
// initialiser of a global. Returns true.
bool register_prefill_tests(const char* suite, DeviceKind device, const DeviceMaker& make_device);

}  // namespace fp8attn::test
