// TMA descriptors of tensor views.
#pragma once

#include <cuda.h>

#include <array>
#include <cstdint>

#include "fp8attn/tensor.h"

namespace fp8attn::cuda {

// A tensor map over a view of rank 4. Its dims are those of the view, the last (contiguous) one first: coordinates of
// [b, s, h, d] are given as d, h, s, b. `box` is what one copy moves, in elements, in that order. The innermost box is
// 128 or 64 bytes wide and swizzled with that width, or 16 and not swizzled. Elements outside the view read as 0 and
// are not written.
//
// The view has been validated: 16-byte aligned base and strides. Throws Error where the driver refuses.
CUtensorMap make_tensor_map(const TensorView& view, std::array<std::uint32_t, 4> box, const char* argument,
                            const char* operation = "prefill");

}  // namespace fp8attn::cuda
