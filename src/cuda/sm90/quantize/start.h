// When a kernel may begin, relative to the one before it on the stream.
#pragma once

#include <cstdint>

namespace fp8attn::cuda {

enum class Start : std::uint8_t {
  kBehindTheLast,  // when that one has ended
  kEarly,          // before: the kernel waits for that end itself (cudaGridDependencySynchronize)
};

}  // namespace fp8attn::cuda
