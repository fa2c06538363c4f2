// Element types of the quantisers' inputs, wide loads of them, and the scale arithmetic. Device code.
#pragma once

#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include <cstdint>

#include "cuda/sm90/ptx/half2.h"
#include "fp8attn/e4m3.h"

namespace fp8attn::cuda {

struct Bf16 {
  using Storage = std::uint16_t;
  static __device__ float to_float(std::uint32_t bits) { return __uint_as_float(bits << 16); }
};

struct Fp16 {
  using Storage = std::uint16_t;
  static __device__ float to_float(std::uint32_t bits) {
    return __half2float(__ushort_as_half(static_cast<unsigned short>(bits)));
  }
};

struct Float32 {
  using Storage = float;
  static __device__ float to_float(std::uint32_t bits) { return __uint_as_float(bits); }
};

// Rearranged, never converted.
struct E4M3 {
  using Storage = std::uint8_t;
};

// What one instruction reads or writes.
template <int kBytes>
struct WordOf;
template <>
struct WordOf<1> {
  using Type = std::uint8_t;
};
template <>
struct WordOf<2> {
  using Type = std::uint16_t;
};
template <>
struct WordOf<4> {
  using Type = std::uint32_t;
};
template <>
struct WordOf<8> {
  using Type = uint2;
};
template <>
struct WordOf<16> {
  using Type = uint4;
};

// kCount neighbouring elements of kElementBytes bytes each, kept in whole registers as they were loaded: taken apart at
// the load they would need a register each, and the load would have to be waited for.
template <int kElementBytes, int kCount>
struct Vector {
  static constexpr int kBytes = kElementBytes * kCount;
  static constexpr int kRegisters = kBytes < 4 ? 1 : kBytes / 4;
  using Word = typename WordOf<kBytes>::Type;

  std::uint32_t registers[kRegisters] = {};

  __device__ void load(const void* source) { take(*static_cast<const Word*>(source)); }

  // The same for memory that is read for the last time: it leaves the L2 cache first.
  __device__ void load_last(const void* source) { take(__ldcs(static_cast<const Word*>(source))); }

  __device__ void store(void* target) const {
    if constexpr (kBytes == 16) {
      *static_cast<Word*>(target) = make_uint4(registers[0], registers[1], registers[2], registers[3]);
    } else if constexpr (kBytes == 8) {
      *static_cast<Word*>(target) = make_uint2(registers[0], registers[1]);
    } else {
      *static_cast<Word*>(target) = static_cast<Word>(registers[0]);
    }
  }

  // The bits of element i.
  __device__ std::uint32_t bits(int i) const {
    if constexpr (kElementBytes == 4) return registers[i];
    constexpr int kPerRegister = 4 / kElementBytes;
    constexpr std::uint32_t kMask = kElementBytes == 2 ? 0xFFFFu : 0xFFu;
    return registers[i / kPerRegister] >> (i % kPerRegister * kElementBytes * 8) & kMask;
  }

 private:
  __device__ void take(const Word& word) {
    if constexpr (kBytes == 16) {
      registers[0] = word.x, registers[1] = word.y, registers[2] = word.z, registers[3] = word.w;
    } else if constexpr (kBytes == 8) {
      registers[0] = word.x, registers[1] = word.y;
    } else {
      registers[0] = word;
    }
  }
};

// How a kernel reads a row: element type, and how many elements at a time (1 where the alignment allows no more).
template <class ElementType, int kElements>
struct Access {
  using Element = ElementType;
  using Storage = typename Element::Storage;
  static constexpr int kCount = kElements;
  using Values = Vector<sizeof(Storage), kCount>;

  static __device__ float real(const Values& values, int i) { return Element::to_float(values.bits(i)); }
};

// The bits of |value|, 0 for infinities and NaN. Magnitudes compare as unsigned integers.
__device__ inline std::uint32_t finite_magnitude(float value) {
  const std::uint32_t bits = __float_as_uint(value) & 0x7FFFFFFFu;
  return bits < 0x7F800000u ? bits : 0u;
}

// The rounded intrinsics keep compiler flags and contraction from changing the bits. Quotient and reciprocal are those
// of __fdiv_rn and __frcp_rn without their special cases: one correction of an approximation with the exact remainder
// rounds correctly where nothing is subnormal. Quotients that might be are below the least scale.
__device__ inline float scale_from_amax(std::uint32_t amax_bits) {
  constexpr float kMinScale = 0x1p-100f, kPart = 1.0f / kE4M3Max;
  const float amax = __uint_as_float(amax_bits), quotient = __fmul_rn(amax, kPart);
  const float remainder = __fmaf_rn(-kE4M3Max, quotient, amax);
  return amax_bits == 0 ? 1.0f : fmaxf(__fmaf_rn(remainder, kPart, quotient), kMinScale);
}

// Of a scale: from 2^-100 to the greatest float / 448, or 1.
__device__ inline float inverse_of(float scale) {
  const float inverse = ptx::reciprocal(scale);
  return __fmaf_rn(__fmaf_rn(-scale, inverse, 1.0f), inverse, inverse);
}

__device__ inline float scaled(float value, float inverse) { return __fmul_rn(value, inverse); }

// Two e4m3 codes, `low` in the low byte.
__device__ inline std::uint32_t e4m3_pair(float low, float high) {
  return __nv_cvt_float2_to_fp8x2(make_float2(low, high), __NV_SATFINITE, __NV_E4M3);
}

}  // namespace fp8attn::cuda
