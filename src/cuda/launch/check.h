// Every CUDA call goes through check(); every launch happens with the device of its tensors current.
#pragma once

#include <cuda_runtime_api.h>

#include <string>

#include "fp8attn/error.h"

namespace fp8attn::cuda {

// Throws Error naming the failed call. operation: the entry point ("quantize"); call: what failed ("cudaMemsetAsync").
inline void check(cudaError_t status, const char* operation, const char* call) {
  if (status == cudaSuccess) return;
  cudaGetLastError();  // the runtime keeps a copy that would otherwise turn up in somebody else's next query
  throw Error(operation, call, std::string(cudaGetErrorName(status)) + " (" + cudaGetErrorString(status) + ")",
              "cudaSuccess");
}

// Makes `device` current for a scope and the previous device afterwards, so that a call works whichever device its
// caller has current. Touches nothing where `device` already is.
class DeviceGuard {
 public:
  DeviceGuard(int device, const char* operation) {
    check(cudaGetDevice(&previous_), operation, "cudaGetDevice");
    changed_ = previous_ != device;
    if (changed_) check(cudaSetDevice(device), operation, "cudaSetDevice");
  }
  ~DeviceGuard() {
    if (changed_) cudaSetDevice(previous_);
  }
  DeviceGuard(const DeviceGuard&) = delete;
  DeviceGuard& operator=(const DeviceGuard&) = delete;

 private:
  int previous_ = 0;
  bool changed_ = false;
};

}  // namespace fp8attn::cuda
