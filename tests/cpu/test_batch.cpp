// Where sequences begin and end, which the kernels read from the caller's offsets, lengths and tables. No GPU needed.
#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <limits>
#include <vector>

#include "cuda/sm90/tile/batch.h"

namespace fp8attn::cuda {
namespace {

template <class Index>
IndexView view(const std::vector<Index>& values, int64_t stride = 1, int64_t inner_stride = 1) {
  return {.data = values.data(), .strides = {stride, inner_stride, 0}, .is_int64 = sizeof(Index) == 8};
}

void expect_extent(const Extent& extent, int start, int length) {
  EXPECT_EQ(extent.start, start);
  EXPECT_EQ(extent.length, length);
}

TEST(BatchView, DenseSequencesHaveWholeEntries) {
  const BatchView batch{.sequences = 3, .query_capacity = 5, .key_capacity = 70, .aligned_capacity = 128};
  EXPECT_FALSE(batch.uneven());
  expect_extent(batch.queries(2), 0, 5);
  expect_extent(batch.keys(2), 0, 70);
  EXPECT_EQ(batch.aligned_start(2), 256);
  EXPECT_EQ(batch.aligned_positions(), 384);
}

template <class Index>
class BatchIndices : public testing::Test {};
using Indices = testing::Types<std::int32_t, std::int64_t>;
TYPED_TEST_SUITE(BatchIndices, Indices);

TYPED_TEST(BatchIndices, OffsetsAreClampedToTheTensor) {
  // Below 0, in order, back, beyond the end.
  const std::vector<TypeParam> offsets = {-7, 3, 10, 8, 200, std::numeric_limits<TypeParam>::max()};
  const BatchView batch{.sequences = 5,
                        .query_capacity = 100,
                        .key_capacity = 150,
                        .q_offsets = view(offsets),
                        .kv_offsets = view(offsets)};
  EXPECT_TRUE(batch.uneven());
  const std::array<Extent, 5> queries = {{{0, 3}, {3, 7}, {10, 0}, {8, 92}, {100, 0}}};
  const std::array<Extent, 5> keys = {{{0, 3}, {3, 7}, {10, 0}, {8, 142}, {150, 0}}};
  for (int i = 0; i < 5; ++i) {
    expect_extent(batch.queries(i), queries[i].start, queries[i].length);
    expect_extent(batch.keys(i), keys[i].start, keys[i].length);
  }
}

TYPED_TEST(BatchIndices, LengthsAreClampedToTheCapacity) {
  const std::vector<TypeParam> lengths = {-1, 99, 0, 99, 33, 99, 64, 99, std::numeric_limits<TypeParam>::max()};
  const BatchView batch{.sequences = 5, .query_capacity = 1, .key_capacity = 64, .kv_lengths = view(lengths, 2)};
  EXPECT_TRUE(batch.uneven());
  const std::array<int, 5> expected = {0, 0, 33, 64, 64};
  for (int i = 0; i < 5; ++i) expect_extent(batch.keys(i), 0, expected[i]);
}

TYPED_TEST(BatchIndices, TablesNamePagesOrNone) {
  // Rows of two pages, transposed.
  const std::vector<TypeParam> table = {4, 5, -1, 0, std::numeric_limits<TypeParam>::min(), 3};
  const BatchView batch{
      .sequences = 3, .key_capacity = 32, .block_table = view(table, 1, 3), .page_size = 16, .pages = 5};
  EXPECT_EQ(batch.page(0, 0), 4);
  EXPECT_EQ(batch.page(0, 1), 0);
  EXPECT_EQ(batch.page(1, 0), -1);  // 5 of 5
  EXPECT_EQ(batch.page(1, 1), -1);
  EXPECT_EQ(batch.page(2, 0), -1);
  EXPECT_EQ(batch.page(2, 1), 3);
}

TYPED_TEST(BatchIndices, AlignedSequencesDoNotOverlap) {
  const std::vector<TypeParam> offsets = {0, 63, 64, 64, 65, 193, 256};
  const BatchView batch{.sequences = 6, .key_capacity = 256, .kv_offsets = view(offsets), .aligned_capacity = 256};
  int end = 0;
  for (int i = 0; i < 6; ++i) {
    EXPECT_EQ(batch.aligned_start(i) % BatchView::kAlignment, 0);
    EXPECT_GE(batch.aligned_start(i), end) << i;
    end = batch.aligned_start(i) + (batch.keys(i).length + 63) / 64 * 64;
  }
  EXPECT_LE(end, batch.aligned_positions());
}

}  // namespace
}  // namespace fp8attn::cuda
