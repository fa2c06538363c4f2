// How the keys of all sequences are shared out among the blocks of a grid, by the lengths of the moment.
#pragma once

#include <cstdint>

#include "cuda/sm90/tile/batch.h"
#include "cuda/sm90/tile/block_scan.h"

namespace fp8attn::cuda {

// Part `part` of the tokens of a sequence from `token` on.
struct SequencePiece {
  int sequence, length;  // of the sequence
  int token, part;
};

// Cuts every sequence into pieces of kTokens tokens, each of `parts` parts (heads, channels), and gives every block a
// run of neighbours, as many as the others: so the work is that of the lengths, not of the capacities. All threads of a
// block walk alike.
template <int kTokens, int kThreads>
class SequenceWalk {
 public:
  struct Shared {
    std::int64_t scratch[kThreads / 32];
    int sequence, length, token, part;  // of the first piece
    int pieces;                         // of this block
  };

  // Whole block.
  __device__ SequenceWalk(const BatchView& batch, int parts, Shared& shared) : batch_(batch), parts_(parts) {
    const int per_thread = (batch.sequences + kThreads - 1) / kThreads;
    const int begin = min(static_cast<int>(threadIdx.x) * per_thread, batch.sequences);
    const int end = min(begin + per_thread, batch.sequences);
    std::int64_t sum = 0;
    for (int i = begin; i < end; ++i) sum += pieces(batch.keys(i).length);
    std::int64_t total;
    std::int64_t before = exclusive_scan_of_block<kThreads>(sum, shared.scratch, total);
    const std::int64_t share = (total + gridDim.x - 1) / gridDim.x, first = share * blockIdx.x;
    if (threadIdx.x == 0) shared.pieces = static_cast<int>(max(min(share, total - first), std::int64_t{0}));
    if (before <= first && first < before + sum) {
      for (int i = begin; i < end; ++i) {
        const int length = batch.keys(i).length;
        if (first < before + pieces(length)) {
          const std::int64_t piece = first - before;
          shared.sequence = i;
          shared.length = length;
          shared.token = static_cast<int>(piece / parts) * kTokens;
          shared.part = static_cast<int>(piece % parts);
          break;
        }
        before += pieces(length);
      }
    }
    __syncthreads();
    left_ = shared.pieces;
    if (left_ > 0) piece_ = {shared.sequence, shared.length, shared.token, shared.part - 1};
  }

  // False when none is left.
  __device__ bool next(SequencePiece& piece) {
    if (left_ == 0) return false;
    --left_;
    if (++piece_.part == parts_) {
      piece_.part = 0;
      piece_.token += kTokens;
      if (piece_.token >= piece_.length) next_sequence();
    }
    piece = piece_;
    return true;
  }

 private:
  __device__ std::int64_t pieces(int length) const { return std::int64_t{(length + kTokens - 1) / kTokens} * parts_; }

  // To the next one that has a token: there is one. Reads 32 lengths at a time, since many may be 0.
  __device__ void next_sequence() {
    int sequence = piece_.sequence + 1;
    while (true) {
      const int own = sequence + static_cast<int>(threadIdx.x % 32);
      const int length = own < batch_.sequences ? batch_.keys(own).length : 0;
      const unsigned has_tokens = __ballot_sync(0xFFFFFFFFu, length > 0);
      if (has_tokens != 0) {
        const int lane = __ffs(static_cast<int>(has_tokens)) - 1;
        piece_ = {sequence + lane, __shfl_sync(0xFFFFFFFFu, length, lane), 0, 0};
        return;
      }
      sequence += 32;
    }
  }

  const BatchView& batch_;
  const int parts_;
  int left_;
  SequencePiece piece_{};
};

}  // namespace fp8attn::cuda
