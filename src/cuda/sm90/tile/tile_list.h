// The query tiles of an uneven batch. Which there are is known on the device only, so a kernel before the prefill lists
// them (prepass/plan_tiles.cu). Host and device.
#pragma once

#include <cstdint>

#include "api/mask.h"
#include "cuda/sm90/tile/batch.h"
#include "cuda/sm90/tile/tile_order.h"

namespace fp8attn::cuda {

// A tile of a sequence, for all heads. Tiles come in groups of up to kMaxGroup neighbours of one sequence, the last one
// (which sees most keys) first; an entry knows its place in the group, so that no other need be read.
class alignas(8) TileEntry {
 public:
  static constexpr int kMaxGroup = 16;

  TileEntry() = default;
  // Tile first - position, of a group of `count` tiles that begins with tile `first`.
  FP8ATTN_HOST_DEVICE TileEntry(int sequence, int first, int position, int count)
      : sequence_(sequence),
        bits_(static_cast<uint32_t>(first) | static_cast<uint32_t>(position) << 24 |
              static_cast<uint32_t>(count - 1) << 28) {}

  FP8ATTN_HOST_DEVICE int sequence() const { return sequence_; }
  FP8ATTN_HOST_DEVICE int first() const { return static_cast<int>(bits_ & 0xFFFFFF); }
  FP8ATTN_HOST_DEVICE int position() const { return static_cast<int>(bits_ >> 24 & 0xF); }
  FP8ATTN_HOST_DEVICE int count() const { return static_cast<int>(bits_ >> 28) + 1; }

 private:
  int sequence_;
  uint32_t bits_;  // 24 bits are enough: validation keeps sequences below 2^31 rows, and a tile has 128 or more
};
static_assert(sizeof(TileEntry) == 8);

// Which tiles an uneven batch has, and their order: groups by what their first tile costs, the most first; where that
// is the same, by sequence and then from the last tile to the first.
struct UnevenTiles {
  BatchView batch = {};
  bool causal = false;
  int window_left = -1;
  Divisor tile_rows = {}, step_keys = {};  // query rows of a tile; keys that a tile takes at a time
  int group_log2 = 0;                      // of the tiles of a group: 1, 4 or 16

  // Costs that the order tells apart: steps up to 15, and then eight between every two powers of two.
  static constexpr int kClasses = 192;

  // The more tiles of one (sequence, head) run side by side, the less often its keys and values come from beyond the L2
  // cache; but groups begin long and end short, which evens out only over many rounds. `tiles`: of all heads.
  static constexpr int group_log2_for(int64_t tiles, int ctas) {
    return tiles >= int64_t{64} * ctas ? 4 : tiles >= int64_t{8} * ctas ? 2 : 0;
  }
  FP8ATTN_HOST_DEVICE int group() const { return 1 << group_log2; }

  FP8ATTN_HOST_DEVICE Mask mask(int sequence) const {
    return {batch.queries(sequence).length, batch.keys(sequence).length, causal, window_left};
  }
  FP8ATTN_HOST_DEVICE int tiles(const Mask& mask) const {
    return mask.query_length == 0 ? 0 : tile_rows.divide(mask.query_length - 1) + 1;
  }
  FP8ATTN_HOST_DEVICE int groups(const Mask& mask) const { return (tiles(mask) + group() - 1) >> group_log2; }

  // Steps of a tile. One that sees no key has a step all the same.
  FP8ATTN_HOST_DEVICE int steps(const Mask& mask, int tile) const {
    const int row = tile * tile_rows.divisor(), rows = mask.query_length - row;
    const int last = row + (rows < tile_rows.divisor() ? rows : tile_rows.divisor()) - 1;
    const int begin = mask.visible_begin(row), end = mask.visible_end(last);
    return end <= begin ? 1 : step_keys.divide(end - 1) - step_keys.divide(begin) + 1;
  }

  // 0 for the highest cost.
  FP8ATTN_HOST_DEVICE static int cost_class(int steps) {
    int shift = 0;
#ifdef __CUDA_ARCH__
    shift = max(28 - __clz(steps), 0);
#else
    while (steps >> shift > 15) ++shift;
#endif
    return kClasses - 1 - (8 * shift + (steps >> shift));
  }
};

// The list, on the device. Its order: the groups as listed; of a group head after head, so that heads that share keys
// are neighbours; of a head the tiles of the group.
struct TileList {
  TileEntry* entries = nullptr;  // none: the batch is even, and its tiles are numbered by a TileOrder
  int* count = nullptr;          // of the entries
  int capacity = 0;              // of the entries
  Divisor heads = {};            // query heads

  // Below 2^31, by validation.
  FP8ATTN_HOST_DEVICE int tiles() const { return *count * heads.divisor(); }

  // The tile of CTA `cta` of `ctas` in round `round`, where there are `tiles`; false where it has none. Odd rounds run
  // backwards over the CTAs: who got the longest tile of a round gets the shortest next. A CTA that has none has none
  // in the rounds behind either.
  FP8ATTN_HOST_DEVICE bool at(int round, int cta, int ctas, int tiles, TileCoordinates& tile) const {
    const auto place = static_cast<uint32_t>(round) * ctas + (round % 2 == 1 ? ctas - 1 - cta : cta);
    if (place >= static_cast<uint32_t>(tiles)) return false;
    const int index = heads.divide(static_cast<int>(place));
    const TileEntry entry = entries[index];
    const auto count = static_cast<uint32_t>(entry.count());
    const uint32_t local = place - (index - entry.position()) * heads.divisor();
    tile.head = static_cast<int>(local / count);
    tile.query_tile = entry.first() - static_cast<int>(local - tile.head * count);
    tile.batch = entry.sequence();
    return true;
  }
};

}  // namespace fp8attn::cuda
