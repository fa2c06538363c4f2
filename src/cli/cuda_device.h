// What the program itself does with a CUDA device: memory, copies, timing. A build without CUDA has these functions
// too; there they throw.
#pragma once

#include <cstddef>
#include <functional>

namespace fp8attn::cli {

// All throw std::runtime_error where CUDA reports an error, cuda_allocate std::bad_alloc where the memory is too small.
void* cuda_allocate(int device, std::size_t bytes);
void cuda_free(int device, void* memory) noexcept;
void cuda_copy_to_device(int device, void* destination, const void* source, std::size_t bytes);
void cuda_copy_to_host(int device, void* destination, const void* source, std::size_t bytes);
void cuda_synchronize(int device);

// Bytes a nanosecond, read and written ones together, of a copy of a gigabyte within the device's memory.
double cuda_copy_gbps(int device);

// Milliseconds between the start and the end of `count` launches on the default stream, measured with events.
double cuda_time_ms(int device, int count, const std::function<void()>& launch);

}  // namespace fp8attn::cli
