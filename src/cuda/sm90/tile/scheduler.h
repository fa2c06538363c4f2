// Which query tiles a persistent CTA computes, in which order.
#pragma once

#include "cuda/sm90/tile/tile_list.h"
#include "cuda/sm90/tile/tile_order.h"

namespace fp8attn::cuda {

// Walks the tiles of this CTA: those of the list, or, where there is none (nullptr, or one without entries), of the
// order.
class StaticSchedule {
 public:
  __device__ StaticSchedule(const TileOrder& order, const TileList* list) : order_(order), list_(list) {}

  // False when no tile is left.
  __device__ bool next(TileCoordinates& tile) {
    if (list_ != nullptr && list_->entries != nullptr) {
      return list_->at(round_++, blockIdx.x, gridDim.x, list_->tiles(), tile);
    }
    while (round_ < order_.rounds()) {
      if (order_.at(round_++, blockIdx.x, gridDim.x, tile)) return true;
    }
    return false;
  }

 private:
  const TileOrder& order_;
  const TileList* list_;
  int round_ = 0;
};

}  // namespace fp8attn::cuda
