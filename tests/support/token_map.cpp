#include "token_map.h"

#include <algorithm>
#include <numeric>

#include "random.h"

namespace fp8attn::test {
namespace {

constexpr std::int64_t kSparePages = 3, kRowsInFront = 3, kRowsBehind = 5;

std::vector<std::int64_t> consecutive(std::int64_t first, std::int64_t count) {
  std::vector<std::int64_t> rows(count);
  std::iota(rows.begin(), rows.end(), first);
  return rows;
}

TokenMap map_dense(std::vector<std::int64_t> lengths, std::int64_t capacity) {
  TokenMap map{.outer = std::ssize(lengths), .inner = capacity};
  for (std::int64_t i = 0; i < std::ssize(lengths); ++i) {
    map.rows.push_back(consecutive(i * capacity, lengths[i]));
  }
  map.lengths = std::move(lengths);
  return map;
}

TokenMap map_ragged(std::vector<std::int64_t> lengths, bool spare_rows) {
  TokenMap map{.outer = 1, .inner = spare_rows ? kRowsInFront : 0};
  map.offsets.push_back(map.inner);
  for (std::int64_t length : lengths) {
    map.rows.push_back(consecutive(map.inner, length));
    map.inner += length;
    map.offsets.push_back(map.inner);
  }
  map.inner += spare_rows ? kRowsBehind : 0;
  map.lengths = std::move(lengths);
  return map;
}

// Every sequence gets pages of its own, scattered over the cache.
TokenMap map_paged(std::vector<std::int64_t> lengths, std::int64_t page_size, std::uint64_t seed) {
  TokenMap map{.outer = kSparePages, .inner = page_size};
  for (std::int64_t length : lengths) {
    const std::int64_t pages = (length + page_size - 1) / page_size;
    map.outer += pages;
    map.max_pages = std::max(map.max_pages, pages);
  }
  std::vector<std::int64_t> order = consecutive(0, map.outer);
  const Random random(21, seed);
  std::ranges::sort(order, {}, [&](std::int64_t page) { return random.bits(page); });
  map.block_table.assign(std::ssize(lengths) * map.max_pages, -1);
  std::int64_t used = 0;
  for (std::int64_t i = 0; i < std::ssize(lengths); ++i) {
    std::vector<std::int64_t>& rows = map.rows.emplace_back();
    for (std::int64_t token = 0; token < lengths[i]; ++token) {
      std::int64_t& page = map.block_table[i * map.max_pages + token / page_size];
      if (token % page_size == 0) page = order[used++];
      rows.push_back(page * page_size + token % page_size);
    }
  }
  map.lengths = std::move(lengths);
  return map;
}

// Calls visit(index in the dense tensor, index in the spread one, count) for elements that lie one behind the other.
template <class Visit>
void for_each_token(const TokenMap& map, const std::vector<std::int64_t>& dense_shape, int token_dim, Visit visit) {
  const std::int64_t tokens = dense_shape[token_dim];
  const std::int64_t inside = token_dim == 1 ? dense_shape[2] * dense_shape[3] : 1;
  const std::int64_t outside = token_dim == 1 ? 1 : dense_shape[1];
  for (std::int64_t i = 0; i < std::ssize(map.rows); ++i) {
    for (std::int64_t token = 0; token < std::ssize(map.rows[i]); ++token) {
      const std::int64_t row = map.rows[i][token];
      for (std::int64_t j = 0; j < outside; ++j) {
        visit(((i * outside + j) * tokens + token) * inside,
              ((row / map.inner * outside + j) * map.inner + row % map.inner) * inside, inside);
      }
    }
  }
}

}  // namespace

TokenMap map_queries(const PrefillCase& test) {
  std::vector<std::int64_t> lengths;
  for (std::int64_t i = 0; i < test.n.b; ++i) lengths.push_back(test.queries(i));
  if (test.batch.ragged_q) return map_ragged(std::move(lengths), test.batch.spare_rows);
  return map_dense(std::move(lengths), test.n.s_q);
}

TokenMap map_keys(const PrefillCase& test) {
  std::vector<std::int64_t> lengths;
  for (std::int64_t i = 0; i < test.n.b; ++i) lengths.push_back(test.keys(i));
  switch (test.batch.keys) {
    case KeyForm::kRagged: return map_ragged(std::move(lengths), test.batch.spare_rows);
    case KeyForm::kPaged: return map_paged(std::move(lengths), test.batch.page_size, test.batch.page_seed);
    case KeyForm::kDense: break;
  }
  return map_dense(std::move(lengths), test.n.s_kv);
}

HostTensor spread(const HostTensor& dense, const TokenMap& map, int token_dim, Gap gap) {
  HostTensor result{dense.dtype, dense.shape, {}};
  result.shape[0] = map.outer;
  result.shape[token_dim] = map.inner;
  const std::int64_t element = size_of(dense.dtype);
  result.bytes = gap_bytes(result.count() * element, dense.dtype, gap);
  for_each_token(map, dense.shape, token_dim, [&](std::int64_t from, std::int64_t to, std::int64_t count) {
    std::copy_n(dense.bytes.begin() + from * element, count * element, result.bytes.begin() + to * element);
  });
  return result;
}

HostTensor collect(const HostTensor& spread, const TokenMap& map, int token_dim, std::int64_t longest,
                   std::string& changed) {
  HostTensor result{spread.dtype, spread.shape, {}};
  result.shape[0] = std::ssize(map.rows);
  result.shape[token_dim] = longest;
  const std::int64_t element = size_of(spread.dtype);
  result.bytes.assign(result.count() * element, kPatternByte);
  std::vector<std::uint8_t> rest = spread.bytes;
  for_each_token(map, result.shape, token_dim, [&](std::int64_t to, std::int64_t from, std::int64_t count) {
    std::copy_n(spread.bytes.begin() + from * element, count * element, result.bytes.begin() + to * element);
    std::fill_n(rest.begin() + from * element, count * element, kPatternByte);
  });
  if (std::ranges::count(rest, kPatternByte) != std::ssize(rest)) {
    changed = "an element that belongs to no sequence was written";
  }
  return result;
}

}  // namespace fp8attn::test
