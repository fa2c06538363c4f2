// Which query tiles a persistent CTA computes, in which order.
#pragma once

#include "cuda/sm90/tile/tile_order.h"

namespace fp8attn::cuda {

// Walks the tiles of this CTA.
class StaticSchedule {
 public:
  __device__ explicit StaticSchedule(const TileOrder& order) : order_(order) {}

  // False when no tile is left.
  __device__ bool next(TileCoordinates& tile) {
    while (round_ < order_.rounds()) {
      if (order_.at(round_++, blockIdx.x, gridDim.x, tile)) return true;
    }
    return false;
  }

 private:
  const TileOrder& order_;
  int round_ = 0;
};

}  // namespace fp8attn::cuda
