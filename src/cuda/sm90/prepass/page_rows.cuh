// Where the tokens of a piece lie in a paged cache.
#pragma once

#include <cstdint>

#include "cuda/sm90/prepass/sequence_walk.cuh"
#include "cuda/sm90/tile/batch.h"
#include "cuda/sm90/tile/tile_order.h"

namespace fp8attn::cuda {

// Strides of a cache, in bytes.
struct PageStrides {
  std::int64_t page, token, head;
};

// The offset in the cache of each of kTokens tokens, one page looked up a token: pages may have any size.
template <int kTokens>
struct PageRows {
  static constexpr std::int64_t kNone = -1;  // no token, or no page

  std::int64_t offset[kTokens];  // bytes, of channel 0 of head 0

  // The tokens of a sequence from `piece.token` on. Whole block; they may be used behind the next barrier. True where
  // those of this thread all exist.
  __device__ bool find(const BatchView& batch, const Divisor& page_size, const PageStrides& strides,
                       const SequencePiece& piece) {
    bool all = true;
    for (int i = threadIdx.x; i < kTokens; i += blockDim.x) {
      const int token = piece.token + i;
      std::int64_t found = kNone;
      if (token < piece.length) {
        const int index = page_size.divide(token);
        const int page = batch.page(piece.sequence, index);
        if (page >= 0) found = page * strides.page + (token - index * page_size.divisor()) * strides.token;
      }
      offset[i] = found;
      all = all && found != kNone;
    }
    return all;
  }
};

}  // namespace fp8attn::cuda
