// Y, the yardstick of the benchmarks: what the tensor cores of this device reach when they do nothing but e4m3
// products.
#pragma once

namespace fp8attn::cli {

// TFLOP/s of a loop of 8-bit tensor-core instructions on random data, on every multiprocessor and without loads:
// `warm_ms` of launches, then at least `timed_ms` of launches, timed with events on the default stream. Throws
// std::runtime_error where CUDA reports an error.
double measure_yardstick_tflops(int device, double warm_ms, double timed_ms);

}  // namespace fp8attn::cli
