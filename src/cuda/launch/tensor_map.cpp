#include "cuda/launch/tensor_map.h"

#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include "cuda/launch/check.h"
#include "fp8attn/error.h"

namespace fp8attn::cuda {
namespace {

using EncodeTiled = decltype(&cuTensorMapEncodeTiled);

// The driver's entry point, looked up once: linking libcuda would keep programs from starting without a driver.
EncodeTiled encode_tiled() {
  static const EncodeTiled function = [] {
    void* pointer = nullptr;
    cudaDriverEntryPointQueryResult result;
    check(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &pointer, 12000, cudaEnableDefault, &result),
          "prefill", "cudaGetDriverEntryPointByVersion");
    if (result != cudaDriverEntryPointSuccess) {
      throw Error("prefill", "CUDA driver", "no cuTensorMapEncodeTiled", "a driver for CUDA 12.0 or newer");
    }
    return reinterpret_cast<EncodeTiled>(pointer);
  }();
  return function;
}

CUtensorMapDataType data_type(DType dtype) {
  switch (dtype) {
    case DType::kBF16: return CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
    case DType::kFP16: return CU_TENSOR_MAP_DATA_TYPE_FLOAT16;
    default: return CU_TENSOR_MAP_DATA_TYPE_UINT8;
  }
}

}  // namespace

CUtensorMap make_tensor_map(const TensorView& view, std::array<std::uint32_t, 4> box, const char* argument,
                            const char* operation) {
  const std::int64_t element = size_of(view.dtype);
  std::array<cuuint64_t, 4> shape;
  std::array<cuuint64_t, 3> strides;  // bytes, of all dims but the innermost
  const std::array<cuuint32_t, 4> element_strides = {1, 1, 1, 1};
  for (int i = 0; i < 4; ++i) {
    shape[i] = static_cast<cuuint64_t>(view.shape[3 - i]);
    // The stride of a dim of size 1 is never used, and may be anything in the view.
    if (i > 0) strides[i - 1] = shape[i] == 1 ? 16 : static_cast<cuuint64_t>(view.strides[3 - i] * element);
  }
  const std::int64_t width = box[0] * element;
  const CUtensorMapSwizzle swizzle = width == 128  ? CU_TENSOR_MAP_SWIZZLE_128B
                                     : width == 64 ? CU_TENSOR_MAP_SWIZZLE_64B
                                                   : CU_TENSOR_MAP_SWIZZLE_NONE;
  alignas(64) CUtensorMap map;
  const CUresult result =
      encode_tiled()(&map, data_type(view.dtype), 4, const_cast<void*>(view.data), shape.data(), strides.data(),
                     box.data(), element_strides.data(), CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle,
                     CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result != CUDA_SUCCESS) {
    throw Error(operation, argument,
                fmt::format("shape [{}, {}, {}, {}] with strides [{}, {}, {}, {}] (cuTensorMapEncodeTiled error {})",
                            view.shape[0], view.shape[1], view.shape[2], view.shape[3], view.strides[0],
                            view.strides[1], view.strides[2], view.strides[3], static_cast<int>(result)),
                "a tensor that the copy engine can address");
  }
  return map;
}

}  // namespace fp8attn::cuda
