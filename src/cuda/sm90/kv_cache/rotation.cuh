// The rotation of a RoPE part that lies in a warp, two channels a lane (kv_cache.h's rotate_rope()).
#pragma once

#include <cuda_bf16.h>

#include "cuda/sm90/kv_cache/token.cuh"

namespace fp8attn::cuda {

__device__ inline float rotation_sign(int channel) { return (kRotationSigns >> channel & 1u) != 0 ? -1.0f : 1.0f; }

// Two bf16, ties to even.
__device__ inline std::uint32_t bf16_pair(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return static_cast<std::uint32_t>(__bfloat16_as_ushort(pair.x)) |
         static_cast<std::uint32_t>(__bfloat16_as_ushort(pair.y)) << 16;
}

// The Hadamard transform divided by 8: butterflies over the channel's bits from the lowest on, the order of the CPU.
__device__ inline void transform(float (&values)[2]) {
  const float sum = __fadd_rn(values[0], values[1]), difference = __fsub_rn(values[0], values[1]);
  values[0] = sum, values[1] = difference;
#pragma unroll
  for (int distance = 1; distance < 32; distance *= 2) {
    const bool upper = (lane() & distance) != 0;
#pragma unroll
    for (float& value : values) {
      const float other = __shfl_xor_sync(0xFFFFFFFFu, value, distance);
      value = upper ? __fsub_rn(other, value) : __fadd_rn(value, other);
    }
  }
#pragma unroll
  for (float& value : values) value = __fmul_rn(value, 0.125f);
}

// bf16 to bf16.
__device__ inline void rotate(Vector<2, 2>& pair) {
  float values[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) values[i] = Bf16::to_float(pair.bits(i)) * rotation_sign(2 * lane() + i);
  transform(values);
  pair.registers[0] = bf16_pair(values[0], values[1]);
}

__device__ inline void rotate_back(float (&values)[2]) {
  transform(values);
#pragma unroll
  for (int i = 0; i < 2; ++i) values[i] *= rotation_sign(2 * lane() + i);
}

}  // namespace fp8attn::cuda
