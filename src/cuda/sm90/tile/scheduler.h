// Which query tiles a persistent CTA computes, in which order.
#pragma once

#include "cuda/sm90/tile/tile_list.h"
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

// The same of an uneven batch, whose list has been made on the device.
class ListSchedule {
 public:
  __device__ explicit ListSchedule(const TileList& list) : list_(list), tiles_(list.tiles()) {}

  __device__ bool next(TileCoordinates& tile) {
    while (int64_t{round_} * gridDim.x < tiles_) {
      if (list_.at(round_++, blockIdx.x, gridDim.x, tiles_, tile)) return true;
    }
    return false;
  }

 private:
  const TileList& list_;
  const int tiles_;
  int round_ = 0;
};

}  // namespace fp8attn::cuda
