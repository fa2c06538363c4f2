// How query tiles are numbered. Host and device.
#pragma once

#include <cstdint>

#include "api/mask.h"

namespace fp8attn::cuda {

struct TileCoordinates {
  int query_tile, head, batch;
};

// Division by a number that the host knows, without dividing on the device: a high multiplication (Granlund and
// Montgomery, "Division by Invariant Integers using Multiplication", 1994). Exact for dividends below 2^31.
class Divisor {
 public:
  Divisor() = default;
  explicit Divisor(int divisor) : divisor_(divisor) {
    while ((int64_t{1} << shift_) < divisor) ++shift_;
    const uint64_t power = uint64_t{1} << shift_;
    multiplier_ = static_cast<uint32_t>(((power - divisor) << 32) / divisor + 1);
  }

  FP8ATTN_HOST_DEVICE int divide(int dividend) const {
    const uint64_t product = static_cast<uint64_t>(static_cast<uint32_t>(dividend)) * multiplier_;
    return static_cast<int>((static_cast<uint32_t>(product >> 32) + static_cast<uint32_t>(dividend)) >> shift_);
  }
  FP8ATTN_HOST_DEVICE int divisor() const { return divisor_; }

 private:
  int divisor_ = 1;
  uint32_t multiplier_ = 1;
  int shift_ = 0;
};

// How tiles are numbered. (batch, head) pairs are cut into sections whose keys and values fit the L2 cache together;
// within a section tiles go from the last query tile, which sees the most keys under a causal mask, to the first, all
// pairs of the section side by side. Without a mask a section is one pair.
class TileOrder {
 public:
  TileOrder() = default;
  TileOrder(int query_tiles, int heads, int pairs, int pairs_per_section)
      : query_tiles_(query_tiles),
        pairs_(pairs),
        heads_(heads),
        section_(query_tiles * pairs_per_section),
        width_(pairs_per_section),
        last_width_(pairs % pairs_per_section == 0 ? pairs_per_section : pairs % pairs_per_section) {}

  FP8ATTN_HOST_DEVICE int count() const { return query_tiles_ * pairs_; }

  FP8ATTN_HOST_DEVICE TileCoordinates at(int index) const {
    const int section = section_.divide(index);
    const int within = index - section * section_.divisor();
    const int first_pair = section * width_.divisor();
    const Divisor& width = pairs_ - first_pair < width_.divisor() ? last_width_ : width_;
    const int tile = width.divide(within);
    const int pair = first_pair + within - tile * width.divisor();
    const int batch = heads_.divide(pair);
    return {query_tiles_ - 1 - tile, pair - batch * heads_.divisor(), batch};
  }

 private:
  int query_tiles_ = 0, pairs_ = 0;
  Divisor heads_, section_, width_, last_width_;
};

}  // namespace fp8attn::cuda
