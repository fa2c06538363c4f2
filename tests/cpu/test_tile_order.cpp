// The order of query tiles, which the kernels and their launcher share. No GPU needed.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <tuple>

#include "cuda/sm90/tile/tile_order.h"

namespace fp8attn::cuda {
namespace {

TEST(Divisor, DividesLikeTheProcessor) {
  for (int divisor : {1, 2, 3, 5, 7, 12, 16, 63, 64, 65, 1000, 4097, 65535, 65536, 1 << 30, 2147483647}) {
    const Divisor fast(divisor);
    for (int near : {0, 1, divisor - 1, divisor, divisor / 2, 1 << 20, 2147483647 - divisor, 2147483646}) {
      for (int offset : {-1, 0, 1}) {
        const int dividend = near + offset;
        if (dividend < 0) continue;
        EXPECT_EQ(fast.divide(dividend), dividend / divisor) << dividend << " / " << divisor;
      }
    }
  }
}

TEST(TileOrder, VisitsEveryTileOnce) {
  for (int query_tiles : {1, 3, 8}) {
    for (int heads : {1, 5, 12}) {
      for (int batch : {1, 3}) {
        for (int per_section : {1, 2, 4, 7, 36}) {
          const TileOrder order(query_tiles, heads, heads * batch, std::min(per_section, heads * batch));
          ASSERT_EQ(order.count(), query_tiles * heads * batch);
          std::set<std::tuple<int, int, int>> seen;
          for (int i = 0; i < order.count(); ++i) {
            const TileCoordinates tile = order.at(i);
            EXPECT_TRUE(tile.query_tile >= 0 && tile.query_tile < query_tiles);
            EXPECT_TRUE(tile.head >= 0 && tile.head < heads);
            EXPECT_TRUE(tile.batch >= 0 && tile.batch < batch);
            seen.emplace(tile.query_tile, tile.head, tile.batch);
          }
          EXPECT_EQ(static_cast<int>(seen.size()), order.count());
        }
      }
    }
  }
}

TEST(TileOrder, LongestTilesFirstWithinASection) {
  const TileOrder order(8, 4, 8, 4);
  for (int i = 1; i < 8 * 4; ++i) EXPECT_LE(order.at(i).query_tile, order.at(i - 1).query_tile);
  EXPECT_EQ(order.at(0).query_tile, 7);
  EXPECT_EQ(order.at(8 * 4).query_tile, 7);
  EXPECT_EQ(order.at(8 * 4).batch, 1);
}

}  // namespace
}  // namespace fp8attn::cuda
