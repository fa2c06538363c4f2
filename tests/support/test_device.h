// Where a test's tensors live: the same tests run on the CPU and on a CUDA device.
#pragma once

#include <cstddef>
#include <memory>
#include <utility>

#include "fp8attn/tensor.h"

namespace fp8attn::test {

class TestDevice {
 public:
  virtual ~TestDevice() = default;

  virtual Device device() const = 0;

  // Memory whose first byte is aligned to `alignment` bytes, to no more on a GPU if that is 16, and whose last byte is,
  // up to that alignment, the last of its allocation. What lies behind it is guarded.
  virtual void* allocate(std::size_t bytes, std::size_t alignment) = 0;
  // Fails the test where the guard was written to.
  virtual void free(void* memory) = 0;

  virtual void upload(void* target, const void* source, std::size_t bytes) = 0;
  // Waits for all work of the device first.
  virtual void download(void* target, const void* source, std::size_t bytes) = 0;
};

// Host memory in front of a page that cannot be touched: an access past the end ends the program.
std::unique_ptr<TestDevice> make_cpu_device();

// A buffer of a TestDevice.
class Buffer {
 public:
  Buffer() = default;
  Buffer(TestDevice& device, std::size_t bytes, std::size_t alignment = 16) : device_(&device), size_(bytes) {
    if (bytes > 0) data_ = device.allocate(bytes, alignment);
  }
  Buffer(Buffer&& other) noexcept
      : device_(other.device_), data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}
  Buffer& operator=(Buffer&& other) noexcept {
    std::swap(device_, other.device_);
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    return *this;
  }
  ~Buffer() {
    if (data_ != nullptr) device_->free(data_);
  }

  void* data() const { return data_; }
  std::size_t size() const { return size_; }
  void upload(const void* source) { device_->upload(data_, source, size_); }
  void download(void* target) const { device_->download(target, data_, size_); }

 private:
  TestDevice* device_ = nullptr;
  void* data_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace fp8attn::test
