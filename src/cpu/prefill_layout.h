// Where the elements of a prefill lie in memory. Dense, ragged and paged tensors look alike from here on.
#pragma once

#include <cstdint>
#include <optional>

#include "api/mask.h"
#include "api/prefill_batch.h"
#include "fp8attn/prefill.h"

namespace fp8attn::cpu {

// Rows of q or k that a sequence has.
struct Rows {
  std::int64_t start = 0;  // ragged; else 0
  int length = 0;
};

// Where a token lies: sequence and token of a dense tensor, 0 and row of a ragged one, page and position of a paged
// one. `sequence` is the token's own, whatever the tensor.
struct Place {
  std::int64_t sequence = 0, outer = 0, inner = 0;
};

// Elements from one index to the next, 0 along what shares an element or where a tensor has no such dim.
struct Strides {
  std::int64_t sequence = 0, outer = 0, inner = 0, head = 0, channel = 0;

  std::int64_t offset(const Place& place, std::int64_t head_index, std::int64_t channel_index = 0) const {
    return place.sequence * sequence + place.outer * outer + place.inner * inner + head_index * head +
           channel_index * channel;
  }
};

// float32 factors or addends, or none.
struct Floats {
  const float* data = nullptr;
  Strides strides;

  float at(float otherwise, const Place& place, std::int64_t head, std::int64_t channel = 0) const {
    return data == nullptr ? otherwise : data[strides.offset(place, head, channel)];
  }
};

// Reads offsets, lengths and the table when it is asked, as prefill.h says they are to be clamped.
class PrefillLayout {
 public:
  explicit PrefillLayout(const PrefillProblem& problem);

  Rows queries(std::int64_t sequence) const;
  Rows keys(std::int64_t sequence) const;
  Mask mask(const Rows& queries, const Rows& keys) const;
  Place query(std::int64_t sequence, const Rows& queries, std::int64_t token) const;
  // None where the table names no page of the cache.
  std::optional<Place> key(std::int64_t sequence, const Rows& keys, std::int64_t token) const;
  // Tokens from `token` on, at most `count`, that lie one behind the other.
  int run_length(std::int64_t token, int count) const;

  PrefillBatch batch;
  Strides q, k, v, out, lse;  // of a packed v: `inner` is positions
  Floats q_scale, k_scale, v_scale, v_mean, lse_bias;
  bool key_scale_per_token = false;

 private:
  const PrefillProblem& problem_;
};

}  // namespace fp8attn::cpu
