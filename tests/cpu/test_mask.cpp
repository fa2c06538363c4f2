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

constexpr int kWidest = clamped_window(0x7FFFFFFFFFFFFFFF);

static_assert(Mask{kLongest, 0, true, kWidest}.visible_begin(0) == 0);
static_assert(Mask{kLongest, 0, false, 0}.visible_begin(kLongest - 1) == 0);
static_assert(Mask{1, kLongest, true, kWidest}.visible_begin(kPastTheEnd) == 0);
static_assert(Mask{1, kLongest, true, 0}.visible_begin(0) == kLongest - 1);
static_assert(Mask{1, kLongest, false, 0}.visible_begin(kPastTheEnd) == kLongest);
static_assert(Mask{kLongest, kLongest, true, kLongest - 2}.visible_begin(kLongest - 1) == 1);
static_assert(Mask{kLongest, kLongest, true, kLongest - 1}.visible_begin(kLongest - 1) == 0);
static_assert(Mask{kLongest, kLongest, true, kWidest}.visible_begin(kLongest + kPastTheEnd) == 0);

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

TEST(Mask, L_WindowsCountKeysBeforeTheDiagonal) {
  for (int query_length : {1, 5, 70}) {
    for (int key_length : {0, 1, 5, 69, 200}) {
      for (int window : {-1, 0, 1, 4, 63, 68, 69, 199, 200, kWidest}) {
        for (bool causal : {false, true}) {
          const Mask mask{query_length, key_length, causal, window};
          for (int row = 0; row < query_length; ++row) {
            const int diagonal = row + key_length - query_length;
            for (int key = 0; key < key_length; ++key) {
              const bool visible = (!causal || key <= diagonal) && (window < 0 || diagonal - key <= window);
              ASSERT_EQ(key >= mask.visible_begin(row) && key < mask.visible_end(row), visible)
                  << "key " << key << ", row " << row << " of " << query_length << " by " << key_length << ", window "
                  << window;
            }
            ASSERT_LE(mask.visible_begin(row), mask.visible_end(row));
          }
        }
      }
    }
  }
}

TEST(Mask, L_WindowsAreClamped) {
  EXPECT_EQ(clamped_window(-1), -1);
  EXPECT_EQ(clamped_window(-0x7FFFFFFFFFFFFFFF), -1);
  EXPECT_EQ(clamped_window(0), 0);
  EXPECT_EQ(clamped_window(0x7FFFFFFF), 0x7FFFFFFF);
  EXPECT_EQ(clamped_window(0x80000000), 0x7FFFFFFF);
  EXPECT_EQ(clamped_window(0x1FFFFFFFF), 0x7FFFFFFF);
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
