// How query tiles are numbered. Host and device.
#pragma once

#include <cstdint>

#include "api/mask.h"

namespace fp8attn::cuda {

struct TileCoordinates {
  int query_tile, head, batch;

  FP8ATTN_HOST_DEVICE static TileCoordinates none() { return {-1, 0, 0}; }
  FP8ATTN_HOST_DEVICE bool is_none() const { return query_tile < 0; }
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

// Who computes which tile when: `ctas` persistent CTAs take one tile a round. Tiles of one (batch, head) pair lie side
// by side, so that the CTAs walk through the same keys and values together and these come from the L2 cache.
class TileOrder {
 public:
  TileOrder() = default;
  // causal: later query tiles see more keys. Where every CTA gets two tiles or more, the i-th longest tile of a pair is
  // followed by its i-th shortest, so that every two rounds cost the same for all; else the longest come first.
  TileOrder(int query_tiles, int heads, int pairs, bool causal, int ctas)
      : query_tiles_(query_tiles), tiles_(query_tiles * pairs), heads_(heads) {
    const int half = (query_tiles + 1) / 2;
    kind_ = !causal ? Kind::kByPair : (half * pairs >= 2 * ctas ? Kind::kFolded : Kind::kLongestFirst);
    inner_ = Divisor(kind_ == Kind::kLongestFirst ? pairs : kind_ == Kind::kFolded ? half : query_tiles);
    rounds_ = kind_ == Kind::kFolded ? 2 * ((half * pairs + ctas - 1) / ctas) : (tiles_ + ctas - 1) / ctas;
    units_ = kind_ == Kind::kFolded ? half * pairs : tiles_;
  }

  FP8ATTN_HOST_DEVICE int tiles() const { return tiles_; }
  FP8ATTN_HOST_DEVICE int rounds() const { return rounds_; }

  // The tile of CTA `cta` of `ctas` in round `round`; false where it has none.
  FP8ATTN_HOST_DEVICE bool at(int round, int cta, int ctas, TileCoordinates& tile) const {
    const bool folded = kind_ == Kind::kFolded, by_length = kind_ == Kind::kLongestFirst;
    // Longest first, odd rounds run backwards over the CTAs: who got the longest tile of a round gets the shortest
    // next.
    const int slot = by_length && round % 2 == 1 ? ctas - 1 - cta : cta;
    const int unit = (folded ? round / 2 : round) * ctas + slot;
    if (unit >= units_) return false;
    const int outer = inner_.divide(unit), inner = unit - outer * inner_.divisor();
    const int position = by_length ? outer : inner;
    const bool second = folded && round % 2 == 1;
    tile.query_tile = second ? position : query_tiles_ - 1 - position;
    if (second && 2 * position == query_tiles_ - 1) return false;  // the middle one of an odd number has no partner
    const int pair = by_length ? inner : outer;
    tile.batch = heads_.divide(pair);
    tile.head = pair - tile.batch * heads_.divisor();
    return true;
  }

 private:
  enum class Kind { kByPair, kLongestFirst, kFolded };
  Kind kind_ = Kind::kByPair;
  int query_tiles_ = 0, tiles_ = 0, units_ = 0, rounds_ = 0;
  Divisor heads_, inner_;
};

}  // namespace fp8attn::cuda
