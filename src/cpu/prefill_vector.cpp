#include "cpu/prefill_vector.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <numbers>

// A generic x86-64 build still uses AVX2 and AVX-512 where the machine has them. The clones are chosen by an ifunc
// resolver, which needs GCC and glibc, and which runs too early for the thread sanitizer.
#if defined(__x86_64__) && defined(__GLIBC__) && defined(__GNUC__) && !defined(__clang__) && \
    !defined(__SANITIZE_THREAD__)
#define FP8ATTN_CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define FP8ATTN_CLONES
#endif
// Inlined into each clone, so that it is compiled for that clone's instructions.
#define FP8ATTN_INLINE inline __attribute__((always_inline))

namespace fp8attn::cpu {
namespace {

constexpr int kVectorBytes = 64;
typedef float FloatVector __attribute__((vector_size(kVectorBytes), aligned(4), may_alias));
typedef double DoubleVector __attribute__((vector_size(kVectorBytes), aligned(8), may_alias));
typedef std::int32_t IntVector __attribute__((vector_size(kVectorBytes), aligned(4), may_alias));

template <class T>
struct VectorType {
  using Type = FloatVector;
};
template <>
struct VectorType<double> {
  using Type = DoubleVector;
};
template <class T>
using VectorOf = typename VectorType<T>::Type;
template <class T>
constexpr int kLanes = kVectorBytes / sizeof(T);

template <class T>
FP8ATTN_INLINE const VectorOf<T>& vector_at(const T* p) {
  return *reinterpret_cast<const VectorOf<T>*>(p);
}
template <class T>
FP8ATTN_INLINE VectorOf<T>& vector_at(T* p) {
  return *reinterpret_cast<VectorOf<T>*>(p);
}

// Columns outermost: one panel of B, depth * 64 bytes, stays in the first-level cache for all rows.
template <class T>
FP8ATTN_INLINE void multiply_body(const T* a, std::int64_t a_stride, const T* b, std::int64_t b_stride, T* c,
                                  std::int64_t c_stride, int rows, int depth, int columns) {
  for (int column = 0; column < columns; column += kLanes<T>) {
    for (int row = 0; row < rows; row += kRowBlock) {
      const T* a0 = a + row * a_stride;
      const T* panel = b + column;
      VectorOf<T> sum0{}, sum1{}, sum2{}, sum3{};
      for (int i = 0; i < depth; ++i) {
        const VectorOf<T> operand = vector_at(panel + i * b_stride);
        sum0 += a0[i] * operand;
        sum1 += a0[a_stride + i] * operand;
        sum2 += a0[2 * a_stride + i] * operand;
        sum3 += a0[3 * a_stride + i] * operand;
      }
      T* c0 = c + row * c_stride + column;
      vector_at(c0) = sum0;
      vector_at(c0 + c_stride) = sum1;
      vector_at(c0 + 2 * c_stride) = sum2;
      vector_at(c0 + 3 * c_stride) = sum3;
    }
  }
}

template <class T>
FP8ATTN_INLINE void multiply_add_row_body(const T* a, const T* b, std::int64_t b_stride, T* c, int depth, int columns) {
  for (int column = 0; column < columns; column += kLanes<T>) {
    VectorOf<T> sum = vector_at(c + column);
    for (int i = 0; i < depth; ++i) sum += a[i] * vector_at(b + i * b_stride + column);
    vector_at(c + column) = sum;
  }
}

// One instruction of the model: the running sum and up to 32 products, each cut to 13 fractional bits below the
// leading bit of the largest of them, then added without further loss.
FP8ATTN_INLINE void add_group_13bit(FloatVector& running, const float* a, const float* b, std::int64_t b_stride,
                                    int count) {
  constexpr std::int32_t kMagnitude = 0x7FFFFFFF, kExponent = 0x7F800000, kTiny = 27 << 23;  // kTiny: 2^-100
  IntVector largest = reinterpret_cast<IntVector>(running) & kMagnitude;
  FloatVector plain = running;
  for (int i = 0; i < count; ++i) {
    const FloatVector product = a[i] * vector_at(b + i * b_stride);
    const IntVector magnitude = reinterpret_cast<IntVector>(product) & kMagnitude;
    largest = magnitude > largest ? magnitude : largest;
    plain += product;
  }
  IntVector exponent = largest & kExponent;
  exponent = exponent < kTiny ? IntVector{} + kTiny : exponent;
  const FloatVector unit = reinterpret_cast<FloatVector>(exponent - (13 << 23));
  const FloatVector per_unit = reinterpret_cast<FloatVector>((254 << 23) - (exponent - (13 << 23)));
  IntVector sum = __builtin_convertvector(running * per_unit, IntVector);
  for (int i = 0; i < count; ++i) {
    sum += __builtin_convertvector(a[i] * vector_at(b + i * b_stride) * per_unit, IntVector);
  }
  // NaN and infinity have no place in the integers: the plain sum carries them.
  const FloatVector zero_or_nan = plain - plain;
  running = zero_or_nan == 0.0f ? __builtin_convertvector(sum, FloatVector) * unit : plain;
}

template <class T>
constexpr T kInfinity = std::numeric_limits<T>::infinity();

template <class T>
FP8ATTN_INLINE T prepare_scores_body(T* scores, const T* factors, int count, bool half, bool negate) {
  if (half) {
#pragma omp simd
    for (int i = 0; i < count; ++i) {
      // Half precision without its range: the kernels scale q so that nothing overflows.
      const auto bits = std::bit_cast<std::uint32_t>(static_cast<float>(scores[i]));
      const std::uint32_t rounded = (bits + 0xFFFu + ((bits >> 13) & 1u)) & ~0x1FFFu;
      scores[i] = (bits & 0x7F800000u) == 0x7F800000u ? scores[i] : static_cast<T>(std::bit_cast<float>(rounded));
    }
  }
  if (factors != nullptr) {
#pragma omp simd
    for (int i = 0; i < count; ++i) scores[i] *= factors[i];
  }
  const T sign = negate ? T{-1} : T{1};
  T top = -kInfinity<T>;
#pragma omp simd reduction(max : top)
  for (int i = 0; i < count; ++i) {
    scores[i] *= sign;
    top = scores[i] > top ? scores[i] : top;
  }
  return top;
}

// ln(2)^k / k!: 2^f = sum of kExp2Terms[k] * f^k.
constexpr std::array<double, 14> kExp2Terms = [] {
  std::array<double, 14> terms{1.0};
  for (int k = 1; k < 14; ++k) terms[k] = terms[k - 1] * std::numbers::ln2 / k;
  return terms;
}();

// 2^x for x <= 0 to the last place or two; 0 below the normal range; NaN stays NaN.
template <class T>
FP8ATTN_INLINE T exp2_of(T x) {
  constexpr bool kSingle = sizeof(T) == 4;
  using Bits = std::conditional_t<kSingle, std::uint32_t, std::uint64_t>;
  constexpr int kMantissa = kSingle ? 23 : 52;
  constexpr int kDegree = kSingle ? 7 : 13;
  constexpr T kLowest = kSingle ? T{-126} : T{-1022};
  constexpr T kRounder = kSingle ? T{0x1.8p23} : T{0x1.8p52};  // adding it rounds to an integer in the low bits
  const T clamped = x < kLowest ? kLowest : x;
  const T shifted = clamped + kRounder;
  const T fraction = clamped - (shifted - kRounder);
  T power = static_cast<T>(kExp2Terms[kDegree]);
#pragma GCC unroll 16
  for (int k = kDegree - 1; k >= 0; --k) power = power * fraction + static_cast<T>(kExp2Terms[k]);
  // The integer goes straight into the exponent field.
  const T result =
      std::bit_cast<T>(static_cast<Bits>(std::bit_cast<Bits>(power) + (std::bit_cast<Bits>(shifted) << kMantissa)));
  const T kept = power == power ? result : power;
  return x < kLowest ? T{0} : kept;
}

// The value of an e4m3 code held in a float that is an integer of 0 to 126.
FP8ATTN_INLINE float value_of_code(std::uint32_t code) {
  const float subnormal = static_cast<float>(static_cast<std::int32_t>(code)) * 0x1p-9f;
  const float normal = std::bit_cast<float>((code << 20) + (120u << 23));
  return code < 8u ? subnormal : normal;
}

// value rounded to an integer, half to even; 0 <= value < 2^22.
FP8ATTN_INLINE std::uint32_t round_to_code(float value) {
  constexpr float kRounder = 0x1.8p23f;
  return std::bit_cast<std::uint32_t>(value + kRounder) - std::bit_cast<std::uint32_t>(kRounder);
}

// value >= 0 to the nearest float whose last `kDropped` mantissa bits are 0, ties to even.
template <int kDropped>
FP8ATTN_INLINE float round_mantissa(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  return std::bit_cast<float>((bits + (1u << (kDropped - 1)) - 1u + ((bits >> kDropped) & 1u)) &
                              ~((1u << kDropped) - 1u));
}

template <Probability kForm, class T>
FP8ATTN_INLINE T probability(T x) {
  if constexpr (kForm == Probability::kUnrounded) {
    return exp2_of(x);
  } else if constexpr (kForm == Probability::kBF16) {
    return round_mantissa<16>(exp2_of(x));
  } else if constexpr (kForm == Probability::kFP16) {
    const float p = exp2_of(x);
    return p < 0x1p-14f ? (p + 0.5f) - 0.5f : round_mantissa<13>(p);
  } else if constexpr (kForm == Probability::kE4M3Exact) {
    const float p = 256.0f * exp2_of(x);
    return p < 0x1p-6f ? (p + 16384.0f) - 16384.0f : round_mantissa<20>(p);
  } else if constexpr (kForm == Probability::kE4M3Default) {
    const float sixteenths = 16.0f * (8.0f * x + 120.0f);
    const std::uint32_t n = round_to_code(sixteenths > 0.0f ? sixteenths : 0.0f);
    const float fraction = static_cast<float>(static_cast<std::int32_t>(n & 127u));
    const float bend = 0.3435f * fraction * (1.0f - fraction * 0x1p-7f);
    return value_of_code(round_to_code((static_cast<float>(static_cast<std::int32_t>(n)) - bend) * 0.0625f));
  } else {
    const float code = 8.0f * x + 119.5625f;
    return value_of_code(round_to_code(code > 0.0f ? code : 0.0f));
  }
}

template <Probability kForm, class T>
FP8ATTN_INLINE T probabilities_body(T* scores, int count, T top, T factor) {
  T sum{0};
#pragma omp simd reduction(+ : sum)
  for (int i = 0; i < count; ++i) {
    const T x = (scores[i] - top) * factor;
    const T p = probability<kForm>(x);
    scores[i] = x == x ? p : x;  // the bit forms would lose a NaN
    sum += scores[i];
  }
  return sum;
}

FP8ATTN_CLONES float probabilities_unrounded(float* scores, int count, float top, float factor) {
  return probabilities_body<Probability::kUnrounded>(scores, count, top, factor);
}
FP8ATTN_CLONES double probabilities_unrounded(double* scores, int count, double top, double factor) {
  return probabilities_body<Probability::kUnrounded>(scores, count, top, factor);
}
FP8ATTN_CLONES float probabilities_bf16(float* scores, int count, float top, float factor) {
  return probabilities_body<Probability::kBF16>(scores, count, top, factor);
}
FP8ATTN_CLONES float probabilities_fp16(float* scores, int count, float top, float factor) {
  return probabilities_body<Probability::kFP16>(scores, count, top, factor);
}
FP8ATTN_CLONES float probabilities_e4m3_exact(float* scores, int count, float top, float factor) {
  return probabilities_body<Probability::kE4M3Exact>(scores, count, top, factor);
}
FP8ATTN_CLONES float probabilities_e4m3_default(float* scores, int count, float top, float factor) {
  return probabilities_body<Probability::kE4M3Default>(scores, count, top, factor);
}
FP8ATTN_CLONES float probabilities_e4m3_fast(float* scores, int count, float top, float factor) {
  return probabilities_body<Probability::kE4M3Fast>(scores, count, top, factor);
}

FP8ATTN_CLONES void unpack_e4m3(const std::uint8_t* source, float* destination, std::int64_t count) {
#pragma omp simd
  for (std::int64_t i = 0; i < count; ++i) {
    const std::uint32_t code = source[i];
    const std::uint32_t magnitude = code & 0x7Fu;
    const float value = magnitude == 0x7Fu ? std::numeric_limits<float>::quiet_NaN() : value_of_code(magnitude);
    destination[i] = std::bit_cast<float>(std::bit_cast<std::uint32_t>(value) | ((code & 0x80u) << 24));
  }
}

FP8ATTN_CLONES void unpack_bf16(const std::uint16_t* source, float* destination, std::int64_t count) {
#pragma omp simd
  for (std::int64_t i = 0; i < count; ++i) destination[i] = std::bit_cast<float>(std::uint32_t{source[i]} << 16);
}

FP8ATTN_CLONES void unpack_fp16(const std::uint16_t* source, float* destination, std::int64_t count) {
#pragma omp simd
  for (std::int64_t i = 0; i < count; ++i) {
    const std::uint32_t code = source[i];
    const std::uint32_t magnitude = code & 0x7FFFu;
    const float subnormal = static_cast<float>(static_cast<std::int32_t>(magnitude)) * 0x1p-24f;
    const std::uint32_t bias = magnitude >= 0x7C00u ? 224u : 112u;
    const float normal = std::bit_cast<float>((magnitude << 13) + (bias << 23));
    const float value = magnitude < 0x400u ? subnormal : normal;
    destination[i] = std::bit_cast<float>(std::bit_cast<std::uint32_t>(value) | ((code & 0x8000u) << 16));
  }
}

}  // namespace

void unpack(const void* source, DType dtype, float* destination, std::int64_t count) {
  switch (dtype) {
    case DType::kE4M3: return unpack_e4m3(static_cast<const std::uint8_t*>(source), destination, count);
    case DType::kBF16: return unpack_bf16(static_cast<const std::uint16_t*>(source), destination, count);
    case DType::kFP16: return unpack_fp16(static_cast<const std::uint16_t*>(source), destination, count);
    default: std::memcpy(destination, source, count * sizeof(float));
  }
}

FP8ATTN_CLONES void multiply(const float* a, std::int64_t a_stride, const float* b, std::int64_t b_stride, float* c,
                             std::int64_t c_stride, int rows, int depth, int columns) {
  multiply_body(a, a_stride, b, b_stride, c, c_stride, rows, depth, columns);
}
FP8ATTN_CLONES void multiply(const double* a, std::int64_t a_stride, const double* b, std::int64_t b_stride, double* c,
                             std::int64_t c_stride, int rows, int depth, int columns) {
  multiply_body(a, a_stride, b, b_stride, c, c_stride, rows, depth, columns);
}

FP8ATTN_CLONES void multiply_add_row(const float* a, const float* b, std::int64_t b_stride, float* c, int depth,
                                     int columns) {
  multiply_add_row_body(a, b, b_stride, c, depth, columns);
}
FP8ATTN_CLONES void multiply_add_row(const double* a, const double* b, std::int64_t b_stride, double* c, int depth,
                                     int columns) {
  multiply_add_row_body(a, b, b_stride, c, depth, columns);
}

FP8ATTN_CLONES void multiply_row_13bit(const float* a, const float* b, std::int64_t b_stride, float* c, int depth,
                                       int columns) {
  for (int column = 0; column < columns; column += kLanes<float>) {
    FloatVector sum{};
    for (int i = 0; i < depth; i += kAccumulatorGroup) {
      add_group_13bit(sum, a + i, b + i * b_stride + column, b_stride, std::min(kAccumulatorGroup, depth - i));
    }
    vector_at(c + column) = sum;
  }
}

FP8ATTN_CLONES float prepare_scores(float* scores, const float* factors, int count, bool half, bool negate) {
  return prepare_scores_body(scores, factors, count, half, negate);
}
FP8ATTN_CLONES double prepare_scores(double* scores, const double* factors, int count, bool half, bool negate) {
  return prepare_scores_body(scores, factors, count, half, negate);
}

float probabilities(Probability form, float* scores, int count, float top, float factor) {
  switch (form) {
    case Probability::kUnrounded: return probabilities_unrounded(scores, count, top, factor);
    case Probability::kBF16: return probabilities_bf16(scores, count, top, factor);
    case Probability::kFP16: return probabilities_fp16(scores, count, top, factor);
    case Probability::kE4M3Exact: return probabilities_e4m3_exact(scores, count, top, factor);
    case Probability::kE4M3Default: return probabilities_e4m3_default(scores, count, top, factor);
    case Probability::kE4M3Fast: return probabilities_e4m3_fast(scores, count, top, factor);
  }
  return 0.0f;
}

double probabilities(Probability, double* scores, int count, double top, double factor) {
  return probabilities_unrounded(scores, count, top, factor);
}

}  // namespace fp8attn::cpu
