// How the keys of all sequences are shared out among the blocks of a grid, by the lengths of the moment.
#pragma once

#include <algorithm>
#include <cstdint>

#include "cuda/sm90/tile/batch.h"
#include "cuda/sm90/tile/block_scan.h"

namespace fp8attn::cuda {

// Part `part` of the tokens of a sequence from `token` on.
struct SequencePiece {
  int sequence, length;  // of the sequence
  int token, part;
};

// Cuts every sequence into pieces of kTokens tokens, each of `parts` parts (heads, channels), and shares them out by
// the lengths of the moment, not by the capacities. A team of neighbouring blocks has a run of tokens, and its blocks
// have different parts of the same tokens at the same time: these are neighbours in memory. All threads of a block walk
// alike.
template <int kTokens, int kThreads>
class SequenceWalk {
 public:
  struct Shared {
    std::int64_t scratch[kThreads / 32];
    int sequence, length, token, part;  // of the first piece
    int pieces;                         // of this block
  };

  // Whole block. team: blocks of a team, a divisor of `parts`.
  __device__ SequenceWalk(const BatchView& batch, int parts, int team, Shared& shared)
      : batch_(batch), parts_(parts), team_(team) {
    const int member = static_cast<int>(blockIdx.x) % team, rounds = parts / team;
    const int per_thread = (batch.sequences + kThreads - 1) / kThreads;
    const int begin = min(static_cast<int>(threadIdx.x) * per_thread, batch.sequences);
    const int end = min(begin + per_thread, batch.sequences);
    const auto pieces = [&](int length) { return std::int64_t{(length + kTokens - 1) / kTokens} * rounds; };
    std::int64_t sum = 0;
    for (int i = begin; i < end; ++i) sum += pieces(batch.keys(i).length);
    std::int64_t total;
    std::int64_t before = exclusive_scan_of_block<kThreads>(sum, shared.scratch, total);
    const std::int64_t teams = gridDim.x / team, share = (total + teams - 1) / teams;
    const std::int64_t first = share * (blockIdx.x / team);
    if (threadIdx.x == 0) shared.pieces = static_cast<int>(max(min(share, total - first), std::int64_t{0}));
    if (before <= first && first < before + sum) {
      for (int i = begin; i < end; ++i) {
        const int length = batch.keys(i).length;
        if (first < before + pieces(length)) {
          const std::int64_t piece = first - before;
          shared.sequence = i;
          shared.length = length;
          shared.token = static_cast<int>(piece / rounds) * kTokens;
          shared.part = static_cast<int>(piece % rounds) * team + member;
          break;
        }
        before += pieces(length);
      }
    }
    __syncthreads();
    left_ = shared.pieces;
    if (left_ > 0) piece_ = {shared.sequence, shared.length, shared.token, shared.part - team};
  }

  // False when none is left.
  __device__ bool next(SequencePiece& piece) {
    if (left_ == 0) return false;
    --left_;
    piece_.part += team_;
    if (piece_.part >= parts_) {
      piece_.part -= parts_;
      piece_.token += kTokens;
      if (piece_.token >= piece_.length) next_sequence();
    }
    piece = piece_;
    return true;
  }

 private:
  // To the next one that has a token: there is one. Reads 32 lengths at a time, since many may be 0.
  __device__ void next_sequence() {
    int sequence = piece_.sequence + 1;
    while (true) {
      const int own = sequence + static_cast<int>(threadIdx.x % 32);
      const int length = own < batch_.sequences ? batch_.keys(own).length : 0;
      const unsigned has_tokens = __ballot_sync(0xFFFFFFFFu, length > 0);
      if (has_tokens != 0) {
        const int lane = __ffs(static_cast<int>(has_tokens)) - 1;
        piece_ = {sequence + lane, __shfl_sync(0xFFFFFFFFu, length, lane), 0, piece_.part};
        return;
      }
      sequence += 32;
    }
  }

  const BatchView& batch_;
  const int parts_, team_;
  int left_;
  SequencePiece piece_{};
};

// The blocks of such a grid: at most `most`, of which each would have a piece if every sequence were as long as it can
// be.
struct WalkGrid {
  static constexpr int kLargestTeam = 16;
  int team;
  std::int64_t blocks;

  WalkGrid(const BatchView& batch, int tokens, int parts, std::int64_t most) {
    team = std::min(kLargestTeam, parts);
    while (parts % team != 0) --team;
    const std::int64_t pieces = (batch.aligned_positions() / tokens + batch.sequences) * parts;
    blocks = std::max(std::min(pieces, most) / team, std::int64_t{1}) * team;
  }
};

}  // namespace fp8attn::cuda
