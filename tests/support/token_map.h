// Where the tokens of a case's sequences lie in dense, ragged and paged tensors, and the integers that say so.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "placed_tensor.h"
#include "prefill_case.h"

namespace fp8attn::test {

// Rows [outer, inner] of a tensor: [b, s], [1, total] or [pages, page_size].
struct TokenMap {
  std::int64_t outer = 0, inner = 0;
  std::vector<std::vector<std::int64_t>> rows = {};  // of the tokens of each sequence

  std::vector<std::int64_t> offsets = {};      // ragged: [b + 1]
  std::vector<std::int64_t> lengths = {};      // [b]
  std::int64_t max_pages = 0;                  // paged: pages of the longest sequence, no more
  std::vector<std::int64_t> block_table = {};  // paged: [b, max_pages], -1 where no page is needed
};

TokenMap map_queries(const PrefillCase& test);
TokenMap map_keys(const PrefillCase& test);

// From [b, s, x, y] (token_dim 1) or [b, x, 1, s] (token_dim 3) to the same with [outer, inner] in place of [b, s]. Gap
// is what lies where no token does.
HostTensor spread(const HostTensor& dense, const TokenMap& map, int token_dim, Gap gap);

// The other way round, with kPatternByte where a sequence has no token; `changed` tells of an element that belongs to
// no sequence and does not hold the pattern.
HostTensor collect(const HostTensor& spread, const TokenMap& map, int token_dim, std::int64_t longest,
                   std::string& changed);

}  // namespace fp8attn::test
