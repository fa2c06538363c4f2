// The mask's arithmetic where lengths are as long as validation accepts.
#include <gtest/gtest.h>

#include <cstdint>

#include "api/mask.h"
#include "api/view_checks.h"

namespace fp8attn::test {
namespace {

constexpr int kLongest = static_cast<int>(kMaxDim);
constexpr int kPastTheEnd = 255;  // rows that a tile may have behind the last query

// Constant expressions: an overflow on the way does not compile.
static_assert(Mask{kLongest, kLongest, true}.visible_end(0) == 1);
static_assert(Mask{kLongest, kLongest, true}.visible_end(kLongest - 1) == kLongest);
static_assert(Mask{kLongest, kLongest, true}.visible_end(kLongest + kPastTheEnd) == kLongest);
static_assert(Mask{kLongest, 1, true}.visible_end(kLongest - 1) == 1);
static_assert(Mask{kLongest, 0, true}.visible_end(0) == 0);
static_assert(Mask{1, kLongest, true}.visible_end(0) == kLongest);
static_assert(Mask{1, kLongest, true}.visible_end(kPastTheEnd) == kLongest);

TEST(Mask, L_BottomRightAligned) {
  for (int query_length : {1, 5, 70}) {
    for (int key_length : {0, 1, 5, 69, 200}) {
      for (int row = 0; row < query_length; ++row) {
        int visible = 0;
        for (int key = 0; key < key_length; ++key) visible += key <= row + key_length - query_length;
        EXPECT_EQ((Mask{query_length, key_length, true}.visible_end(row)), visible);
        EXPECT_EQ((Mask{query_length, key_length, false}.visible_end(row)), key_length);
      }
    }
  }
}

TEST(Mask, H_LengthsAreClampedAndIndicesChecked) {
  EXPECT_EQ(clamped_length(-1, 10), 0);
  EXPECT_EQ(clamped_length(0, 10), 0);
  EXPECT_EQ(clamped_length(10, 10), 10);
  EXPECT_EQ(clamped_length(11, 10), 10);
  EXPECT_EQ(clamped_length(0x7FFFFFFFFFFFFFFF, kLongest), kLongest);
  EXPECT_EQ(clamped_length(-0x7FFFFFFFFFFFFFFF, kLongest), 0);
  EXPECT_TRUE(is_among(0, 3) && is_among(2, 3));
  EXPECT_FALSE(is_among(-1, 3) || is_among(3, 3) || is_among(0, 0) || is_among(std::int64_t{1} << 40, 3));
}

}  // namespace
}  // namespace fp8attn::test
