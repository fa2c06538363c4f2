// From run-time dtype and alignment to a kernel's Access policy, and the launch itself. For .cu files.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>

#include "cuda/launch/check.h"
#include "cuda/sm90/quantize/elements.h"
#include "cuda/sm90/quantize/row_space.h"
#include "cuda/sm90/quantize/start.h"

namespace fp8attn::cuda {

struct Grid {
  std::int64_t blocks;
  int threads;
  int shared_bytes = 0;  // dynamic
};

template <class... Parameters, class... Arguments>
void launch_blocks(void (*kernel)(Parameters...), Grid grid, Start start, Stream stream, Arguments... arguments) {
  cudaLaunchAttribute overlap{};
  overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  overlap.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(grid.blocks));
  config.blockDim = dim3(grid.threads);
  config.dynamicSmemBytes = grid.shared_bytes;
  config.stream = stream;
  config.attrs = &overlap;
  config.numAttrs = start == Start::kEarly ? 1 : 0;
  check(cudaLaunchKernelEx(&config, kernel, static_cast<Parameters>(arguments)...), "quantize", "cudaLaunchKernelEx");
}

// One block a tile. Kernels stride by the grid, since there can be more tiles than a grid has blocks.
template <class... Parameters, class... Arguments>
void launch_tiles(void (*kernel)(Parameters...), std::int64_t tiles, int threads, Stream stream,
                  Arguments... arguments) {
  launch_blocks(kernel, Grid{std::min<std::int64_t>(tiles, 0x7FFFFFFF), threads}, Start::kBehindTheLast, stream,
                arguments...);
}

template <class Element>
struct VectorAccess {
  using Type = Access<Element, 16 / sizeof(typename Element::Storage)>;
};

// Whether the rows of the input can be read by 16-byte vectors. row_output: the row-major output that is written by as
// many elements at a time, or null.
inline bool use_vectors(const TensorView& input, const MutableTensorView* row_output) {
  const std::int64_t count = 16 / size_of(input.dtype);
  return input.shape[3] % count == 0 && rows_aligned(input, 16) &&
         (row_output == nullptr || rows_aligned(*row_output, count));
}

// Calls body(Access<...>{}) for the dtype, by vectors or by single elements.
template <class Body>
void with_access(DType dtype, bool vectors, Body body) {
  switch (dtype) {
    case DType::kBF16: return vectors ? body(Access<Bf16, 8>{}) : body(Access<Bf16, 1>{});
    case DType::kFP16: return vectors ? body(Access<Fp16, 8>{}) : body(Access<Fp16, 1>{});
    case DType::kF32: return vectors ? body(Access<Float32, 4>{}) : body(Access<Float32, 1>{});
    default: return;  // validated: no other dtype comes here
  }
}

template <class Storage>
const Storage* input_data(const TensorView& input) {
  return static_cast<const Storage*>(input.data);
}

}  // namespace fp8attn::cuda
