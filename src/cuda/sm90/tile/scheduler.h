// Which query tiles a persistent CTA computes, in which order.
#pragma once

#include "cuda/sm90/tile/tile_order.h"

namespace fp8attn::cuda {

// Walks the tiles of one CTA. Odd rounds run backwards over the CTAs, so that who got the longest tile of one round
// gets the shortest of the next.
class StaticSchedule {
 public:
  __device__ StaticSchedule(const TileOrder& order) : order_(order) {}

  // False when no tile is left.
  __device__ bool next(TileCoordinates& tile) {
    const int ctas = gridDim.x;
    const int slot = round_ & 1 ? ctas - 1 - blockIdx.x : blockIdx.x;
    const int index = round_ * ctas + slot;
    ++round_;
    if (index >= order_.count()) return false;
    tile = order_.at(index);
    return true;
  }

  // Parity of the number of tiles before the one last given: that of a barrier used once a tile.
  __device__ uint32_t parity() const { return (round_ - 1) & 1; }

 private:
  const TileOrder& order_;
  int round_ = 0;
};

}  // namespace fp8attn::cuda
