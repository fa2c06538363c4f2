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
//
// causal: later query tiles see more keys. The i-th longest tile of a pair is followed by its i-th shortest, so that
// every two rounds cost the same for all, as long as two such rounds fill all CTAs and another two are left. The tiles
// of the rest, two to four a CTA, are sorted: the longest come first, and the shortest make up for what some have more.
class TileOrder {
 public:
  TileOrder() = default;
  TileOrder(int query_tiles, int heads, int pairs, bool causal, int ctas)
      : causal_(causal),
        query_tiles_(query_tiles),
        tiles_(query_tiles * pairs),
        heads_(heads),
        ctas_(ctas),
        units_of_pair_(causal ? (query_tiles + 1) / 2 : query_tiles) {
    const int units = units_of_pair_.divisor() * pairs;
    even_rounds_ = (units + ctas - 1) / ctas;
    if (!causal) return;
    even_rounds_ = 2 * (units < 2 * ctas ? 0 : units / ctas - 1);
    const int first = even_rounds_ / 2 * ctas;
    longer_ = units - first;
    first_pair_ = units_of_pair_.divide(first);
    first_unit_ = first - first_pair_ * units_of_pair_.divisor();
    const int whole_pairs = pairs - first_pair_ - 1;
    without_first_ = first_unit_ * whole_pairs;
    whole_pairs_ = Divisor(whole_pairs == 0 ? 1 : whole_pairs);
    all_pairs_ = Divisor(whole_pairs + 1);
    middle_ = query_tiles % 2 == 0 ? 0 : whole_pairs + 1;
    sorted_rounds_ = (sorted() + ctas - 1) / ctas;
  }

  FP8ATTN_HOST_DEVICE int tiles() const { return tiles_; }
  FP8ATTN_HOST_DEVICE int rounds() const { return even_rounds_ + sorted_rounds_; }

  // The tile of CTA `cta` of `ctas` in round `round`; false where it has none.
  FP8ATTN_HOST_DEVICE bool at(int round, int cta, int ctas, TileCoordinates& tile) const {
    int pair, unit;  // of the pair
    bool second;     // of the unit's two tiles, the shorter one
    if (round < even_rounds_) {
      // Turn by turn the CTAs change places, lest the same ones get a pair's last tile, some rows of which are
      // nobody's.
      const int turn = causal_ ? round / 2 : round, place = turn + cta;
      const int number = turn * ctas + place - ctas_.divide(place) * ctas;
      if (number >= tiles_) return false;
      pair = units_of_pair_.divide(number);
      unit = number - pair * units_of_pair_.divisor();
      second = causal_ && round % 2 == 1;
      // The middle one of an odd number has no partner.
      if (second && 2 * unit == query_tiles_ - 1) return false;
    } else {
      round -= even_rounds_;
      // Odd rounds run backwards over the CTAs: who got the longest tile of a round gets the shortest next.
      const int place = round * ctas + (round % 2 == 1 ? ctas - 1 - cta : cta);
      if (place >= sorted()) return false;
      second = place >= longer_;
      unit_of_rank(second ? 2 * longer_ - 1 - middle_ - place : place, pair, unit);
    }
    tile.query_tile = second ? unit : query_tiles_ - 1 - unit;
    tile.batch = heads_.divide(pair);
    tile.head = pair - tile.batch * heads_.divisor();
    return true;
  }

 private:
  FP8ATTN_HOST_DEVICE int sorted() const { return 2 * longer_ - middle_; }

  // Units of the rest by their number within the pair. The first pair of the rest lacks the first ones.
  FP8ATTN_HOST_DEVICE void unit_of_rank(int rank, int& pair, int& unit) const {
    const bool lacks_first = rank < without_first_;
    const Divisor& pairs = lacks_first ? whole_pairs_ : all_pairs_;
    if (!lacks_first) rank -= without_first_;
    const int row = pairs.divide(rank);
    pair = first_pair_ + lacks_first + rank - row * pairs.divisor();
    unit = row + (lacks_first ? 0 : first_unit_);
  }

  bool causal_ = false;
  int query_tiles_ = 0, tiles_ = 0;
  int even_rounds_ = 0, sorted_rounds_ = 0;
  // Of the rest: its first pair, and the first unit of that; ranks of units that this pair lacks; units, and so longer
  // tiles; units with one tile only.
  int first_pair_ = 0, first_unit_ = 0, without_first_ = 0, longer_ = 0, middle_ = 0;
  Divisor heads_, ctas_, units_of_pair_, whole_pairs_, all_pairs_;
};

}  // namespace fp8attn::cuda
