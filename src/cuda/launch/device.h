// What the CUDA devices of this machine are, and whether the library runs on them.
#pragma once

#include <string>

#include "fp8attn/backend.h"

namespace fp8attn::cuda {

// The CUDA backend of this machine: available when at least one device has compute capability 9.0; otherwise `detail`
// says what is missing (driver, device, a newer driver, a Hopper GPU). Never throws for what the machine lacks.
BackendInfo backend_info();

// Empty where the library runs on device `index`, else a sentence that says why not.
std::string device_problem(int index);

// Streaming multiprocessors of a device. An attribute query: fast, needs no context. Throws Error.
int multiprocessor_count(int device);

}  // namespace fp8attn::cuda
