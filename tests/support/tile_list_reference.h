// The list of an uneven batch's tiles, made the plain way: what the kernel that makes it is held against.
#pragma once

#include <algorithm>
#include <vector>

#include "cuda/sm90/tile/tile_list.h"

namespace fp8attn::test {

inline std::vector<cuda::TileEntry> reference_tile_list(const cuda::UnevenTiles& tiles) {
  struct Group {
    int sequence, first, count, steps;
  };
  std::vector<Group> groups;
  for (int sequence = 0; sequence < tiles.batch.sequences; ++sequence) {
    const Mask mask = tiles.mask(sequence);
    for (int first = tiles.tiles(mask) - 1; first >= 0; first -= tiles.group()) {
      groups.push_back({sequence, first, std::min(first + 1, tiles.group()), tiles.steps(mask, first)});
    }
  }
  std::ranges::stable_sort(groups, {}, [](const Group& group) { return cuda::UnevenTiles::cost_class(group.steps); });
  std::vector<cuda::TileEntry> entries;
  for (const Group& group : groups) {
    for (int i = 0; i < group.count; ++i) entries.emplace_back(group.sequence, group.first, i, group.count);
  }
  return entries;
}

}  // namespace fp8attn::test
