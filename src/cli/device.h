// Tensors on the CPU or on a CUDA device, and the time that launches take there.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "cli/host_tensor.h"
#include "fp8attn/backend.h"

namespace fp8attn::cli {

// Memory on a device, 256-byte aligned, and the tensor in it. Copies share the memory.
class DeviceTensor {
 public:
  DeviceTensor() = default;
  // Uninitialised.
  DeviceTensor(Device device, DType dtype, std::vector<std::int64_t> shape);
  static DeviceTensor copy_of(const HostTensor& tensor, Device device);

  // Waits for the device first.
  HostTensor to_host() const;
  // Entries [begin, begin + count) of the first dim.
  HostTensor to_host(std::int64_t begin, std::int64_t count) const;
  // `count` elements from element `first` on, as a vector.
  HostTensor elements_to_host(std::int64_t first, std::int64_t count) const;
  MutableTensorView view() const;

 private:
  std::size_t bytes() const;
  HostTensor bytes_to_host(std::vector<std::int64_t> shape, std::size_t offset) const;

  Device device_;
  DType dtype_ = DType::kF32;
  std::vector<std::int64_t> shape_{0};
  std::shared_ptr<void> memory_;
};

// Scratch memory of one call.
class DeviceWorkspace {
 public:
  DeviceWorkspace() = default;
  DeviceWorkspace(Device device, std::size_t bytes);
  Workspace get() const { return workspace_; }

 private:
  std::shared_ptr<void> memory_;
  Workspace workspace_;
};

// Milliseconds of `count` calls of `launch`, back to back: events on CUDA, the wall clock on the CPU.
double time_ms(Device device, int count, const std::function<void()>& launch);

// "cpu", "cuda:0".
std::string device_text(Device device);

// "NVIDIA H200", or what list_backends() says of the CPU.
std::string device_name(Device device);

// "cpu", "cuda" (its first usable device), "cuda:N", or "" for default_device(). Throws Error for anything else and for
// a device that is not usable, with the reason.
Device parse_device(const std::string& text);

}  // namespace fp8attn::cli
