#include "cli/device.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <charconv>
#include <chrono>
#include <cstring>
#include <new>

#include "cli/cuda_device.h"
#include "cli/errors.h"

namespace fp8attn::cli {
namespace {

constexpr std::align_val_t kAlignment{256};

std::shared_ptr<void> allocate(Device device, std::size_t bytes) {
  if (device.kind == DeviceKind::kCuda) {
    return {cuda_allocate(device.index, bytes), [index = device.index](void* memory) { cuda_free(index, memory); }};
  }
  return {::operator new(bytes, kAlignment), [](void* memory) { ::operator delete(memory, kAlignment); }};
}

const BackendInfo* find_backend(const std::vector<BackendInfo>& backends, DeviceKind kind) {
  for (const BackendInfo& backend : backends) {
    if (backend.kind == kind) return &backend;
  }
  return nullptr;
}

// "cpu, cuda:0, cuda (none usable: no driver)"
std::string usable_devices(const std::vector<BackendInfo>& backends) {
  std::vector<std::string> devices{"cpu"};
  const BackendInfo* cuda = find_backend(backends, DeviceKind::kCuda);
  for (std::size_t i = 0; cuda != nullptr && i < cuda->usable.size(); ++i) {
    if (cuda->usable[i]) devices.push_back(fmt::format("cuda:{}", i));
  }
  std::string text = fmt::format("one of {}", fmt::join(devices, ", "));
  if (devices.size() == 1) {
    text += fmt::format(" (no CUDA device is usable: {})", cuda == nullptr         ? "this build has no CUDA backend"
                                                           : !cuda->detail.empty() ? cuda->detail
                                                                                   : "see fp8attn info");
  }
  return text;
}

}  // namespace

DeviceTensor::DeviceTensor(Device device, DType dtype, std::vector<std::int64_t> shape)
    : device_(device), dtype_(dtype), shape_(std::move(shape)), memory_(allocate(device, bytes())) {}

DeviceTensor DeviceTensor::copy_of(const HostTensor& tensor, Device device) {
  DeviceTensor result(device, tensor.dtype, tensor.shape);
  if (tensor.bytes.empty()) return result;
  if (device.kind == DeviceKind::kCuda) {
    cuda_copy_to_device(device.index, result.memory_.get(), tensor.bytes.data(), tensor.bytes.size());
  } else {
    std::memcpy(result.memory_.get(), tensor.bytes.data(), tensor.bytes.size());
  }
  return result;
}

HostTensor DeviceTensor::to_host() const { return bytes_to_host(shape_, 0); }

HostTensor DeviceTensor::to_host(std::int64_t begin, std::int64_t count) const {
  std::vector<std::int64_t> shape = shape_;
  shape.front() = begin;
  const auto offset = static_cast<std::size_t>(element_count(shape) * size_of(dtype_));
  shape.front() = count;
  return bytes_to_host(shape, offset);
}

HostTensor DeviceTensor::elements_to_host(std::int64_t first, std::int64_t count) const {
  return bytes_to_host({count}, static_cast<std::size_t>(first * size_of(dtype_)));
}

HostTensor DeviceTensor::bytes_to_host(std::vector<std::int64_t> shape, std::size_t offset) const {
  HostTensor tensor(dtype_, std::move(shape));
  if (tensor.bytes.empty()) return tensor;
  const std::byte* source = static_cast<const std::byte*>(memory_.get()) + offset;
  if (device_.kind == DeviceKind::kCuda) {
    cuda_synchronize(device_.index);
    cuda_copy_to_host(device_.index, tensor.bytes.data(), source, tensor.bytes.size());
  } else {
    std::memcpy(tensor.bytes.data(), source, tensor.bytes.size());
  }
  return tensor;
}

MutableTensorView DeviceTensor::view() const { return contiguous_view(memory_.get(), dtype_, shape_, device_); }

std::size_t DeviceTensor::bytes() const { return static_cast<std::size_t>(element_count(shape_) * size_of(dtype_)); }

DeviceWorkspace::DeviceWorkspace(Device device, std::size_t bytes) {
  if (bytes == 0) return;
  memory_ = allocate(device, bytes);
  workspace_ = {memory_.get(), bytes};
}

double time_ms(Device device, int count, const std::function<void()>& launch) {
  if (device.kind == DeviceKind::kCuda) return cuda_time_ms(device.index, count, launch);
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < count; ++i) launch();
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
}

std::string device_text(Device device) {
  return device.kind == DeviceKind::kCpu ? "cpu" : fmt::format("cuda:{}", device.index);
}

std::string device_name(Device device) {
  const auto backends = list_backends();
  const BackendInfo* backend = find_backend(backends, device.kind);
  const auto index = static_cast<std::size_t>(device.index);
  if (backend == nullptr || index >= backend->devices.size()) return device_text(device);
  const std::string& line = backend->devices[index];  // "0: NVIDIA H200, compute capability 9.0, ..."
  const std::string number = fmt::format("{}: ", index);
  const std::size_t begin = line.starts_with(number) ? number.size() : 0;
  return line.substr(begin, line.find(',') - begin);
}

Device parse_device(const std::string& text) {
  if (text.empty()) return default_device();
  if (text == "cpu") return {};
  const auto backends = list_backends();
  const BackendInfo* cuda = find_backend(backends, DeviceKind::kCuda);
  if (cuda != nullptr && text == "cuda") {
    for (std::size_t i = 0; i < cuda->usable.size(); ++i) {
      if (cuda->usable[i]) return {DeviceKind::kCuda, static_cast<int>(i)};
    }
  } else if (cuda != nullptr && text.starts_with("cuda:")) {
    std::size_t index = 0;
    const auto [end, status] = std::from_chars(text.data() + 5, text.data() + text.size(), index);
    const bool whole = status == std::errc{} && end == text.data() + text.size();
    if (whole && index < cuda->usable.size() && cuda->usable[index]) {
      return {DeviceKind::kCuda, static_cast<int>(index)};
    }
  }
  throw usage_error("--device", fmt::format("'{}'", text), usable_devices(backends));
}

}  // namespace fp8attn::cli
