// Exact attention in float64, straight from the definition. Shares nothing with the library.
#pragma once

#include <cstdint>
#include <vector>

#include "prefill_case.h"

namespace fp8attn::test {

// Rows of every batch entry and head.
struct Reference {
  std::vector<std::int64_t> rows;  // query tokens
  std::int64_t heads = 0, channels = 0;
  std::vector<double> out;  // [b, h, row, d_v]
  std::vector<double> lse;  // [b, h, row], in the base of the case: -infinity where no key is seen

  const double* out_at(std::int64_t batch, std::int64_t head, std::size_t row) const {
    return &out[((batch * heads + head) * rows.size() + row) * channels];
  }
  double lse_at(std::int64_t batch, std::int64_t head, std::size_t row) const {
    return lse[(batch * heads + head) * rows.size() + row];
  }
};

// About `count` query rows of a case, all where it has no more: both ends of every sequence, the borders of tiles, and
// others at random.
std::vector<std::int64_t> sample_rows(const PrefillCase& test, std::int64_t count);

struct KeyRange {
  std::int64_t begin = 0, end = 0;

  std::int64_t count() const { return end - begin; }
};

// Keys that query `row` of a sequence sees; none where it has no such query.
KeyRange visible_keys(const PrefillCase& test, std::int64_t sequence, std::int64_t row);

// The last `hidden_keys` visible keys of every row are left out: 0 is right, 1 is a mask off by one.
Reference make_reference(const PrefillCase& test, const PrefillInputs& inputs, std::vector<std::int64_t> rows,
                         std::int64_t hidden_keys = 0);

}  // namespace fp8attn::test
