// The order of query tiles, which the kernels and their launcher share. No GPU needed.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <set>
#include <tuple>
#include <vector>

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

// What a tile costs under a causal mask: as many blocks of keys as its index and one, and something for the tile.
int cost(const TileCoordinates& tile) { return tile.query_tile + 1 + 2; }

TEST(TileOrder, VisitsEveryTileOnce) {
  for (int query_tiles : {1, 2, 3, 8, 33}) {
    for (int heads : {1, 5, 12}) {
      for (int batch : {1, 3}) {
        for (bool causal : {false, true}) {
          for (int ctas : {1, 7, 132}) {
            const int grid = std::min(ctas, query_tiles * heads * batch);
            const TileOrder order(query_tiles, heads, heads * batch, causal, grid);
            std::set<std::tuple<int, int, int>> seen;
            int visited = 0;
            for (int round = 0; round < order.rounds(); ++round) {
              for (int cta = 0; cta < grid; ++cta) {
                TileCoordinates tile{};
                if (!order.at(round, cta, grid, tile)) continue;
                ASSERT_TRUE(tile.query_tile >= 0 && tile.query_tile < query_tiles);
                ASSERT_TRUE(tile.head >= 0 && tile.head < heads);
                ASSERT_TRUE(tile.batch >= 0 && tile.batch < batch);
                seen.emplace(tile.query_tile, tile.head, tile.batch);
                ++visited;
              }
            }
            EXPECT_EQ(visited, order.tiles());
            EXPECT_EQ(static_cast<int>(seen.size()), order.tiles());
          }
        }
      }
    }
  }
}

// The longest sum of costs of a CTA over the mean one.
double imbalance(int query_tiles, int heads, int ctas) {
  const TileOrder order(query_tiles, heads, heads, true, ctas);
  std::vector<double> loads(ctas, 0.0);
  for (int round = 0; round < order.rounds(); ++round) {
    for (int cta = 0; cta < ctas; ++cta) {
      TileCoordinates tile{};
      if (order.at(round, cta, ctas, tile)) loads[cta] += cost(tile);
    }
  }
  const double sum = std::accumulate(loads.begin(), loads.end(), 0.0);
  return *std::max_element(loads.begin(), loads.end()) * ctas / sum;
}

TEST(TileOrder, CausalLoadsAreEven) {
  // 16384 tokens of 16 heads on 132 multiprocessors: 7.76 pairs of tiles a CTA, so pairs alone would give 1.031.
  EXPECT_LT(imbalance(128, 16, 132), 1.015);
  EXPECT_LT(imbalance(32, 64, 132), 1.015);
  EXPECT_LT(imbalance(8, 256, 132), 1.015);
  EXPECT_LT(imbalance(512, 16, 132), 1.015);
  EXPECT_LT(imbalance(86, 32, 132), 1.025);  // 1.055
  // Few tiles: the longest come first.
  EXPECT_LT(imbalance(64, 4, 132), 1.05);
}

TEST(TileOrder, LastTilesOfPairsAreSpread) {
  // 132 CTAs are a multiple of six tiles: in fixed places 22 of them would get all last ones.
  const TileOrder order(6, 512, 512, false, 132);
  std::vector<int> last(132, 0);
  for (int round = 0; round < order.rounds(); ++round) {
    for (int cta = 0; cta < 132; ++cta) {
      TileCoordinates tile{};
      if (order.at(round, cta, 132, tile)) last[cta] += tile.query_tile == 5;
    }
  }
  EXPECT_GE(*std::min_element(last.begin(), last.end()), 3);
  EXPECT_LE(*std::max_element(last.begin(), last.end()), 4);
}

}  // namespace
}  // namespace fp8attn::cuda
