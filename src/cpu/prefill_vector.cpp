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
// Vectors are passed between inlined functions only, so that the calling convention it warns of is never used.
#pragma GCC diagnostic ignored "-Wpsabi"

namespace fp8attn::cpu {
namespace {

// Wider than the registers of the instruction set a vector would live in memory. The clones that matter have 32 bytes.
#if defined(__x86_64__)
constexpr int kVectorBytes = 32;
#else
constexpr int kVectorBytes = 16;
#endif
typedef float FloatVector __attribute__((vector_size(kVectorBytes), aligned(4), may_alias));
typedef double DoubleVector __attribute__((vector_size(kVectorBytes), aligned(8), may_alias));
typedef std::int32_t IntVector __attribute__((vector_size(kVectorBytes), aligned(4), may_alias));
typedef std::int64_t LongVector __attribute__((vector_size(kVectorBytes), aligned(8), may_alias));
typedef std::uint8_t ByteVector __attribute__((vector_size(kVectorBytes / 4), aligned(1), may_alias));
typedef std::uint16_t ShortVector __attribute__((vector_size(kVectorBytes / 2), aligned(2), may_alias));

template <class T>
struct VectorTypes {
  using Value = FloatVector;
  using Bits = IntVector;
};
template <>
struct VectorTypes<double> {
  using Value = DoubleVector;
  using Bits = LongVector;
};
template <class T>
using VectorOf = typename VectorTypes<T>::Value;
template <class T>
using BitsOf = typename VectorTypes<T>::Bits;
template <class T>
constexpr int kLanes = kVectorBytes / sizeof(T);
static_assert(alignof(VectorOf<float>) == alignof(float) && alignof(VectorOf<double>) == alignof(double),
              "vector_at() refers to elements of any alignment");

template <class T>
FP8ATTN_INLINE const VectorOf<T>& vector_at(const T* p) {
  return *reinterpret_cast<const VectorOf<T>*>(p);
}
template <class T>
FP8ATTN_INLINE VectorOf<T>& vector_at(T* p) {
  return *reinterpret_cast<VectorOf<T>*>(p);
}

// Columns outermost: one panel of B, two vectors wide, stays in the first-level cache for all rows. Eight sums cover
// the latency of the multiply-add.
template <class T>
FP8ATTN_INLINE void multiply_body(const T* a, std::int64_t a_stride, const T* b, std::int64_t b_stride, T* c,
                                  std::int64_t c_stride, int rows, int depth, int columns) {
  for (int column = 0; column < columns; column += 2 * kLanes<T>) {
    for (int row = 0; row < rows; row += kRowBlock) {
      const T* a0 = a + row * a_stride;
      const T* panel = b + column;
      VectorOf<T> left[kRowBlock]{}, right[kRowBlock]{};
      for (int i = 0; i < depth; ++i) {
        const VectorOf<T> b_left = vector_at(panel + i * b_stride);
        const VectorOf<T> b_right = vector_at(panel + i * b_stride + kLanes<T>);
#pragma GCC unroll 4
        for (int r = 0; r < kRowBlock; ++r) {
          left[r] += a0[r * a_stride + i] * b_left;
          right[r] += a0[r * a_stride + i] * b_right;
        }
      }
#pragma GCC unroll 4
      for (int r = 0; r < kRowBlock; ++r) {
        T* c_row = c + (row + r) * c_stride + column;
        vector_at(c_row) = left[r];
        vector_at(c_row + kLanes<T>) = right[r];
      }
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
  const FloatVector per_unit = 0x1p13f * reinterpret_cast<FloatVector>((254 << 23) - exponent);
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
FP8ATTN_INLINE VectorOf<T> exp2_of(VectorOf<T> x) {
  constexpr bool kSingle = sizeof(T) == 4;
  constexpr int kMantissa = kSingle ? 23 : 52;
  constexpr int kDegree = kSingle ? 7 : 13;
  constexpr T kLowest = kSingle ? T{-126} : T{-1022};
  constexpr T kRounder = kSingle ? T{0x1.8p23} : T{0x1.8p52};  // adding it rounds to an integer in the low bits
  const VectorOf<T> lowest = VectorOf<T>{} + kLowest;
  const VectorOf<T> clamped = x < lowest ? lowest : x;
  const VectorOf<T> shifted = clamped + kRounder;
  const VectorOf<T> fraction = clamped - (shifted - kRounder);
  VectorOf<T> power = VectorOf<T>{} + static_cast<T>(kExp2Terms[kDegree]);
#pragma GCC unroll 16
  for (int k = kDegree - 1; k >= 0; --k) power = power * fraction + static_cast<T>(kExp2Terms[k]);
  // The integer goes straight into the exponent field.
  const BitsOf<T> bits = reinterpret_cast<BitsOf<T>>(power) + (reinterpret_cast<BitsOf<T>>(shifted) << kMantissa);
  const VectorOf<T> result = power == power ? reinterpret_cast<VectorOf<T>>(bits) : power;
  return x < lowest ? VectorOf<T>{} : result;
}

// The values of e4m3 codes 0 to 126.
FP8ATTN_INLINE FloatVector value_of_code(IntVector code) {
  const FloatVector subnormal = __builtin_convertvector(code, FloatVector) * 0x1p-9f;
  return code < 8 ? subnormal : reinterpret_cast<FloatVector>((code << 20) + (120 << 23));
}

// Values of 0 to 2^22 rounded to integers, half to even; below 0 gives 0.
FP8ATTN_INLINE IntVector round_to_code(FloatVector value) {
  constexpr float kRounder = 0x1.8p23f;
  const FloatVector clamped = value > 0.0f ? value : FloatVector{};
  return reinterpret_cast<IntVector>(clamped + kRounder) - std::bit_cast<std::int32_t>(kRounder);
}

// Values >= 0 to the nearest float whose last `kDropped` mantissa bits are 0, ties to even.
template <int kDropped>
FP8ATTN_INLINE FloatVector round_mantissa(FloatVector value) {
  const IntVector bits = reinterpret_cast<IntVector>(value);
  const IntVector rounded = bits + ((1 << (kDropped - 1)) - 1) + ((bits >> kDropped) & 1);
  return reinterpret_cast<FloatVector>(rounded & ~((1 << kDropped) - 1));
}

template <Probability kForm, class T>
FP8ATTN_INLINE VectorOf<T> probability(VectorOf<T> x) {
  if constexpr (kForm == Probability::kUnrounded) {
    return exp2_of<T>(x);
  } else if constexpr (kForm == Probability::kBF16) {
    return round_mantissa<16>(exp2_of<T>(x));
  } else if constexpr (kForm == Probability::kFP16) {
    const FloatVector p = exp2_of<T>(x);
    return p < 0x1p-14f ? (p + 0.5f) - 0.5f : round_mantissa<13>(p);
  } else if constexpr (kForm == Probability::kE4M3Exact) {
    const FloatVector p = 256.0f * exp2_of<T>(x);
    return p < 0x1p-6f ? (p + 16384.0f) - 16384.0f : round_mantissa<20>(p);
  } else if constexpr (kForm == Probability::kE4M3Default) {
    // In eighths of a code, behind each of the kernel's roundings.
    const IntVector n = round_to_code(8.0f * (8.0f * x + 119.75f));
    const FloatVector bend = 0x1.98p0f * (__builtin_convertvector(n & 63, FloatVector) - 32.0f) * 0x1p-6f;
    return value_of_code(round_to_code(8.0f * bend * bend + __builtin_convertvector(n, FloatVector)) >> 3);
  } else {
    return value_of_code(round_to_code(8.0f * x + 119.5625f));
  }
}

template <Probability kForm, class T>
FP8ATTN_INLINE T probabilities_body(T* scores, int count, T top, T factor) {
  BitsOf<T> lane;
  for (int i = 0; i < kLanes<T>; ++i) lane[i] = i;
  VectorOf<T> sums{};
  for (int i = 0; i < count; i += kLanes<T>) {
    const VectorOf<T> x = (vector_at(scores + i) - top) * factor;
    const VectorOf<T> p = probability<kForm, T>(x);
    const VectorOf<T> kept = x == x ? p : x;  // the bit forms would lose a NaN
    sums += lane < count - i ? kept : VectorOf<T>{};
    vector_at(scores + i) = kept;
  }
  T sum{0};
  for (int i = 0; i < kLanes<T>; ++i) sum += sums[i];
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

// destination[i] = value of source[i], by vectors; the last, partial one by way of a buffer: nothing past the end of
// the source is read.
template <class Codes, class Code, class ValueOf>
FP8ATTN_INLINE void unpack_body(const Code* source, float* destination, std::int64_t count, ValueOf value_of) {
  std::int64_t i = 0;
  for (; i + kLanes<float> <= count; i += kLanes<float>) {
    // Rows begin anywhere. Codes, a template argument, has lost the attribute that says so.
    Codes codes;
    std::memcpy(&codes, source + i, sizeof(codes));
    vector_at(destination + i) = value_of(__builtin_convertvector(codes, IntVector));
  }
  if (i == count) return;
  Codes codes{};
  std::memcpy(&codes, source + i, (count - i) * sizeof(Code));
  const FloatVector values = value_of(__builtin_convertvector(codes, IntVector));
  std::memcpy(destination + i, &values, (count - i) * sizeof(float));
}

struct ValueOfE4M3 {
  FP8ATTN_INLINE FloatVector operator()(IntVector code) const {
    const IntVector magnitude = code & 0x7F;
    const IntVector bits = reinterpret_cast<IntVector>(value_of_code(magnitude));
    return reinterpret_cast<FloatVector>((magnitude == 0x7F ? IntVector{} + 0x7FC00000 : bits) | ((code >> 7) << 31));
  }
};

struct ValueOfBF16 {
  FP8ATTN_INLINE FloatVector operator()(IntVector code) const { return reinterpret_cast<FloatVector>(code << 16); }
};

struct ValueOfFP16 {
  FP8ATTN_INLINE FloatVector operator()(IntVector code) const {
    const IntVector magnitude = code & 0x7FFF;
    const FloatVector subnormal = __builtin_convertvector(magnitude, FloatVector) * 0x1p-24f;
    const IntVector bias = magnitude >= 0x7C00 ? IntVector{} + (224 << 23) : IntVector{} + (112 << 23);
    const IntVector bits = magnitude < 0x400 ? reinterpret_cast<IntVector>(subnormal) : (magnitude << 13) + bias;
    return reinterpret_cast<FloatVector>(bits | ((code >> 15) << 31));
  }
};

FP8ATTN_CLONES void unpack_e4m3(const std::uint8_t* source, float* destination, std::int64_t count) {
  unpack_body<ByteVector>(source, destination, count, ValueOfE4M3{});
}
FP8ATTN_CLONES void unpack_bf16(const std::uint16_t* source, float* destination, std::int64_t count) {
  unpack_body<ShortVector>(source, destination, count, ValueOfBF16{});
}
FP8ATTN_CLONES void unpack_fp16(const std::uint16_t* source, float* destination, std::int64_t count) {
  unpack_body<ShortVector>(source, destination, count, ValueOfFP16{});
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

FP8ATTN_CLONES void multiply_row_13bit(const float* a, const float* b, std::int64_t b_stride, float* c, int begin,
                                       int end, int columns) {
  for (int column = 0; column < columns; column += kLanes<float>) {
    FloatVector sum{};
    for (int i = begin, next; i < end; i = next) {
      next = std::min((i / kAccumulatorGroup + 1) * kAccumulatorGroup, end);
      add_group_13bit(sum, a + i, b + i * b_stride + column, b_stride, next - i);
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

void cap_scores(float* scores, int count, float factor, float softcap) {
  for (int i = 0; i < count; ++i) scores[i] = softcap * std::tanh(scores[i] * factor);
}
void cap_scores(double* scores, int count, double factor, double softcap) {
  for (int i = 0; i < count; ++i) scores[i] = softcap * std::tanh(scores[i] * factor);
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
