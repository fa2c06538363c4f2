// Which backends this build and this machine have, and what all calls share: streams, workspaces, the CPU's
// arithmetic, support answers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "fp8attn/tensor.h"

struct CUstream_st;

namespace fp8attn {

// A cudaStream_t (the same pointer type, declared without CUDA's headers). nullptr is the default stream. The CPU
// backend ignores it and runs in the calling thread.
using Stream = ::CUstream_st*;

// Scratch memory of one call, on the device of its tensors, 256-byte aligned. It may be reused by the next call on the
// same stream. {nullptr, 0} is accepted where workspace_size() is 0.
// It shares no memory with the tensors of the call.
struct Workspace {
  void* data = nullptr;
  std::size_t size = 0;  // bytes
};

// Arithmetic of the CPU backend. CUDA ignores it.
enum class CpuArithmetic : std::uint8_t {
  kFloat32,     // dequantised inputs, float32 throughout
  kFloat64,     // dequantised inputs, float64 throughout: the reference
  kEmulated,    // P in e4m3 (prefill: as p_mode says), blocks folded into float32 as the CUDA kernel does
  kEmulated13,  // the same, products accumulated with 13 fractional bits below the largest term, as the fp8 tensor
                // core does
};

// "float32", "float64", "emulated", "emulated13".
const char* name_of(CpuArithmetic arithmetic);

// The answer of supports(): ok, or every reason why not, each naming the argument, what was got and what is accepted.
struct Support {
  bool ok = true;
  std::vector<std::string> reasons;
  explicit operator bool() const { return ok; }
};

struct BackendInfo {
  DeviceKind kind = DeviceKind::kCpu;
  bool available = false;
  std::string detail;                // why not available, or which library and driver versions
  std::vector<std::string> devices;  // one line a device: name, compute capability, multiprocessors, memory
  std::vector<bool> usable;          // for each device, whether this library runs on it (CUDA: compute capability 9.0)
};

// The backends of this build, CPU first. Never throws: a machine without a driver has an unavailable CUDA backend.
std::vector<BackendInfo> list_backends();

// The first usable CUDA device, else the CPU.
Device default_device();

// Library version, "major.minor.patch".
const char* version();

}  // namespace fp8attn
