// Inputs of the benchmarks.
#pragma once

#include "cli/bench_cases.h"
#include "cli/device.h"
#include "cli/input.h"

namespace fp8attn::cli {

// Standard normal q, k and v of a case in its dtype, the same at every call; e4m3 with one scale of 1 per head.
Layer random_layer(const BenchCase& item);

// `count` standard normal values as e4m3, bf16 or fp16.
HostTensor random_normal(std::vector<std::int64_t> shape, DType dtype, unsigned seed);

// What random_normal() repeats: element i of any tensor with this seed is element i % count() of it.
HostTensor random_tile(DType dtype, unsigned seed);

// Repeats `tile` over the memory of a tensor of its dtype.
void fill(const DeviceTensor& tensor, const HostTensor& tile);

// [count] of 1, f32.
HostTensor ones(std::int64_t count);

}  // namespace fp8attn::cli
