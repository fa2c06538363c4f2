// The list of an uneven batch's tiles and the walk over it, which kernel, launcher and planning kernel share. No GPU
// needed.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <random>
#include <set>
#include <tuple>
#include <vector>

#include "cuda/sm90/tile/tile_list.h"
#include "tile_list_reference.h"

namespace fp8attn::cuda {
namespace {

constexpr int kCtas = 132;

// Ragged queries and keys of as many tokens, with `prefix` keys before them.
struct Ragged {
  std::vector<std::int32_t> q_offsets = {0}, kv_offsets = {0};

  explicit Ragged(const std::vector<int>& lengths, int prefix = 0) {
    for (int length : lengths) {
      q_offsets.push_back(q_offsets.back() + length);
      kv_offsets.push_back(kv_offsets.back() + length + prefix);
    }
  }

  UnevenTiles tiles(int tile_rows, int step_keys, int group_log2) const {
    const auto view = [](const std::vector<std::int32_t>& offsets) {
      return IndexView{.data = offsets.data(), .strides = {1, 0, 0}, .is_int64 = false};
    };
    return {.batch = {.sequences = static_cast<int>(q_offsets.size()) - 1,
                      .query_capacity = q_offsets.back(),
                      .key_capacity = kv_offsets.back(),
                      .q_offsets = view(q_offsets),
                      .kv_offsets = view(kv_offsets)},
            .causal = true,
            .tile_rows = Divisor(tile_rows),
            .step_keys = Divisor(step_keys),
            .group_log2 = group_log2};
  }
};

template <class Visit>
void walk(std::vector<TileEntry> entries, int heads, int ctas, Visit visit) {
  int count = static_cast<int>(entries.size());
  const TileList list{.entries = entries.data(), .count = &count, .capacity = count, .heads = Divisor(heads)};
  for (int round = 0; std::int64_t{round} * ctas < list.tiles(); ++round) {
    for (int cta = 0; cta < ctas; ++cta) {
      TileCoordinates tile{};
      if (list.at(round, cta, ctas, list.tiles(), tile)) visit(cta, tile);
    }
  }
}

TEST(TileList, VisitsEveryTileOfEverySequenceOnce) {
  const std::vector<int> lengths = {0, 1, 127, 128, 129, 0, 5000, 64, 0, 2049, 1};
  const Ragged batch(lengths);
  for (int group_log2 : {0, 2, 4}) {
    const UnevenTiles tiles = batch.tiles(128, 256, group_log2);
    const std::vector<TileEntry> entries = test::reference_tile_list(tiles);
    for (int heads : {1, 5, 16}) {
      for (int ctas : {1, 7, 132}) {
        std::set<std::tuple<int, int, int>> seen;
        int visited = 0;
        walk(entries, heads, ctas, [&](int, const TileCoordinates& tile) {
          ASSERT_TRUE(tile.batch >= 0 && tile.batch < static_cast<int>(lengths.size()));
          ASSERT_TRUE(tile.head >= 0 && tile.head < heads);
          ASSERT_TRUE(tile.query_tile >= 0 && tile.query_tile * 128 < lengths[tile.batch]);
          seen.emplace(tile.batch, tile.head, tile.query_tile);
          ++visited;
        });
        int expected = 0;
        for (int length : lengths) expected += (length + 127) / 128 * heads;
        EXPECT_EQ(visited, expected);
        EXPECT_EQ(static_cast<int>(seen.size()), expected);
      }
    }
  }
}

TEST(TileList, EntriesHoldTheirNumbers) {
  constexpr int kLastTile = (1 << 24) - 1;
  for (const auto& [sequence, first, position, count] :
       {std::tuple(2147483646, kLastTile, 15, 16), std::tuple(0, 0, 0, 1), std::tuple(7, 12, 3, 4)}) {
    const TileEntry entry(sequence, first, position, count);
    EXPECT_EQ(entry.sequence(), sequence);
    EXPECT_EQ(entry.first(), first);
    EXPECT_EQ(entry.position(), position);
    EXPECT_EQ(entry.count(), count);
  }
}

TEST(TileList, CostClassesFallWithTheCost) {
  EXPECT_EQ(UnevenTiles::cost_class(1), UnevenTiles::kClasses - 2);
  EXPECT_GE(UnevenTiles::cost_class(0x7FFFFFFF / 64 + 1), 0);
  int previous = UnevenTiles::kClasses;
  for (int steps = 1; steps < 100000; ++steps) {
    const int cost = UnevenTiles::cost_class(steps);
    ASSERT_LE(cost, previous);
    if (steps <= 15) {
      ASSERT_LT(cost, previous) << "few steps are told apart";
    }
    // A class spans an eighth of its cost at most.
    if (steps > 8 && steps % 8 == 0) {
      ASSERT_LT(UnevenTiles::cost_class(steps + steps / 8), cost);
    }
    previous = cost;
  }
}

// Steps as the kernel takes them: of the whole tile, from the first key that a row sees to the last.
TEST(UnevenTiles, L_MasksBoundTheSteps) {
  const Ragged batch({1000});
  UnevenTiles tiles = batch.tiles(128, 256, 0);
  const auto steps = [&](int tile) { return tiles.steps(tiles.mask(0), tile); };
  EXPECT_EQ(tiles.tiles(tiles.mask(0)), 8);
  EXPECT_EQ(steps(0), 1);
  EXPECT_EQ(steps(1), 1);
  EXPECT_EQ(steps(2), 2);
  EXPECT_EQ(steps(7), 4);
  tiles.window_left = 100;
  EXPECT_EQ(steps(7), 1);  // keys 796 to 999
  EXPECT_EQ(steps(6), 2);  // keys 668 to 895
  tiles.window_left = 0;
  EXPECT_EQ(steps(2), 1);
  tiles.causal = false;
  EXPECT_EQ(steps(2), 3);  // keys 256 to 999
  tiles.window_left = -1;
  EXPECT_EQ(steps(0), 4);

  // More queries than keys: the first tiles see none, and have a step all the same.
  std::vector<std::int32_t> few = {0, 300};
  tiles.causal = true;
  tiles.batch.kv_offsets.data = few.data();
  EXPECT_EQ(steps(0), 1);
  EXPECT_EQ(steps(7), 2);
}

// The longest sum of costs of a CTA over the mean one, or over the longest tile where that is more. A tile costs its
// steps and one more.
double imbalance(const Ragged& batch, int heads, int tile_rows, int step_keys) {
  UnevenTiles tiles = batch.tiles(tile_rows, step_keys, 0);
  std::int64_t count = 0;
  for (int i = 0; i < tiles.batch.sequences; ++i) count += tiles.tiles(tiles.mask(i));
  tiles.group_log2 = UnevenTiles::group_log2_for(count * heads, kCtas);
  std::vector<double> loads(kCtas, 0.0);
  double longest = 0;
  walk(test::reference_tile_list(tiles), heads, kCtas, [&](int cta, const TileCoordinates& tile) {
    const double cost = tiles.steps(tiles.mask(tile.batch), tile.query_tile) + 1;
    loads[cta] += cost;
    longest = std::max(longest, cost);
  });
  const double mean = std::accumulate(loads.begin(), loads.end(), 0.0) / kCtas;
  return *std::max_element(loads.begin(), loads.end()) / std::max(mean, longest);
}

std::vector<int> log_uniform(int count, double least, double most, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<int> lengths;
  for (int i = 0; i < count; ++i) {
    const double share = static_cast<double>(random()) / 4294967296.0;
    lengths.push_back(static_cast<int>(least * std::pow(most / least, share)));
  }
  return lengths;
}

TEST(TileList, G_UnevenLoadsAreEven) {
  for (unsigned seed = 0; seed < 4; ++seed) {
    const std::vector<int> lengths = log_uniform(64, 1, 32768, seed);
    EXPECT_LT(imbalance(Ragged(lengths), 16, 128, 256), 1.03) << seed;
    EXPECT_LT(imbalance(Ragged(lengths), 16, 192, 256), 1.03) << seed;
    EXPECT_LT(imbalance(Ragged(lengths), 16, 128, 64), 1.03) << seed;
    EXPECT_LT(imbalance(Ragged(lengths, 8192), 16, 128, 256), 1.03) << seed;
    EXPECT_LT(imbalance(Ragged(lengths), 2, 128, 256), 1.05) << seed;
  }
  // One sequence, few or many tiles a CTA.
  EXPECT_LT(imbalance(Ragged({131072}), 16, 128, 256), 1.01);
  EXPECT_LT(imbalance(Ragged({16384}), 16, 128, 256), 1.01);
  EXPECT_LT(imbalance(Ragged({4096}), 16, 128, 256), 1.04);
  EXPECT_LT(imbalance(Ragged({2048}), 16, 128, 256), 1.04);
  EXPECT_LT(imbalance(Ragged({4096}), 128, 128, 256), 1.04);
  // Thousands of tiny ones, alone and beside a long one.
  std::vector<int> lengths = log_uniform(4000, 1, 64, 1);
  EXPECT_LT(imbalance(Ragged(lengths), 16, 128, 256), 1.01);
  lengths.push_back(65536);
  EXPECT_LT(imbalance(Ragged(lengths), 16, 128, 256), 1.01);
}

// Of each step of the walk, most CTAs share their keys with others: the keys of all come from memory far less often
// than they are read.
TEST(TileList, NeighboursShareTheirKeys) {
  const Ragged batch(std::vector<int>(64, 4096));
  const UnevenTiles tiles = batch.tiles(128, 256, UnevenTiles::group_log2_for(64 * 32 * 16, kCtas));
  std::vector<std::pair<int, int>> round;
  std::size_t rounds = 0, streams = 0;
  walk(test::reference_tile_list(tiles), 16, kCtas, [&](int, const TileCoordinates& tile) {
    round.emplace_back(tile.batch, tile.head);
    if (round.size() < kCtas) return;
    ++rounds;
    streams += std::set(round.begin(), round.end()).size();
    round.clear();
  });
  EXPECT_LT(static_cast<double>(streams) / static_cast<double>(rounds), 10);
}

}  // namespace
}  // namespace fp8attn::cuda
