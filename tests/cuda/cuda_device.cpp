#include "cuda_device.h"

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <unordered_map>
#include <vector>

#include "fp8attn/backend.h"

namespace fp8attn::test {
namespace {

constexpr std::size_t kGuard = 256;  // of both sides, and so much more in front that the alignment is no better
constexpr std::uint8_t kGuardByte = 0xFF;

void check(cudaError_t status, const char* call) {
  if (status != cudaSuccess) throw std::runtime_error(std::string(call) + ": " + cudaGetErrorString(status));
}

// Makes a device current for a scope.
class Current {
 public:
  explicit Current(int index) {
    check(cudaGetDevice(&previous_), "cudaGetDevice");
    check(cudaSetDevice(index), "cudaSetDevice");
  }
  ~Current() { cudaSetDevice(previous_); }

 private:
  int previous_ = 0;
};

class CudaDevice final : public TestDevice {
 public:
  explicit CudaDevice(int index) : index_(index), rear_guard_(under_sanitizer() ? 0 : kGuard) {}

  Device device() const override { return {DeviceKind::kCuda, index_}; }

  void* allocate(std::size_t bytes, std::size_t alignment) override {
    const Current current(index_);
    Allocation allocation{.base = nullptr, .front = kGuard + alignment, .bytes = bytes, .total = 0};
    allocation.total = allocation.front + bytes + rear_guard_;
    check(cudaMalloc(&allocation.base, allocation.total), "cudaMalloc");
    check(cudaMemset(allocation.base, kGuardByte, allocation.total), "cudaMemset");
    void* memory = static_cast<std::uint8_t*>(allocation.base) + allocation.front;
    allocations_[memory] = allocation;
    return memory;
  }

  void free(void* memory) override {
    const Current current(index_);
    const Allocation allocation = allocations_.at(memory);
    allocations_.erase(memory);
    expect_guard(allocation, 0, allocation.front, "before");
    expect_guard(allocation, allocation.front + allocation.bytes, rear_guard_, "after");
    EXPECT_EQ(cudaFree(allocation.base), cudaSuccess);
  }

  void upload(void* target, const void* source, std::size_t bytes) override {
    const Current current(index_);
    if (bytes > 0) check(cudaMemcpy(target, source, bytes, cudaMemcpyHostToDevice), "cudaMemcpy");
    // A small copy may return before it has arrived, and streams of their own do not wait for it.
    check(cudaStreamSynchronize(nullptr), "cudaStreamSynchronize");
  }

  void download(void* target, const void* source, std::size_t bytes) override {
    const Current current(index_);
    check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
    if (bytes > 0) check(cudaMemcpy(target, source, bytes, cudaMemcpyDeviceToHost), "cudaMemcpy");
  }

 private:
  struct Allocation {
    void* base = nullptr;
    std::size_t front = 0, bytes = 0, total = 0;
  };

  static void expect_guard(const Allocation& allocation, std::size_t offset, std::size_t bytes, const char* where) {
    std::vector<std::uint8_t> guard(bytes);
    const auto* source = static_cast<const std::uint8_t*>(allocation.base) + offset;
    EXPECT_EQ(cudaMemcpy(guard.data(), source, bytes, cudaMemcpyDeviceToHost), cudaSuccess);
    const auto changed = std::find_if(guard.begin(), guard.end(), [](std::uint8_t byte) { return byte != kGuardByte; });
    EXPECT_EQ(changed, guard.end()) << "the memory " << where << " a buffer of " << allocation.bytes
                                    << " bytes was written to, at guard byte " << changed - guard.begin();
  }

  const int index_;
  const std::size_t rear_guard_;
  std::unordered_map<void*, Allocation> allocations_;
};

}  // namespace

bool under_sanitizer() { return std::getenv("FP8ATTN_TESTS_SANITIZER") != nullptr; }

std::unique_ptr<TestDevice> make_cuda_device(int index) { return std::make_unique<CudaDevice>(index); }

std::unique_ptr<TestDevice> make_default_cuda_device() {
  const Device device = default_device();
  return device.kind == DeviceKind::kCuda ? make_cuda_device(device.index) : nullptr;
}

}  // namespace fp8attn::test
