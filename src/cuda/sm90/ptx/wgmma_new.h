#pragma once
#include <cstdint>
namespace fp8attn::cuda::ptx {
template <int kSize>
__device__ __forceinline__ void wgmma_e4m3_f16_n64_ss_first(uint32_t (&d)[kSize], uint64_t a, uint64_t b) {
  static_assert(kSize >= 16);
  asm volatile("{.reg .pred p; setp.ne.b32 p, 0, 0; wgmma.mma_async.sync.aligned.m64n64k32.f16.e4m3.e4m3 {%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15}, %16, %17, p, 1, 1;}"
      : "=&r"(d[0]),"=&r"(d[1]),"=&r"(d[2]),"=&r"(d[3]),"=&r"(d[4]),"=&r"(d[5]),"=&r"(d[6]),"=&r"(d[7]),"=&r"(d[8]),"=&r"(d[9]),"=&r"(d[10]),"=&r"(d[11]),"=&r"(d[12]),"=&r"(d[13]),"=&r"(d[14]),"=&r"(d[15]) : "l"(a), "l"(b));
}

template <int kSize>
__device__ __forceinline__ void wgmma_e4m3_f32_n64_rs_first(float (&d)[kSize], const uint32_t (&a)[4], uint64_t b) {
  static_assert(kSize >= 32);
  asm volatile("{.reg .pred p; setp.ne.b32 p, 0, 0; wgmma.mma_async.sync.aligned.m64n64k32.f32.e4m3.e4m3 {%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31}, {%32,%33,%34,%35}, %36, p, 1, 1;}"
      : "=&f"(d[0]),"=&f"(d[1]),"=&f"(d[2]),"=&f"(d[3]),"=&f"(d[4]),"=&f"(d[5]),"=&f"(d[6]),"=&f"(d[7]),"=&f"(d[8]),"=&f"(d[9]),"=&f"(d[10]),"=&f"(d[11]),"=&f"(d[12]),"=&f"(d[13]),"=&f"(d[14]),"=&f"(d[15]),"=&f"(d[16]),"=&f"(d[17]),"=&f"(d[18]),"=&f"(d[19]),"=&f"(d[20]),"=&f"(d[21]),"=&f"(d[22]),"=&f"(d[23]),"=&f"(d[24]),"=&f"(d[25]),"=&f"(d[26]),"=&f"(d[27]),"=&f"(d[28]),"=&f"(d[29]),"=&f"(d[30]),"=&f"(d[31]) : "r"(a[0]),"r"(a[1]),"r"(a[2]),"r"(a[3]), "l"(b));
}

template <int kSize>
__device__ __forceinline__ void wgmma_e4m3_f32_n64_rs_add(float (&d)[kSize], const uint32_t (&a)[4], uint64_t b) {
  static_assert(kSize >= 32);
  asm volatile("{.reg .pred p; setp.ne.b32 p, 1, 0; wgmma.mma_async.sync.aligned.m64n64k32.f32.e4m3.e4m3 {%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31}, {%32,%33,%34,%35}, %36, p, 1, 1;}"
      : "+f"(d[0]),"+f"(d[1]),"+f"(d[2]),"+f"(d[3]),"+f"(d[4]),"+f"(d[5]),"+f"(d[6]),"+f"(d[7]),"+f"(d[8]),"+f"(d[9]),"+f"(d[10]),"+f"(d[11]),"+f"(d[12]),"+f"(d[13]),"+f"(d[14]),"+f"(d[15]),"+f"(d[16]),"+f"(d[17]),"+f"(d[18]),"+f"(d[19]),"+f"(d[20]),"+f"(d[21]),"+f"(d[22]),"+f"(d[23]),"+f"(d[24]),"+f"(d[25]),"+f"(d[26]),"+f"(d[27]),"+f"(d[28]),"+f"(d[29]),"+f"(d[30]),"+f"(d[31]) : "r"(a[0]),"r"(a[1]),"r"(a[2]),"r"(a[3]), "l"(b));
}

template <int kSize>
__device__ __forceinline__ void wgmma_e4m3_f32_n64_rs_again(float (&d)[kSize], const uint32_t (&a)[4], uint64_t b) {
  static_assert(kSize >= 32);
  asm volatile("{.reg .pred p; setp.ne.b32 p, 0, 0; wgmma.mma_async.sync.aligned.m64n64k32.f32.e4m3.e4m3 {%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31}, {%32,%33,%34,%35}, %36, p, 1, 1;}"
      : "+f"(d[0]),"+f"(d[1]),"+f"(d[2]),"+f"(d[3]),"+f"(d[4]),"+f"(d[5]),"+f"(d[6]),"+f"(d[7]),"+f"(d[8]),"+f"(d[9]),"+f"(d[10]),"+f"(d[11]),"+f"(d[12]),"+f"(d[13]),"+f"(d[14]),"+f"(d[15]),"+f"(d[16]),"+f"(d[17]),"+f"(d[18]),"+f"(d[19]),"+f"(d[20]),"+f"(d[21]),"+f"(d[22]),"+f"(d[23]),"+f"(d[24]),"+f"(d[25]),"+f"(d[26]),"+f"(d[27]),"+f"(d[28]),"+f"(d[29]),"+f"(d[30]),"+f"(d[31]) : "r"(a[0]),"r"(a[1]),"r"(a[2]),"r"(a[3]), "l"(b));
}
}
