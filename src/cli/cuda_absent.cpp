// The CUDA side of the program in a build without CUDA. No device is ever usable there, so nothing but a mistake in
// the program reaches these functions.
#include <stdexcept>

#include "cli/cublaslt.h"
#include "cli/cuda_device.h"
#include "cli/yardstick.h"

namespace fp8attn::cli {
namespace {

[[noreturn]] void no_cuda() { throw std::runtime_error("this build has no CUDA backend (FP8ATTN_CUDA is OFF)"); }

}  // namespace

void* cuda_allocate(int, std::size_t) { no_cuda(); }
void cuda_free(int, void*) noexcept {}
void cuda_copy_to_device(int, void*, const void*, std::size_t) { no_cuda(); }
void cuda_copy_to_host(int, void*, const void*, std::size_t) { no_cuda(); }
void cuda_synchronize(int) { no_cuda(); }
double cuda_copy_gbps(int) { no_cuda(); }
double cuda_time_ms(int, int, const std::function<void()>&) { no_cuda(); }
double measure_yardstick_tflops(int, double, double) { no_cuda(); }
CublasLtResult measure_cublaslt_tflops(int, double, double) { no_cuda(); }

}  // namespace fp8attn::cli
