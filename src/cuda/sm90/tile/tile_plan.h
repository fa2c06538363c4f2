// What a query tile needs, worked out once by the thread that announces it: the warps that load and compute have no
// registers for such arithmetic. Host and device.
#pragma once

#include <cstdint>

#include "api/mask.h"

namespace fp8attn::cuda {

// Keys come in blocks of 64, the grain of loads, and these in steps, the unit of arithmetic. Step 0 of a tile begins
// with the first block that some row sees. A tile is walked from the step with its last keys to that with its first
// ones.
inline constexpr int kPlanRows = 64;  // query rows of a warpgroup
inline constexpr int kPlanBlock = 64;

// Blocks that the step with a tile's last keys has a multiple of: half of those of a step. Each length is code of its
// own, and all that a tile runs through has to fit the 32 KB of instruction cache (four lengths: 5% slower at d = 128).
FP8ATTN_HOST_DEVICE constexpr int short_step(int blocks_per_step) { return (blocks_per_step + 1) / 2; }

// What one warpgroup does of a tile. Its steps count from its own first one, which is 0.
struct WarpgroupPlan {
  int skipped;      // stages to pass over first: what only other warpgroups need, of the tile before and of this one
  int first_step;   // of the tile
  int steps;        // 0 where it has no rows; else at least 1: rows that see no key have one that hides all of its keys
  int last_blocks;  // blocks of the step with the last keys; some of them may lie behind all keys
  int seen_begin, seen_end;  // all rows see all keys of these steps
  int rows;  // of its 64: rows from here on belong to others. 64 where the copy engine ends at the sequence's end

  // The rows from `first_row` on, of a tile whose keys begin at `begin`. Not `skipped`.
  template <int kBlocksPerStep>
  FP8ATTN_HOST_DEVICE static WarpgroupPlan of(const Mask& mask, int first_row, bool ragged, int begin) {
    constexpr int kStep = kPlanBlock * kBlocksPerStep;
    const int last_row = first_row + kPlanRows - 1;
    const int blocks = at_least(divide_up(mask.visible_end(last_row) - begin, kPlanBlock), 1);
    const int end = divide_up(blocks, kBlocksPerStep);
    const int first = at_most((mask.visible_begin(first_row) - begin) / kStep, end - 1);
    WarpgroupPlan plan{};
    plan.rows = ragged ? at_least(at_most(mask.query_length - first_row, kPlanRows), 0) : kPlanRows;
    if (first_row >= mask.query_length) return plan;
    plan.first_step = first;
    plan.steps = end - first;
    constexpr int kShort = short_step(kBlocksPerStep);
    plan.last_blocks = divide_up(blocks - (end - 1) * kBlocksPerStep, kShort) * kShort;
    plan.seen_begin = divide_up(mask.visible_begin(last_row) - begin, kStep) - first;
    plan.seen_end = (mask.visible_end(first_row) - begin) / kStep - first;
    return plan;
  }

  // Whether some row does not see some key of a step.
  FP8ATTN_HOST_DEVICE bool masks(int step) const { return step < seen_begin || step >= seen_end; }

  FP8ATTN_HOST_DEVICE static int at_least(int a, int b) { return a < b ? b : a; }
  FP8ATTN_HOST_DEVICE static int at_most(int a, int b) { return a < b ? a : b; }
  // Without leaving 32 bits.
  FP8ATTN_HOST_DEVICE static int divide_up(int a, int b) { return a / b + (a % b != 0); }
};

template <int kWarpgroups>
struct TilePlan {
  int sequence;  // -1: no more tiles
  int number;    // of the CTA's tiles, from 0 on
  int head, kv_head;
  int query_length, key_length;  // of the sequence
  int row;                       // of the sequence that is the tile's first one
  int query_start;               // of the sequence, in ragged tensors of queries
  int key_start, value_start;    // of the sequence, where it has no pages and no batch entry
  int first_block;               // of the sequence that is the tile's first one, a multiple of a short step
  int steps, last_blocks;        // all that a warpgroup does
  int last_tokens;               // from the step with the last keys on, those of the sequence
  WarpgroupPlan warpgroup[kWarpgroups];

  FP8ATTN_HOST_DEVICE bool is_none() const { return sequence < 0; }

  // The steps of a tile of `mask` from row `row` on. Not what says where the sequence lies. A warpgroup passes over
  // what is left of `previous`, the tile before; null: there was none.
  //
  // Warpgroups differ by at most one step at either end, for they differ by 64 rows and a step has as many keys as all
  // but the first have rows. The first one does the tile's first steps, the last one with rows its last: so of two
  // warpgroups, each passes over one stage at most between two tiles, and loads never wait for a warpgroup that waits
  // for them. One without rows passes over keys and values alternately.
  template <int kBlocksPerStep>
  FP8ATTN_HOST_DEVICE void plan_steps(const Mask& mask, bool ragged, const TilePlan* previous) {
    static_assert(kWarpgroups - 1 <= kBlocksPerStep);
    constexpr int kShort = short_step(kBlocksPerStep);
    const int blocks = WarpgroupPlan::divide_up(mask.visible_end(row + kWarpgroups * kPlanRows - 1), kPlanBlock);
    first_block = WarpgroupPlan::at_least(WarpgroupPlan::at_most(mask.visible_begin(row) / kPlanBlock, blocks - 1), 0);
    first_block -= first_block % kShort;
    const int begin = first_block * kPlanBlock;
#pragma unroll 1
    for (int i = 0; i < kWarpgroups; ++i) {
      warpgroup[i] = WarpgroupPlan::of<kBlocksPerStep>(mask, row + i * kPlanRows, ragged, begin);
    }
#pragma unroll 1
    for (int i = 0; i < kWarpgroups; ++i) {
      const WarpgroupPlan& plan = warpgroup[i];
      if (plan.steps == 0) break;
      steps = plan.first_step + plan.steps;
      last_blocks = plan.last_blocks;
    }
    last_tokens = mask.key_length - begin - kPlanBlock * kBlocksPerStep * (steps - 1);
#pragma unroll 1
    for (int i = 0; i < kWarpgroups; ++i) {
      const WarpgroupPlan& plan = warpgroup[i];
      warpgroup[i].skipped = steps - (plan.first_step + plan.steps) + left_by(previous, i);
    }
  }

  // Behind the last tile: what the warpgroups have left of it.
  FP8ATTN_HOST_DEVICE void plan_end(const TilePlan* previous) {
    sequence = -1;
    for (int i = 0; i < kWarpgroups; ++i) warpgroup[i].skipped = left_by(previous, i);
  }

 private:
  // First steps of a tile that warpgroup `i` does not do.
  FP8ATTN_HOST_DEVICE static int left_by(const TilePlan* tile, int i) {
    return tile == nullptr ? 0 : tile->warpgroup[i].first_step;
  }
};

}  // namespace fp8attn::cuda
