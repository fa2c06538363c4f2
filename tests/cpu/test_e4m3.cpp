// The e4m3 codec against its definition: values built from the bit fields, conversion by search for the nearest value.
#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include "fp8attn/e4m3.h"
#ifdef FP8ATTN_TEST_CUDA_FP8
#include <cuda_fp8.h>
#endif

namespace fp8attn {
namespace {

static_assert(e4m3_from_float(1.0f) == 0x38, "constant expressions work");
static_assert(e4m3_to_float(0x7E) == kE4M3Max, "constant expressions work");

constexpr int kNaN = 0x7F;

double value_of(int code) {
  const int exponent = (code >> 3) & 15, mantissa = code & 7;
  const double magnitude = exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(8 + mantissa, exponent - 10);
  return code & 0x80 ? -magnitude : magnitude;
}

// Nearest of all codes of the input's sign; of two equally near ones that with an even mantissa.
int nearest_code(float value) {
  if (std::isnan(value)) return kNaN;
  static const std::array values = [] {
    std::array<double, kNaN> all{};
    for (int code = 0; code < kNaN; ++code) all[code] = value_of(code);
    return all;
  }();
  const double magnitude = std::fabs(static_cast<double>(value));
  int best = 0;
  for (int code = 1; code < kNaN; ++code) {
    const double distance = std::fabs(values[code] - magnitude), best_distance = std::fabs(values[best] - magnitude);
    if (distance < best_distance || (distance == best_distance && code % 2 == 0)) best = code;
  }
  // All codes are infinitely far from infinity.
  if (std::isinf(value)) best = kNaN - 1;
  return best | (std::signbit(value) ? 0x80 : 0);
}

float bf16_value(int code) { return std::bit_cast<float>(static_cast<std::uint32_t>(code) << 16); }

void expect_nearest(float value) {
  ASSERT_EQ(e4m3_from_float(value), nearest_code(value))
      << "value " << value << ", bits 0x" << std::hex << std::bit_cast<std::uint32_t>(value);
}

TEST(E4M3, EveryCodeHasTheValueOfItsBitFields) {
  for (int code = 0; code < 256; ++code) {
    const float value = e4m3_to_float(static_cast<std::uint8_t>(code));
    if ((code & 0x7F) == kNaN) {
      EXPECT_TRUE(std::isnan(value)) << code;
    } else {
      EXPECT_EQ(value, value_of(code)) << code;
      EXPECT_EQ(std::signbit(value), code >= 0x80) << code;
      EXPECT_EQ(e4m3_from_float(value), code);
    }
  }
}

TEST(E4M3, EveryBf16BecomesTheNearestCode) {
  for (int code = 0; code < 65536 && !HasFatalFailure(); ++code) expect_nearest(bf16_value(code));
}

TEST(E4M3, TiesGoToEvenAndTheirNeighboursToTheNearerSide) {
  for (int code = 0; code + 1 < kNaN; ++code) {
    const auto tie = static_cast<float>((value_of(code) + value_of(code + 1)) / 2);
    EXPECT_EQ(e4m3_from_float(tie), code % 2 == 0 ? code : code + 1);
    EXPECT_EQ(e4m3_from_float(-tie), (code % 2 == 0 ? code : code + 1) | 0x80);
    EXPECT_EQ(e4m3_from_float(std::nextafter(tie, 0.0f)), code);
    EXPECT_EQ(e4m3_from_float(std::nextafter(tie, 1000.0f)), code + 1);
  }
}

TEST(E4M3, FloatsOfAllMagnitudesBecomeTheNearestCode) {
  constexpr std::uint64_t kStep = 16381;  // prime: all bit positions change
  for (std::uint64_t bits = 0; bits <= 0xFFFFFFFFu && !HasFatalFailure(); bits += kStep) {
    expect_nearest(std::bit_cast<float>(static_cast<std::uint32_t>(bits)));
  }
}

TEST(E4M3, Specials) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  constexpr float kQuiet = std::numeric_limits<float>::quiet_NaN();
  struct Special {
    float value;
    int code;
  };
  for (const auto [value, code] : std::initializer_list<Special>{
           {0.0f, 0x00},
           {-0.0f, 0x80},
           {448.0f, 0x7E},
           {449.0f, 0x7E},
           {464.0f, 0x7E},
           {465.0f, 0x7E},
           {-465.0f, 0xFE},
           {std::numeric_limits<float>::max(), 0x7E},
           {kInf, 0x7E},
           {-kInf, 0xFE},
           {kQuiet, 0x7F},
           {-kQuiet, 0x7F},
           {0x1p-6f, 0x08},          // smallest normal
           {0x1p-9f, 0x01},          // smallest subnormal
           {0x1p-10f, 0x00},         // half of it: a tie
           {0x1.000002p-10f, 0x01},  // just above the tie
           {-0x1p-11f, 0x80},        // keeps its sign
           {std::numeric_limits<float>::denorm_min(), 0x00},
       }) {
    EXPECT_EQ(e4m3_from_float(value), code) << value;
  }
}

#ifdef FP8ATTN_TEST_CUDA_FP8
TEST(E4M3, EveryBf16BecomesTheCodeOfCudasConversion) {
  for (int code = 0; code < 65536; ++code) {
    const float value = bf16_value(code);
    ASSERT_EQ(e4m3_from_float(value), __nv_cvt_float_to_fp8(value, __NV_SATFINITE, __NV_E4M3)) << std::hex << code;
  }
}
#endif

}  // namespace
}  // namespace fp8attn
