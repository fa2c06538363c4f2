#include <cuda_runtime.h>

#include "cuda/launch/check.h"
#include "cuda/sm90/kv_cache/kv_cache.h"
#include "cuda/sm90/kv_cache/rotation.cuh"
#include "cuda/sm90/kv_cache/token.cuh"
#include "cuda/sm90/quantize/row_space.h"

namespace fp8attn::cuda {
namespace {

using Input = Rows<const std::uint16_t*>;
using Output = Rows<std::uint16_t*>;

constexpr float kMinScale = 0x1p-100f;

template <CacheFormat kFormat>
constexpr bool kHasRecordScales = kFormat == CacheFormat::kToken128 || kFormat == CacheFormat::kToken;

__device__ float scale_or_one(const float* scale) { return scale != nullptr ? *scale : 1.0f; }

// The scales of this lane's parts; the largest magnitude of 16 lanes, or of all and both parts, decides.
template <CacheFormat kFormat>
__device__ void find_scales(const Vector<2, kVectorDim> (&latent)[kParts], float (&scale)[kParts]) {
  std::uint32_t amax[kParts] = {};
#pragma unroll
  for (int part = 0; part < kParts; ++part) {
#pragma unroll
    for (int i = 0; i < kVectorDim; ++i) {
      amax[part] = max(amax[part], finite_magnitude(Bf16::to_float(latent[part].bits(i))));
    }
  }
  if constexpr (kFormat == CacheFormat::kToken) {
    amax[0] = amax[1] = __reduce_max_sync(0xFFFFFFFFu, max(amax[0], amax[1]));
  } else {
    const unsigned half_warp = lane() < 16 ? 0x0000FFFFu : 0xFFFF0000u;
#pragma unroll
    for (std::uint32_t& value : amax) value = __reduce_max_sync(half_warp, value);
  }
#pragma unroll
  for (int part = 0; part < kParts; ++part) {
    scale[part] = fmaxf(__fdiv_rn(__uint_as_float(amax[part]), kE4M3Max), kMinScale);
  }
}

template <CacheFormat kFormat>
__device__ void write_latent(const Vector<2, kVectorDim> (&latent)[kParts], const float (&scale)[kParts],
                             std::uint8_t* record) {
#pragma unroll
  for (int part = 0; part < kParts; ++part) {
    const int channel = part * kPartDim + lane() * kVectorDim;
    if constexpr (kFormat == CacheFormat::kBF16) {
      latent[part].store(record + 2 * channel);
    } else {
      const float inverse = inverse_of(scale[part]);
      const auto stored = [&](int i) { return scaled(Bf16::to_float(latent[part].bits(i)), inverse); };
      Vector<1, kVectorDim> codes;
#pragma unroll
      for (int i = 0; i < kVectorDim; i += 2) {
        codes.registers[i / 4] |= e4m3_pair(stored(i), stored(i + 1)) << (i % 4 * 8);
      }
      codes.store(record + channel);
    }
  }
}

template <CacheFormat kFormat>
__device__ void write_rope(const Vector<2, 2>& rope, float scale, std::uint8_t* record) {
  if constexpr (kFormat == CacheFormat::kTensor) {
    const float inverse = inverse_of(scale);
    Vector<1, 2> codes;
    codes.registers[0] =
        e4m3_pair(scaled(Bf16::to_float(rope.bits(0)), inverse), scaled(Bf16::to_float(rope.bits(1)), inverse));
    codes.store(record + kLatentDim + 2 * lane());
  } else {
    constexpr std::int64_t kOffset = kFormat == CacheFormat::kBF16 ? 2 * kLatentDim : kRecordRopeOffset;
    rope.store(record + kOffset + 4 * lane());
  }
}

template <CacheFormat kFormat>
__global__ void __launch_bounds__(kCacheThreads)
    append_tokens(Input latent_rows, Input rope_rows, Slots slots, Cache<std::uint8_t> cache, const float* cache_scale,
                  bool rotated, std::int64_t tokens) {
  const std::int64_t token = token_of_warp();
  if (token >= tokens) return;
  std::uint8_t* record = cache.record(slots.at(token));
  if (record == nullptr) return;
  Vector<2, kVectorDim> latent[kParts];
  Vector<2, 2> rope;
  const std::uint16_t* latent_row = latent_rows.data + token * latent_rows.stride;
#pragma unroll
  for (int part = 0; part < kParts; ++part) {
    load_vector(latent[part], latent_row, part * kPartDim + lane() * kVectorDim, latent_rows.vectors);
  }
  load_pair(rope, rope_rows.data + token * rope_rows.stride, rope_rows.vectors);
  float scale[kParts];
  if constexpr (kHasRecordScales<kFormat>) {
    find_scales<kFormat>(latent, scale);
    // Lane 0 has groups 0 and 2, lane 16 groups 1 and 3.
    if (lane() % 16 == 0) {
      auto* scales = reinterpret_cast<float*>(record + kRecordScaleOffset) + lane() / 16;
      scales[0] = scale[0];
      scales[2] = scale[1];
    }
  } else {
    scale[0] = scale[1] = scale_or_one(cache_scale);
  }
  write_latent<kFormat>(latent, scale, record);
  if (rotated) rotate(rope);
  write_rope<kFormat>(rope, scale[0], record);
}

// The value of an e4m3 code; NaN for NaN.
__device__ float e4m3_value(std::uint32_t code) {
  return __half2float(__half(__nv_cvt_fp8_to_halfraw(static_cast<__nv_fp8_storage_t>(code), __NV_E4M3)));
}

// This lane's latent channels as bf16. kRaw: a bf16 record is copied bit for bit.
template <CacheFormat kFormat>
__device__ void read_latent(const std::uint8_t* record, int part, float scale, bool raw,
                            Vector<2, kVectorDim>& latent) {
  const int channel = part * kPartDim + lane() * kVectorDim;
  if constexpr (kFormat == CacheFormat::kBF16) {
    latent.load(record + 2 * channel);
    if (raw) return;
#pragma unroll
    for (int i = 0; i < kVectorDim; i += 2) {
      latent.registers[i / 2] = bf16_pair(Bf16::to_float(latent.bits(i)), Bf16::to_float(latent.bits(i + 1)));
    }
  } else {
    Vector<1, kVectorDim> codes;
    codes.load(record + channel);
    const auto real = [&](int i) { return __fmul_rn(e4m3_value(codes.bits(i)), scale); };
#pragma unroll
    for (int i = 0; i < kVectorDim; i += 2) latent.registers[i / 2] = bf16_pair(real(i), real(i + 1));
  }
}

template <CacheFormat kFormat>
__device__ void read_rope(const std::uint8_t* record, float scale, bool rotated, Vector<2, 2>& rope) {
  float values[2];
  if constexpr (kFormat == CacheFormat::kTensor) {
    Vector<1, 2> codes;
    codes.load(record + kLatentDim + 2 * lane());
#pragma unroll
    for (int i = 0; i < 2; ++i) values[i] = __fmul_rn(e4m3_value(codes.bits(i)), scale);
  } else {
    constexpr std::int64_t kOffset = kFormat == CacheFormat::kBF16 ? 2 * kLatentDim : kRecordRopeOffset;
    rope.load(record + kOffset + 4 * lane());
    if (kFormat == CacheFormat::kBF16 && !rotated) return;
#pragma unroll
    for (int i = 0; i < 2; ++i) values[i] = Bf16::to_float(rope.bits(i));
  }
  if (rotated) rotate_back(values);
  rope.registers[0] = bf16_pair(values[0], values[1]);
}

template <CacheFormat kFormat>
__global__ void __launch_bounds__(kCacheThreads)
    gather_tokens(Cache<const std::uint8_t> cache, Slots slots, Output out, const float* cache_scale, bool rotated,
                  std::int64_t tokens) {
  const std::int64_t token = token_of_warp();
  if (token >= tokens) return;
  const std::uint8_t* record = cache.record(slots.at(token));
  Vector<2, kVectorDim> latent[kParts];
  Vector<2, 2> rope;
  if (record != nullptr) {
    float scale[kParts] = {};
    if constexpr (kHasRecordScales<kFormat>) {
      const auto* scales = reinterpret_cast<const float*>(record + kRecordScaleOffset);
      const int group = kFormat == CacheFormat::kToken ? 0 : lane() / 16;
      scale[0] = scales[group];
      scale[1] = kFormat == CacheFormat::kToken ? scale[0] : scales[group + 2];
    } else {
      scale[0] = scale[1] = scale_or_one(cache_scale);
    }
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      read_latent<kFormat>(record, part, scale[part], !rotated, latent[part]);
    }
    read_rope<kFormat>(record, scale[0], rotated, rope);
  }
  std::uint16_t* row = out.data + token * out.stride;
#pragma unroll
  for (int part = 0; part < kParts; ++part) {
    store_vector(latent[part], row, part * kPartDim + lane() * kVectorDim, out.vectors);
  }
  store_pair(rope, row + kLatentDim, out.vectors);
}

// Rows of q: offsets of [b, s_q, h_q] from strides.
struct QueryWalk {
  std::int64_t strides[3];
  int queries, heads;

  __device__ std::int64_t offset(std::int64_t row) const {
    const std::int64_t token = row / heads;
    return token / queries * strides[0] + token % queries * strides[1] + row % heads * strides[2];
  }
};

__global__ void __launch_bounds__(kCacheThreads)
    rotate_rows(const std::uint16_t* input, QueryWalk input_walk, bool input_vectors, std::uint16_t* output,
                QueryWalk output_walk, bool output_vectors, std::int64_t rows) {
  const std::int64_t row = token_of_warp();
  if (row >= rows) return;
  const std::uint16_t* source = input + input_walk.offset(row);
  std::uint16_t* target = output + output_walk.offset(row);
  Vector<2, 2> rope;
  load_pair(rope, source + kLatentDim, input_vectors);
  rotate(rope);
  store_pair(rope, target + kLatentDim, output_vectors);
  if (source == target) return;
#pragma unroll
  for (int part = 0; part < kParts; ++part) {
    const int channel = part * kPartDim + lane() * kVectorDim;
    Vector<2, kVectorDim> latent;
    load_vector(latent, source, channel, input_vectors);
    store_vector(latent, target, channel, output_vectors);
  }
}

template <class... Parameters, class... Arguments>
void launch(const char* operation, void (*kernel)(Parameters...), std::int64_t tokens, Stream stream,
            Arguments... arguments) {
  if (tokens == 0) return;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>((tokens + kTokensPerBlock - 1) / kTokensPerBlock));
  config.blockDim = dim3(kCacheThreads);
  config.stream = stream;
  check(cudaLaunchKernelEx(&config, kernel, arguments..., tokens), operation, "cudaLaunchKernelEx");
}

template <class Body>
void with_format(CacheFormat format, Body body) {
  switch (format) {
    case CacheFormat::kBF16: return body.template operator()<CacheFormat::kBF16>();
    case CacheFormat::kTensor: return body.template operator()<CacheFormat::kTensor>();
    case CacheFormat::kToken128: return body.template operator()<CacheFormat::kToken128>();
    case CacheFormat::kToken: return body.template operator()<CacheFormat::kToken>();
  }
}

template <class View>
auto rows_of(const View& view) {
  using Element = std::conditional_t<std::is_same_v<View, TensorView>, const std::uint16_t, std::uint16_t>;
  return Rows<Element*>{static_cast<Element*>(view.data), view.strides[0], rows_aligned(view, kRecordAlign)};
}

template <class View>
auto cache_of(const View& view) {
  using Byte = std::conditional_t<std::is_same_v<View, TensorView>, const std::uint8_t, std::uint8_t>;
  const std::int64_t element = size_of(view.dtype);
  return Cache<Byte>{static_cast<Byte*>(view.data), view.strides[0] * element, view.strides[1] * element, view.shape[0],
                     static_cast<int>(view.shape[1])};
}

Slots slots_of(const TensorView& slots) { return {slots.data, slots.strides[0], slots.dtype == DType::kI64}; }

const float* scale_of(const std::optional<TensorView>& scale) {
  return scale ? static_cast<const float*>(scale->data) : nullptr;
}

QueryWalk walk_of(const TensorView& view) {
  return {{view.strides[0], view.strides[1], view.strides[2]},
          static_cast<int>(view.shape[1]),
          static_cast<int>(view.shape[2])};
}

}  // namespace

void append_mla(const AppendMlaProblem& problem, Stream stream) {
  const DeviceGuard guard(problem.cache.device.index, "append_mla");
  with_format(problem.format, [&]<CacheFormat kFormat>() {
    launch("append_mla", append_tokens<kFormat>, problem.slots.shape[0], stream, rows_of(problem.latent),
           rows_of(problem.rope), slots_of(problem.slots), cache_of(problem.cache), scale_of(problem.cache_scale),
           problem.rotate_rope);
  });
}

void gather_mla(const GatherMlaProblem& problem, Stream stream) {
  const DeviceGuard guard(problem.cache.device.index, "gather_mla");
  with_format(problem.format, [&]<CacheFormat kFormat>() {
    launch("gather_mla", gather_tokens<kFormat>, problem.slots.shape[0], stream, cache_of(problem.cache),
           slots_of(problem.slots), rows_of(problem.out), scale_of(problem.cache_scale), problem.rotate_rope);
  });
}

void rotate_rope(const TensorView& input, const MutableTensorView& output, Stream stream) {
  const DeviceGuard guard(input.device.index, "rotate_rope");
  launch("rotate_rope", rotate_rows, input.shape[0] * input.shape[1] * input.shape[2], stream,
         static_cast<const std::uint16_t*>(input.data), walk_of(input), rows_aligned(input, kRecordAlign),
         static_cast<std::uint16_t*>(output.data), walk_of(output), rows_aligned(output, kRecordAlign));
}

}  // namespace fp8attn::cuda
