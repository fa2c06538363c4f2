#include "cli/cuda_device.h"

#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <memory>
#include <new>
#include <stdexcept>

namespace fp8attn::cli {
namespace {

void check(cudaError_t status, const char* call) {
  if (status != cudaSuccess) throw std::runtime_error(fmt::format("{}: {}", call, cudaGetErrorString(status)));
}

void use(int device) { check(cudaSetDevice(device), "cudaSetDevice"); }

class Event {
 public:
  Event() { check(cudaEventCreate(&event_), "cudaEventCreate"); }
  ~Event() { cudaEventDestroy(event_); }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  void record() { check(cudaEventRecord(event_), "cudaEventRecord"); }
  float milliseconds_since(const Event& start) {
    check(cudaEventSynchronize(event_), "cudaEventSynchronize");
    float milliseconds = 0;
    check(cudaEventElapsedTime(&milliseconds, start.event_, event_), "cudaEventElapsedTime");
    return milliseconds;
  }

 private:
  cudaEvent_t event_ = nullptr;
};

}  // namespace

void* cuda_allocate(int device, std::size_t bytes) {
  use(device);
  void* memory = nullptr;
  const cudaError_t status = bytes == 0 ? cudaSuccess : cudaMalloc(&memory, bytes);
  if (status == cudaErrorMemoryAllocation) {
    cudaGetLastError();  // or the next launch would report it
    throw std::bad_alloc();
  }
  check(status, "cudaMalloc");
  return memory;
}

void cuda_free(int device, void* memory) noexcept {
  if (memory == nullptr || cudaSetDevice(device) != cudaSuccess) return;
  cudaFree(memory);
}

void cuda_copy_to_device(int device, void* destination, const void* source, std::size_t bytes) {
  use(device);
  check(cudaMemcpy(destination, source, bytes, cudaMemcpyHostToDevice), "cudaMemcpy");
}

void cuda_copy_to_host(int device, void* destination, const void* source, std::size_t bytes) {
  use(device);
  check(cudaMemcpy(destination, source, bytes, cudaMemcpyDeviceToHost), "cudaMemcpy");
}

void cuda_synchronize(int device) {
  use(device);
  check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
}

double cuda_copy_gbps(int device) {
  constexpr std::size_t kBytes = std::size_t{1} << 30;
  constexpr int kCopies = 20;
  const std::shared_ptr<void> memory(cuda_allocate(device, 2 * kBytes), [=](void* data) { cuda_free(device, data); });
  auto* source = static_cast<char*>(memory.get());
  const auto copy = [&] {
    check(cudaMemcpyAsync(source + kBytes, source, kBytes, cudaMemcpyDeviceToDevice), "cudaMemcpyAsync");
  };
  cuda_time_ms(device, kCopies, copy);
  return 2.0 * kBytes * kCopies / cuda_time_ms(device, kCopies, copy) * 1e-6;
}

double cuda_time_ms(int device, int count, const std::function<void()>& launch) {
  use(device);
  Event start, stop;
  start.record();
  for (int i = 0; i < count; ++i) launch();
  stop.record();
  return stop.milliseconds_since(start);
}

}  // namespace fp8attn::cli
