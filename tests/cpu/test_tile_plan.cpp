// What the kernels' tiles load, compute and mask. No GPU needed.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include "api/view_checks.h"
#include "cuda/sm90/tile/tile_plan.h"

namespace fp8attn::cuda {
namespace {

// Warpgroups, blocks of a step, and stages, as the kernels have them.
template <int kWarpgroups_, int kBlocksPerStep_, int kStages_>
struct Kernel {
  static constexpr int kWarpgroups = kWarpgroups_, kBlocksPerStep = kBlocksPerStep_, kStages = kStages_;
  static constexpr int kStep = kPlanBlock * kBlocksPerStep, kTileRows = kPlanRows * kWarpgroups;
  using Plan = TilePlan<kWarpgroups>;

  // Where the keys of step `step` of a tile begin, of a sequence.
  static int key_of(const Plan& plan, int step) { return plan.first_block * kPlanBlock + step * kStep; }

  static Plan plan(const Mask& mask, int row, bool ragged = false, const Plan* previous = nullptr) {
    Plan plan{};
    plan.row = row;
    plan.template plan_steps<kBlocksPerStep>(mask, ragged, previous);
    return plan;
  }
};

std::vector<Mask> masks() {
  std::vector<Mask> masks;
  for (int queries : {1, 63, 64, 65, 200, 300}) {
    for (int keys : {0, 1, 64, 65, 255, 256, 300, 700}) {
      for (int window : {-1, 0, 1, 63, 64, 100, 256, 300}) {
        for (bool causal : {false, true}) masks.push_back({queries, keys, causal, window});
      }
    }
  }
  return masks;
}

std::string text(const Mask& mask, int row) {
  return std::to_string(mask.query_length) + " queries from row " + std::to_string(row) + ", " +
         std::to_string(mask.key_length) + (mask.causal ? " keys, causal, window " : " keys, window ") +
         std::to_string(mask.window_left);
}

template <class K>
class TilePlans : public testing::Test {};
using Kernels = testing::Types<Kernel<2, 4, 2>, Kernel<3, 4, 4>, Kernel<3, 2, 4>, Kernel<2, 2, 2>, Kernel<2, 1, 2>>;
TYPED_TEST_SUITE(TilePlans, Kernels);

TYPED_TEST(TilePlans, HaveLastStepsOfTwoLengths) {
  constexpr int kShort = short_step(TypeParam::kBlocksPerStep);
  const auto is_a_length = [&](int blocks) { return blocks == kShort || blocks == TypeParam::kBlocksPerStep; };
  for (const Mask& mask : masks()) {
    const auto plan = TypeParam::plan(mask, 0);
    EXPECT_TRUE(is_a_length(plan.last_blocks)) << text(mask, 0);
    for (const WarpgroupPlan& part : plan.warpgroup) {
      EXPECT_TRUE(part.steps == 0 || is_a_length(part.last_blocks)) << text(mask, 0);
    }
  }
}

TYPED_TEST(TilePlans, DoAllThatARowSees) {
  for (const Mask& mask : masks()) {
    for (int row = 0; row < mask.query_length; row += TypeParam::kTileRows) {
      const auto plan = TypeParam::plan(mask, row);
      const int loaded_begin = TypeParam::key_of(plan, 0);
      const int loaded_end = TypeParam::key_of(plan, plan.steps - 1) + plan.last_blocks * kPlanBlock;
      for (int i = 0; i < TypeParam::kWarpgroups; ++i) {
        const WarpgroupPlan& part = plan.warpgroup[i];
        if (row + i * kPlanRows >= mask.query_length) {
          ASSERT_EQ(part.steps, 0) << text(mask, row);
          continue;
        }
        const int begin = TypeParam::key_of(plan, part.first_step);
        const int end = TypeParam::key_of(plan, part.first_step + part.steps - 1) + part.last_blocks * kPlanBlock;
        ASSERT_GE(part.steps, 1) << text(mask, row);
        ASSERT_TRUE(begin >= loaded_begin && end <= loaded_end) << text(mask, row);
        for (int r = row + i * kPlanRows; r < std::min(row + (i + 1) * kPlanRows, mask.query_length); ++r) {
          if (mask.visible_begin(r) == mask.visible_end(r)) continue;
          ASSERT_TRUE(begin <= mask.visible_begin(r) && mask.visible_end(r) <= end) << text(mask, row) << ", row " << r;
        }
      }
    }
  }
}

// A first or last short step of which no row sees a key would be loaded for nothing.
TYPED_TEST(TilePlans, LoadNothingThatTheMaskHides) {
  for (const Mask& mask : masks()) {
    for (int row = 0; row < mask.query_length; row += TypeParam::kTileRows) {
      const auto plan = TypeParam::plan(mask, row);
      const int last = row + TypeParam::kTileRows - 1;
      constexpr int kShort = short_step(TypeParam::kBlocksPerStep) * kPlanBlock;
      const int end = TypeParam::key_of(plan, plan.steps - 1) + plan.last_blocks * kPlanBlock;
      const bool sees_none = mask.visible_begin(row) == mask.visible_end(last);
      EXPECT_TRUE(sees_none || mask.visible_begin(row) < TypeParam::key_of(plan, 0) + kShort) << text(mask, row);
      EXPECT_LT(end - kShort, std::max(mask.visible_end(last), 1)) << text(mask, row);
      EXPECT_EQ(plan.first_block % short_step(TypeParam::kBlocksPerStep), 0) << text(mask, row);
    }
  }
}

TYPED_TEST(TilePlans, MaskWhatSomeRowDoesNotSee) {
  for (const Mask& mask : masks()) {
    for (int row = 0; row < mask.query_length; row += TypeParam::kTileRows) {
      const auto plan = TypeParam::plan(mask, row);
      for (int i = 0; i < TypeParam::kWarpgroups; ++i) {
        const WarpgroupPlan& part = plan.warpgroup[i];
        const int first = row + i * kPlanRows, last = first + kPlanRows - 1;
        for (int step = 0; step < part.steps; ++step) {
          const int begin = TypeParam::key_of(plan, part.first_step + step);
          const bool all = mask.visible_begin(last) <= begin && begin + TypeParam::kStep <= mask.visible_end(first);
          ASSERT_EQ(part.masks(step), !all) << text(mask, row) << ", step " << step;
        }
      }
    }
  }
}

// Tiles in any order: every warpgroup passes over or does each stage that is loaded, and finds its own last step where
// it looks for it.
TYPED_TEST(TilePlans, StagesAreCountedAlikeByAll) {
  using Plan = typename TypeParam::Plan;
  const std::vector<Mask> all = masks();
  std::array<int, TypeParam::kWarpgroups> position{};
  int loaded = 0;
  Plan previous{};
  for (std::size_t k = 0; k < all.size(); ++k) {
    const Mask& mask = all[k * 37 % all.size()];
    for (int row = 0; row < mask.query_length; row += TypeParam::kTileRows) {
      const Plan plan = TypeParam::plan(mask, row, false, loaded == 0 ? nullptr : &previous);
      for (int i = 0; i < TypeParam::kWarpgroups; ++i) {
        const WarpgroupPlan& part = plan.warpgroup[i];
        // More, and a warpgroup with rows would wait for a stage whose place it has not given back.
        ASSERT_TRUE(part.steps == 0 || part.skipped < TypeParam::kStages) << text(mask, row);
        position[i] += part.skipped;
        // Stages of the tile's steps come from the last step to the first.
        ASSERT_EQ(position[i] - loaded, plan.steps - (part.first_step + part.steps)) << text(mask, row);
        position[i] += part.steps;
      }
      loaded += plan.steps;
      previous = plan;
    }
  }
  Plan end{};
  end.plan_end(&previous);
  EXPECT_TRUE(end.is_none());
  for (int i = 0; i < TypeParam::kWarpgroups; ++i) EXPECT_EQ(position[i] + end.warpgroup[i].skipped, loaded);
}

TYPED_TEST(TilePlans, SayWhereTheSequenceEnds) {
  for (const Mask& mask : masks()) {
    for (int row = 0; row < mask.query_length; row += TypeParam::kTileRows) {
      const auto dense = TypeParam::plan(mask, row), ragged = TypeParam::plan(mask, row, true);
      EXPECT_EQ(dense.last_tokens, mask.key_length - TypeParam::key_of(dense, dense.steps - 1)) << text(mask, row);
      for (int i = 0; i < TypeParam::kWarpgroups; ++i) {
        EXPECT_EQ(dense.warpgroup[i].rows, kPlanRows);
        EXPECT_EQ(ragged.warpgroup[i].rows, std::clamp(mask.query_length - row - i * kPlanRows, 0, kPlanRows));
      }
    }
  }
}

// Nothing leaves 32 bits.
TEST(TilePlan, LongSequences) {
  constexpr int kLongest = static_cast<int>(kMaxDim);
  const Mask mask{1, kLongest, true, 100};
  const auto plan = Kernel<2, 4, 2>::plan(mask, 0);
  EXPECT_EQ(plan.first_block, (kLongest - 101) / 128 * 2);
  EXPECT_EQ(plan.steps, 1);
  EXPECT_EQ(plan.last_blocks, 2);
  EXPECT_EQ(plan.last_tokens, kLongest - (kLongest - 101) / 128 * 128);
}

}  // namespace
}  // namespace fp8attn::cuda
