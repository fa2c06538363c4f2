// The consumer warps: each attends to slices of 32 tokens of its own, for a tile of 16 rows, and meets the others at
// the end of a unit only.
#pragma once

#include <cstdint>
#include <type_traits>

#include "cuda/sm90/decode/finish.h"
#include "cuda/sm90/decode/fragments.h"
#include "cuda/sm90/decode/params.h"
#include "cuda/sm90/decode/query.h"
#include "cuda/sm90/decode/traits.h"
#include "cuda/sm90/ptx/warpgroup.h"
#include "cuda/sm90/tile/pipeline.h"
#include "cuda/sm90/tile/probability.h"
#include "cuda/sm90/tile/softcap.h"

namespace fp8attn::cuda {

template <class Traits>
class DecodeConsumer {
 public:
  using Shared = typename Traits::Shared;

  // warp: of the consumers. Neighbours take the row tiles of the same tokens.
  __device__ DecodeConsumer(Shared& shared, const DecodeParams& params, int warp, int lane)
      : shared_(shared), params_(params), warp_(warp), lane_(lane), slice_(warp / params.row_tiles) {}

  __device__ void run() {
    note_split({.first_team = -1});
    SplitWalk<DecodeParams> walk(params_, shared_.walk[Traits::kProducerWarps + warp_]);
    walk.plan();
    while (walk.next()) {
      attend(walk.unit());
      DecodeFinish<Traits>(shared_, params_, walk.unit(), warp_, lane_).run(output_, maximum_, sum_);
      if (walk.continues()) note_split(walk.split());
    }
  }

 private:
  using Element = typename Traits::Element;
  using Scores = float[4][4];  // [tokens 8 j to 8 j + 7][as in mma.h]
  // The largest probability of a row is stored as 2^kTop, so that half keeps small ones.
  static constexpr float kTop = kProbabilityTopLog2;

  // For the combining kernel, by one thread of a team.
  __device__ void note_split(const Split& split) {
    if (warp_ == 0 && lane_ == 0 && blockIdx.x == 0) params_.splits[blockIdx.y] = split;
  }

  __device__ int first_row() const { return (warp_ & (params_.row_tiles - 1)) * kRowTile; }

  __device__ __forceinline__ void attend(const SplitUnit& unit) {
    const Mask mask = params_.mask(unit.sequence);
    const DecodeParams::Span span = params_.span(mask);
    begin(unit, mask);
    // Warps go through slices as if they were dealt cards, over all units of the CTA: which stages a warp reads depends
    // on its number alone.
    const int groups = Traits::kConsumerWarps / params_.row_tiles;
    const int offset = span.first_block + unit.first - blocks_;  // from blocks of the CTA to those of the sequence
    blocks_ += unit.last - unit.first;
    const bool has_rows = first_row() < params_.rows;
#pragma unroll 1
    for (; slice_ < blocks_ * Traits::kSlices; slice_ += groups) {
      const int block = slice_ / Traits::kSlices, stage = block % Traits::kStages;
      const int row = slice_ % Traits::kSlices * kSliceTokens;
      // This warp has released the stage before, so no phase but the one in question can be the next.
      wait_barrier(&shared_.ring.full[stage], block / Traits::kStages & 1);
      const int first = (offset + block) * Traits::kBlockTokens + row;
      if (has_rows && first < span.end && first + kSliceTokens > span.begin) {
        step(mask, span, first, stage, row);
      }
      __syncwarp();
      if (lane_ == 0) arrive_barrier(&shared_.ring.empty[stage]);
    }
  }

  __device__ __forceinline__ void begin(const SplitUnit& unit, const Mask& mask) {
    load_query(unit);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      maximum_[i] = -INFINITY;
      sum_[i] = 0.0f;
      cap_factor_[i] = 0.0f;
      const int index = min(first_row() + lane_ / 4 + 8 * i, params_.rows - 1);
      token_[i] = params_.call.queries_per_kv.divide(index);
      if (params_.call.softcap_factor == 0.0f) continue;
      const float factor = multiplier_[i] * params_.call.softcap_factor;
      if (fabsf(factor) < CapFactor<float>::kLeast) continue;
      cap_factor_[i] = factor;
      multiplier_[i] = params_.call.softcap_log2;
    }
    // Slices of which every row sees all.
    plain_begin_ = mask.visible_begin(params_.queries - 1);
    plain_end_ = mask.visible_end(0);
#pragma unroll
    for (auto& tile : output_) {
#pragma unroll
      for (float& value : tile) value = 0.0f;
    }
  }

  __device__ __forceinline__ void load_query(const SplitUnit& unit) {
    if constexpr (Traits::kQueryInShared) {
      DecodeQuery<Traits> query;
      query.load(params_, unit.sequence, unit.tile, first_row(), lane_, multiplier_);
#pragma unroll
      for (int k = 0; k < query.kSteps; ++k) {
        const auto& a = query.operand[k];
        kept_query()[32 * k] = make_uint4(a[0], a[1], a[2], a[3]);
      }
    } else {
      query_.load(params_, unit.sequence, unit.tile, first_row(), lane_, multiplier_);
    }
  }

  // Of this lane.
  __device__ uint4* kept_query() const { return reinterpret_cast<uint4*>(shared_.exchange[warp_]) + lane_; }

  // The A operand of 16 channels of the query.
  __device__ __forceinline__ void get_query(uint32_t (&a)[4], int k) const {
    if constexpr (Traits::kQueryInShared) {
      const uint4 four = kept_query()[32 * k];
      a[0] = four.x, a[1] = four.y, a[2] = four.z, a[3] = four.w;
    } else {
#pragma unroll
      for (int r = 0; r < 4; ++r) a[r] = query_.operand[k][r];
    }
  }

  // Tokens from `first` on, which lie in the stage from row `row` on.
  __device__ __forceinline__ void step(const Mask& mask, const DecodeParams::Span& span, int first, int stage,
                                       int row) {
    Scores scores = {};
    // Or addresses of pieces are kept in registers throughout.
    const int token = row + ptx::launder(lane_);
    const TileRow<typename Traits::KeyTile> key(shared_.key[stage], token);
    // Not all at once where the query comes from shared memory: addresses would be kept in registers.
#pragma unroll(Traits::kQueryInShared ? 4 : 16)
    for (int k = 0; k < Traits::kHeadDimQk / 16; ++k) {
      uint32_t a[4], b[4][2];
      get_query(a, k);
      Element::load_keys(b, key, k);
#pragma unroll
      for (int j = 0; j < 4; ++j) Element::mma(scores[j], a, b[j][0], b[j][1]);
    }
    make_logits(scores);
    if (first < plain_begin_ || first + kSliceTokens > plain_end_) hide(scores, mask, first);
    uint32_t probabilities[2][4];
    exponentiate(scores, probabilities);
    const TileRow<typename Traits::ValueTile> value(shared_.value[stage], ptx::launder(token));
    // Values that no row sees may be NaN, which a probability of 0 would not silence.
    if (first < span.begin || first + kSliceTokens > span.end) {
      add_values<true>(probabilities, value, span.begin - first, span.end - first);
    } else {
      add_values<false>(probabilities, value, 0, kSliceTokens);
    }
  }

  __device__ __forceinline__ void make_logits(Scores& scores) const {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
#pragma unroll
      for (int r = 0; r < 4; ++r) {
        if (cap_factor_[r / 2] != 0.0f) scores[j][r] = ptx::tanh_float(scores[j][r] * cap_factor_[r / 2]);
        scores[j][r] *= multiplier_[r / 2];
      }
    }
  }

  __device__ __forceinline__ void hide(Scores& scores, const Mask& mask, int first) const {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int token = ptx::launder(token_[i]);  // or the compiler keeps what the row sees
      const int begin = mask.visible_begin(token) - first, end = mask.visible_end(token) - first;
#pragma unroll
      for (int j = 0; j < 4; ++j) {
#pragma unroll
        for (int c = 0; c < 2; ++c) {
          const int column = 8 * j + 2 * (lane_ & 3) + c;
          if (column < begin || column >= end) scores[j][2 * i + c] = -INFINITY;
        }
      }
    }
  }

  // From logits in octaves to probabilities, as A operands of two steps of 16 tokens. Rescales what was summed before.
  __device__ __forceinline__ void exponentiate(Scores& scores, uint32_t (&probabilities)[2][4]) {
    float rescale[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      float maximum = maximum_[i];
#pragma unroll
      for (int j = 0; j < 4; ++j) maximum = fmaxf(maximum, fmaxf(scores[j][2 * i], scores[j][2 * i + 1]));
      maximum = fmaxf(maximum, __shfl_xor_sync(0xFFFFFFFFu, maximum, 1));
      maximum = fmaxf(maximum, __shfl_xor_sync(0xFFFFFFFFu, maximum, 2));
      // A row that sees no key yet: any finite offset gives 2^-infinity = 0.
      const float used = maximum == -INFINITY ? 0.0f : maximum;
      rescale[i] = ptx::exp2_float(maximum_[i] - used);
      maximum_[i] = maximum;
      sum_[i] *= rescale[i];
#pragma unroll
      for (int j = 0; j < 4; ++j) {
#pragma unroll
        for (int c = 0; c < 2; ++c) {
          float& score = scores[j][2 * i + c];
          score = ptx::exp2_float(score - (used - kTop));
          sum_[i] += score;
        }
      }
    }
#pragma unroll
    for (int j = 0; j < 4; ++j) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        probabilities[j / 2][j % 2 * 2 + i] = Element::pack(scores[j][2 * i], scores[j][2 * i + 1]);
      }
    }
    // Behind the first slices maxima are seldom raised.
    if (__any_sync(0xFFFFFFFFu, rescale[0] != 1.0f || rescale[1] != 1.0f)) {
#pragma unroll
      for (auto& tile : output_) {
#pragma unroll
        for (int r = 0; r < 4; ++r) tile[r] *= rescale[r / 2];
      }
    }
  }

  // kClears: only tokens [begin, end) of the slice count.
  template <bool kClears>
  __device__ __forceinline__ void add_values(const uint32_t (&probabilities)[2][4],
                                             const TileRow<typename Traits::ValueTile>& value, int begin, int end) {
    uint32_t kept[4];
    if constexpr (kClears) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int token = 8 * i + 2 * (lane_ & 3);  // ldmatrix gives this one and the next
        kept[i] =
            (token >= begin && token < end ? 0xFFFFu : 0) | (token + 1 >= begin && token + 1 < end ? ~0xFFFFu : 0);
      }
    }
    constexpr int kTiles = Element::kTilesOfPiece;
#pragma unroll
    for (int piece = 0; piece < Traits::kHeadDimV * Element::kBytes / 16; ++piece) {
      uint32_t raw[4], b[kTiles][4];
      ptx::ldmatrix_x4_trans(raw, value.piece(piece));
      if constexpr (kClears) {
#pragma unroll
        for (int i = 0; i < 4; ++i) raw[i] &= kept[i];
      }
      Element::take_values(b, raw);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
#pragma unroll
        for (int t = 0; t < kTiles; ++t) {
          Element::mma(output_[kTiles * piece + t], probabilities[half], b[t][2 * half], b[t][2 * half + 1]);
        }
      }
    }
  }

  Shared& shared_;
  const DecodeParams& params_;
  const int warp_, lane_;
  int slice_;       // the next one of this warp, counted over all blocks of the CTA
  int blocks_ = 0;  // of the CTA, up to the end of this unit
  int plain_begin_, plain_end_;
  int token_[2];         // of the thread's two rows
  float multiplier_[2];  // from a score, or its tanh, to octaves
  float cap_factor_[2];  // from a score to the argument of tanh; 0: there is no cap
  float maximum_[2];
  float sum_[2];  // what this thread holds of them
  struct NoQuery {};
  std::conditional_t<Traits::kQueryInShared, NoQuery, DecodeQuery<Traits>> query_;
  float output_[Traits::kHeadDimV / 8][4];
};

}  // namespace fp8attn::cuda
