// Reading and writing NumPy's .npy files. Format:
// https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html
#pragma once

#include <string>

#include "cli/host_tensor.h"

namespace fp8attn::cli {

// A C-ordered little-endian float16 or float32 array, format version 1.0, 2.0 or 3.0. Throws Error for everything
// else: a file that is cut short or too long, another version, Fortran order, another dtype.
HostTensor read_npy(const std::string& path);

// The bytes of a version 1.0 file that holds `tensor`, as float16 where it is fp16, else as float32.
std::string serialize_npy(const HostTensor& tensor);

}  // namespace fp8attn::cli
