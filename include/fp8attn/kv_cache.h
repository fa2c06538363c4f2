// The paged latent cache of multi-head latent attention (MLA): record formats, writing, reading back.
#pragma once

#include <cstdint>
#include <optional>

#include "fp8attn/backend.h"
#include "fp8attn/tensor.h"

namespace fp8attn {

// Channels of one cached token: the latent, which is both key and value, and the RoPE part of the key.
inline constexpr std::int64_t kLatentDim = 512;
inline constexpr std::int64_t kRopeDim = 64;
inline constexpr std::int64_t kMlaDim = kLatentDim + kRopeDim;

inline constexpr std::int64_t kMaxPageSize = 256;  // tokens

// What a cached token is stored as. real = stored * scale; numbers are little-endian.
//
// kToken128 and kToken share one record of 656 bytes, at 16-byte multiples:
//   0    512 e4m3     latent
//   512  4 float32    scale of latent channels 128 g to 128 g + 127, g in 0..3; kToken: the same number four times
//   528  64 bf16      RoPE part
// This is the layout that serving engines keep for 8-bit MLA caches. A cache written as kToken can be read as
// kToken128.
enum class CacheFormat : std::uint8_t {
  kBF16,      // 576 bf16 (latent, RoPE)
  kTensor,    // 576 e4m3 (latent, RoPE), one scale for the whole cache, not in the records
  kToken128,  // latent in e4m3 with a scale for each 128 channels of a token, RoPE in bf16
  kToken,     // latent in e4m3 with one scale for a token, RoPE in bf16
};

// "bf16", "tensor", "token128", "token".
const char* name_of(CacheFormat format);

// Element type of the cache tensor [pages, page_size, record_elements(format)].
constexpr DType record_dtype(CacheFormat format) {
  switch (format) {
    case CacheFormat::kBF16: return DType::kBF16;
    case CacheFormat::kTensor: return DType::kE4M3;
    default: return DType::kU8;
  }
}

// Elements of one token in the cache tensor: 576 for kBF16 and kTensor, 656 (bytes) for the others.
constexpr std::int64_t record_elements(CacheFormat format) {
  return record_dtype(format) == DType::kU8 ? kLatentDim + 4 * 4 + kRopeDim * 2 : kMlaDim;
}

// Bytes of one token: 1152, 576, 656, 656.
constexpr std::int64_t record_bytes(CacheFormat format) {
  return record_elements(format) * size_of(record_dtype(format));
}

// Where the parts of a 656-byte record begin.
inline constexpr std::int64_t kRecordScaleOffset = kLatentDim;
inline constexpr std::int64_t kRecordRopeOffset = kLatentDim + 4 * 4;

// Writes tokens into a cache. n: tokens.
//
// A slot is page * page_size + position in the page. Slots below 0 (padding) are skipped, and so are slots at or past
// pages * page_size: nothing outside the cache is written. Two tokens with one slot leave it with an unspecified mix of
// both. Other slots, and what lies between records, keep their bytes.
//
// scale = amax / 448 over the finite values that share it, at least 2^-100; stored = e4m3(real * (1 / scale)). Unlike
// quantize() this gives values that are all 0 the smallest scale, not 1: decoding expresses weights relative to the
// largest product of a probability and a scale, which a token of zeros should not raise. kBF16 copies. CPU and CUDA
// give the same bits.
//
// Tensors: any strides with a contiguous last dim (slots: any strides at all). Cache on CUDA: 16-byte aligned base and
// strides of a multiple of 16 bytes. The cache shares no memory with the inputs.
struct AppendMlaProblem {
  TensorView latent;        // [n, 512] bf16
  TensorView rope;          // [n, 64] bf16, after RoPE; may be a slice of the same [n, 576] as latent
  TensorView slots;         // [n] int32 or int64
  MutableTensorView cache;  // [pages, page_size, record_elements(format)] of record_dtype(format), page_size 1 to 256
  CacheFormat format = CacheFormat::kToken128;
  std::optional<TensorView> cache_scale;  // kTensor only: scalar f32, the scale to store with; default 1
  bool rotate_rope = false;  // store the RoPE part rotated (see rotate_rope()); queries then need the same rotation
};

// Whether append_mla() would run, with the reasons why not.
Support supports(const AppendMlaProblem& problem);

// Runs it on the device of the tensors. Throws Error before anything is written where the problem is not supported.
// CUDA: asynchronous on `stream`, no allocation, no synchronisation, capturable, no workspace.
void append_mla(const AppendMlaProblem& problem, Stream stream = nullptr);

// Reads tokens back as bf16: the nearest bf16 of stored * scale. Slots as in append_mla(), but rows whose slot lies
// outside the cache are written as 0. Alignment and memory as there; out shares no memory with the inputs.
struct GatherMlaProblem {
  TensorView cache;       // [pages, page_size, record_elements(format)]
  TensorView slots;       // [n] int32 or int64
  MutableTensorView out;  // [n, 576] bf16: latent, RoPE
  CacheFormat format = CacheFormat::kToken128;
  std::optional<TensorView> cache_scale;  // kTensor only: scalar f32; default 1
  bool rotate_rope = false;               // the RoPE part is stored rotated: turn it back
};

// Whether gather_mla() would run, with the reasons why not.
Support supports(const GatherMlaProblem& problem);

// Runs it; errors and streams as in append_mla().
void gather_mla(const GatherMlaProblem& problem, Stream stream = nullptr);

// Rotates the RoPE part of queries the way `rotate_rope` rotates that of keys, which leaves every score as it was but
// for rounding: out[..., 512 + i] = bf16(sum over j of H[i, j] * sign[j] * in[..., 512 + j] / 8), where H is the 64 x
// 64 Hadamard matrix of Sylvester's construction and sign[j] is -1 where bit j of kRotationSigns is set. Channels 0 to
// 511 are copied. input, output: [b, s_q, h_q, 576] bf16, any strides with a contiguous last dim; the output is the
// input (same address and strides) or shares no memory with it. Errors and streams as in append_mla().
void rotate_rope(const TensorView& input, const MutableTensorView& output, Stream stream = nullptr);

// Random signs, fixed for good: caches outlive programs.
inline constexpr std::uint64_t kRotationSigns = 0xB35A6F0D92E1C874u;

}  // namespace fp8attn
