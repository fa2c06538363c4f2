#include "fp8attn/backend.h"

#include <fmt/format.h>
#include <omp.h>

#include <fstream>

#include "api/dispatch.h"
#include "api/view_checks.h"
#ifdef FP8ATTN_WITH_CUDA
#include "cuda/launch/device.h"
#endif

namespace fp8attn {
namespace {

// The processor's own name, where the kernel tells it.
std::string processor_name() {
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);) {
    const std::size_t colon = line.find(": ");
    if (line.starts_with("model name") && colon != std::string::npos) return line.substr(colon + 2);
  }
  return "CPU";
}

BackendInfo cpu_backend() {
  BackendInfo info;
  info.kind = DeviceKind::kCpu;
  info.available = true;
  info.detail = fmt::format("OpenMP, {} threads", omp_get_max_threads());
  info.devices = {processor_name()};
  info.usable = {true};
  return info;
}

BackendInfo cuda_backend() {
#ifdef FP8ATTN_WITH_CUDA
  return cuda::backend_info();
#else
  BackendInfo info;
  info.kind = DeviceKind::kCuda;
  info.detail = "not in this build (CMake option FP8ATTN_CUDA)";
  return info;
#endif
}

}  // namespace

std::vector<BackendInfo> list_backends() { return {cpu_backend(), cuda_backend()}; }

Device default_device() {
  const BackendInfo cuda = cuda_backend();
  for (std::size_t i = 0; i < cuda.usable.size(); ++i) {
    if (cuda.usable[i]) return {DeviceKind::kCuda, static_cast<int>(i)};
  }
  return {};
}

const char* version() { return FP8ATTN_VERSION; }

std::optional<Reason> device_reason(const char* argument, Device device) {
  if (device.kind == DeviceKind::kCpu) {
    if (device.index == 0) return std::nullopt;
    return Reason{argument, device_text(device), "cpu with index 0"};
  }
  if (!is_known(device.kind)) return Reason{argument, device_text(device), "cpu or cuda"};
#ifdef FP8ATTN_WITH_CUDA
  const std::string problem = cuda::device_problem(device.index);
  if (problem.empty()) return std::nullopt;
  return Reason{argument, fmt::format("{} ({})", device_text(device), problem),
                "a CUDA device of compute capability 9.0"};
#else
  return Reason{argument, device_text(device), "cpu: this build leaves CUDA out (CMake option FP8ATTN_CUDA)"};
#endif
}

}  // namespace fp8attn
