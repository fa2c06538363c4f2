#include "cuda/launch/device.h"

#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include "cuda/launch/check.h"

namespace fp8attn::cuda {
namespace {

struct Capability {
  int major = 0;
  int minor = 0;
};

// The kernels are built for sm_90a, which no other architecture runs.
constexpr bool is_hopper(Capability capability) { return capability.major == 9 && capability.minor == 0; }

std::string version_text(int version) { return fmt::format("{}.{}", version / 1000, version % 1000 / 10); }

std::string describe(cudaError_t status) {
  cudaGetLastError();  // leave no error behind for a later query
  return fmt::format("{} ({})", cudaGetErrorName(status), cudaGetErrorString(status));
}

// Why there are no devices to count.
std::string no_devices(cudaError_t status) {
  int driver = 0;
  if (cudaDriverGetVersion(&driver) != cudaSuccess || driver == 0) {
    cudaGetLastError();
    return "no NVIDIA driver was found";
  }
  if (status == cudaErrorInsufficientDriver) {
    return fmt::format("the NVIDIA driver supports CUDA {}, this build needs CUDA {}", version_text(driver),
                       version_text(CUDART_VERSION));
  }
  if (status == cudaSuccess || status == cudaErrorNoDevice) return "no CUDA device was found";
  return "the NVIDIA driver reports " + describe(status);
}

cudaError_t query_capability(int device, Capability& capability) {
  const cudaError_t status = cudaDeviceGetAttribute(&capability.major, cudaDevAttrComputeCapabilityMajor, device);
  if (status != cudaSuccess) return status;
  return cudaDeviceGetAttribute(&capability.minor, cudaDevAttrComputeCapabilityMinor, device);
}

void add_device(BackendInfo& info, int device) {
  cudaDeviceProp properties{};
  const cudaError_t status = cudaGetDeviceProperties(&properties, device);
  if (status != cudaSuccess) {
    info.devices.push_back(describe(status));
    info.usable.push_back(false);
    return;
  }
  constexpr double kGib = 1024.0 * 1024.0 * 1024.0;
  info.devices.push_back(fmt::format("{}, compute capability {}.{}, {} multiprocessors, {:.1f} GiB", properties.name,
                                     properties.major, properties.minor, properties.multiProcessorCount,
                                     static_cast<double>(properties.totalGlobalMem) / kGib));
  info.usable.push_back(is_hopper({properties.major, properties.minor}));
}

}  // namespace

BackendInfo backend_info() {
  BackendInfo info;
  info.kind = DeviceKind::kCuda;
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  if (status != cudaSuccess || count == 0) {
    cudaGetLastError();
    info.detail = no_devices(status);
    return info;
  }
  for (int device = 0; device < count; ++device) {
    add_device(info, device);
    info.available = info.available || info.usable.back();
  }
  if (!info.available) {
    info.detail = "no device has compute capability 9.0 (Hopper: H100, H200, H20, H800)";
    return info;
  }
  int driver = 0;
  if (cudaDriverGetVersion(&driver) != cudaSuccess) cudaGetLastError();
  info.detail = fmt::format("CUDA runtime {}, driver for CUDA {}", version_text(CUDART_VERSION), version_text(driver));
  return info;
}

std::string device_problem(int index) {
  int count = 0;
  const cudaError_t counted = cudaGetDeviceCount(&count);
  if (counted != cudaSuccess || count == 0) {
    cudaGetLastError();
    return no_devices(counted);
  }
  if (index < 0 || index >= count) {
    return fmt::format("device index {} is out of range: {} CUDA device{} found", index, count,
                       count == 1 ? " was" : "s were");
  }
  Capability capability;
  const cudaError_t status = query_capability(index, capability);
  if (status != cudaSuccess) return fmt::format("device {} reports {}", index, describe(status));
  if (is_hopper(capability)) return {};
  return fmt::format("device {} has compute capability {}.{}, the kernels need 9.0 (Hopper)", index, capability.major,
                     capability.minor);
}

int multiprocessor_count(int device) {
  int count = 0;
  check(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device), "multiprocessor_count",
        "cudaDeviceGetAttribute");
  return count;
}

}  // namespace fp8attn::cuda
