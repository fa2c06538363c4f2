// The inner loops of the CPU prefill, compiled for several instruction sets and picked when the program starts.
#pragma once

#include <cstdint>

#include "fp8attn/tensor.h"

namespace fp8attn::cpu {

inline constexpr int kRowBlock = 4;           // rows of A that multiply() keeps in registers
inline constexpr int kColumnBlock = 16;       // columns of B that multiply() keeps in registers
inline constexpr int kAccumulatorGroup = 32;  // products that one fp8 tensor-core instruction adds up

// How 2^x becomes the factor that multiplies V.
enum class Probability : std::uint8_t {
  kUnrounded,    // 2^x
  kBF16,         // 2^x to the nearest bf16
  kFP16,         // 2^x to the nearest fp16
  kE4M3Exact,    // e4m3(2^(x + 8))
  kE4M3Default,  // the e4m3 code of 2^(x + 8) by a quadratic in the fraction of x
  kE4M3Fast,     // the e4m3 code of 2^(x + 8) by a linear function of x
};

// destination[i] = value of source[i], `count` elements of an input dtype.
void unpack(const void* source, DType dtype, float* destination, std::int64_t count);

// C = A * B. A: [rows, depth], B: [depth, columns], C: [rows, columns], row-major with the given row strides. rows is a
// multiple of kRowBlock, columns of kColumnBlock.
void multiply(const float* a, std::int64_t a_stride, const float* b, std::int64_t b_stride, float* c,
              std::int64_t c_stride, int rows, int depth, int columns);
void multiply(const double* a, std::int64_t a_stride, const double* b, std::int64_t b_stride, double* c,
              std::int64_t c_stride, int rows, int depth, int columns);

// c += a * B for one row: a: [depth], B: [depth, columns].
void multiply_add_row(const float* a, const float* b, std::int64_t b_stride, float* c, int depth, int columns);
void multiply_add_row(const double* a, const double* b, std::int64_t b_stride, double* c, int depth, int columns);

// c = a * B for one row with the model of the fp8 tensor core's accumulator (docs/kernels/cpu.md), of the elements
// [begin, end) of a and rows of B. Groups begin at multiples of kAccumulatorGroup.
void multiply_row_13bit(const float* a, const float* b, std::int64_t b_stride, float* c, int begin, int end,
                        int columns);

// One row of scores, in place: rounded to the 11 significant bits of a half where `half` is set, times factors[i] where
// factors is given, negated where `negate` is set. Returns their maximum, -infinity for none.
float prepare_scores(float* scores, const float* factors, int count, bool half, bool negate);
double prepare_scores(double* scores, const double* factors, int count, bool half, bool negate);

// scores[i] becomes softcap * tanh(scores[i] * factor).
void cap_scores(float* scores, int count, float factor, float softcap);
void cap_scores(double* scores, int count, double factor, double softcap);

// scores[i] becomes the probability of x = (scores[i] - top) * factor, x in log2 units. Returns their sum. Elements up
// to a multiple of kColumnBlock are overwritten.
float probabilities(Probability form, float* scores, int count, float top, float factor);
double probabilities(Probability form, double* scores, int count, double top, double factor);

}  // namespace fp8attn::cpu
