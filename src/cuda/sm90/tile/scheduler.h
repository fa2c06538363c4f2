// Which query tiles a persistent CTA computes, in which order.
#pragma once

#include <cstdint>

namespace fp8attn::cuda {

struct TileCoordinates {
  int query_tile, head, batch;
};

// How tiles are numbered. (batch, head) pairs are cut into sections whose keys and values fit the L2 cache together;
// within a section tiles go from the last query tile, which sees the most keys under a causal mask, to the first, all
// pairs of the section side by side. Without a mask a section is one pair.
struct TileOrder {
  int query_tiles, heads, pairs, pairs_per_section;

  __host__ __device__ int count() const { return query_tiles * pairs; }

  __host__ __device__ TileCoordinates at(int index) const {
    const int section = index / (query_tiles * pairs_per_section);
    const int first_pair = section * pairs_per_section;
    const int width = pairs - first_pair < pairs_per_section ? pairs - first_pair : pairs_per_section;
    const int within = index - first_pair * query_tiles;
    const int pair = first_pair + within % width;
    return {query_tiles - 1 - within / width, pair % heads, pair / heads};
  }
};

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

 private:
  const TileOrder& order_;
  int round_ = 0;
};

}  // namespace fp8attn::cuda
