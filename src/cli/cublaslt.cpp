#include "cli/cublaslt.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "cli/bench_data.h"
#include "cli/bench_timing.h"
#include "cli/device.h"

#if __has_include(<cublasLt.h>)
#include <cublasLt.h>

namespace fp8attn::cli {
namespace {

constexpr std::int64_t kSize = 8192;
constexpr std::size_t kWorkspaceBytes = std::size_t{64} << 20;

// The functions of the library, found by name so that the program starts where it is not installed.
class Library {
 public:
  Library() {
    std::string tried;
    for (const std::string& name :
         {fmt::format("libcublasLt.so.{}", CUBLAS_VER_MAJOR), std::string("libcublasLt.so.13"),
          std::string("libcublasLt.so.12"), std::string("libcublasLt.so")}) {
      handle_ = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
      if (handle_ != nullptr) return;
      if (tried.empty()) tried = dlerror();
    }
    throw std::runtime_error(tried);
  }

  template <class Function>
  Function* find(const char* name) const {
    void* symbol = dlsym(handle_, name);
    if (symbol == nullptr) throw std::runtime_error(fmt::format("no function {}", name));
    return reinterpret_cast<Function*>(symbol);
  }

 private:
  void* handle_ = nullptr;  // never closed: the library leaves work for the end of the process
};

void check(cublasStatus_t status, const char* call) {
  if (status != CUBLAS_STATUS_SUCCESS)
    throw std::runtime_error(fmt::format("{}: status {}", call, static_cast<int>(status)));
}

// An object of the library that its destroy function ends.
template <class Handle>
using Owned = std::unique_ptr<std::remove_pointer_t<Handle>, cublasStatus_t (*)(Handle)>;

// D = A^T B in the layout that fp8 needs: both operands with the reduction contiguous.
class Product {
 public:
  Product(const Library& library, int device)
      : matmul_(library.find<decltype(cublasLtMatmul)>("cublasLtMatmul")),
        context_(make<cublasLtHandle_t>(library, "cublasLtDestroy",
                                        library.find<decltype(cublasLtCreate)>("cublasLtCreate"))),
        operation_(
            make<cublasLtMatmulDesc_t>(library, "cublasLtMatmulDescDestroy",
                                       library.find<decltype(cublasLtMatmulDescCreate)>("cublasLtMatmulDescCreate"),
                                       CUBLAS_COMPUTE_32F, CUDA_R_32F)),
        operand_(layout(library, CUDA_R_8F_E4M3)),
        result_(layout(library, CUDA_R_16BF)),
        place_{DeviceKind::kCuda, device},
        a_(DeviceTensor::copy_of(random_normal({kSize, kSize}, DType::kE4M3, 1), place_)),
        b_(DeviceTensor::copy_of(random_normal({kSize, kSize}, DType::kE4M3, 2), place_)),
        d_(place_, DType::kBF16, {kSize, kSize}),
        workspace_(place_, kWorkspaceBytes) {
    const auto set = library.find<decltype(cublasLtMatmulDescSetAttribute)>("cublasLtMatmulDescSetAttribute");
    const cublasOperation_t transposed = CUBLAS_OP_T;
    const std::int8_t fast = 1;
    check(set(operation_.get(), CUBLASLT_MATMUL_DESC_TRANSA, &transposed, sizeof transposed), "transpose");
    check(set(operation_.get(), CUBLASLT_MATMUL_DESC_FAST_ACCUM, &fast, sizeof fast), "fast accumulation");
    choose_algorithm(library);
  }

  void launch() const {
    const float one = 1, zero = 0;
    check(matmul_(context_.get(), operation_.get(), &one, a_.view().data, operand_.get(), b_.view().data,
                  operand_.get(), &zero, d_.view().data, result_.get(), d_.view().data, result_.get(), &algorithm_.algo,
                  workspace_.get().data, workspace_.get().size, nullptr),
          "cublasLtMatmul");
  }

 private:
  template <class Handle, class Create, class... Arguments>
  static Owned<Handle> make(const Library& library, const char* destroy, Create* create, Arguments... arguments) {
    Handle handle = nullptr;
    check(create(&handle, arguments...), destroy);
    return {handle, library.find<cublasStatus_t(Handle)>(destroy)};
  }

  static Owned<cublasLtMatrixLayout_t> layout(const Library& library, cudaDataType_t type) {
    return make<cublasLtMatrixLayout_t>(
        library, "cublasLtMatrixLayoutDestroy",
        library.find<decltype(cublasLtMatrixLayoutCreate)>("cublasLtMatrixLayoutCreate"), type, std::uint64_t{kSize},
        std::uint64_t{kSize}, kSize);
  }

  void choose_algorithm(const Library& library) {
    const auto preference = make<cublasLtMatmulPreference_t>(
        library, "cublasLtMatmulPreferenceDestroy",
        library.find<decltype(cublasLtMatmulPreferenceCreate)>("cublasLtMatmulPreferenceCreate"));
    const auto set =
        library.find<decltype(cublasLtMatmulPreferenceSetAttribute)>("cublasLtMatmulPreferenceSetAttribute");
    check(set(preference.get(), CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &kWorkspaceBytes, sizeof kWorkspaceBytes),
          "workspace limit");
    const auto choose = library.find<decltype(cublasLtMatmulAlgoGetHeuristic)>("cublasLtMatmulAlgoGetHeuristic");
    int found = 0;
    check(choose(context_.get(), operation_.get(), operand_.get(), operand_.get(), result_.get(), result_.get(),
                 preference.get(), 1, &algorithm_, &found),
          "cublasLtMatmulAlgoGetHeuristic");
    if (found == 0) throw std::runtime_error("no algorithm for the product");
  }

  decltype(cublasLtMatmul)* matmul_;
  Owned<cublasLtHandle_t> context_;
  Owned<cublasLtMatmulDesc_t> operation_;
  Owned<cublasLtMatrixLayout_t> operand_, result_;
  Device place_;
  DeviceTensor a_, b_, d_;
  DeviceWorkspace workspace_;
  cublasLtMatmulHeuristicResult_t algorithm_{};
};

}  // namespace

CublasLtResult measure_cublaslt_tflops(int device, double warm_ms, double timed_ms) {
  try {
    const Library library;
    const Product product(library, device);
    const Device place{DeviceKind::kCuda, device};
    const auto launch = [&] { product.launch(); };
    time_ms(place, 1, launch);
    const double estimate_ms = time_ms(place, 1, launch);
    const double one_ms = measure_sustained(place, launch, estimate_ms, warm_ms, timed_ms);
    return {2.0 * kSize * kSize * kSize / one_ms * 1e-9, ""};
  } catch (const std::exception& error) {
    return {0, error.what()};
  }
}

}  // namespace fp8attn::cli
#else

namespace fp8attn::cli {

CublasLtResult measure_cublaslt_tflops(int, double, double) { return {0, "the program was built without cublasLt.h"}; }

}  // namespace fp8attn::cli
#endif
