// The scores' warpgroup: S = Q K^T of 64 query rows with blocks of 64 tokens, softmax, probabilities into shared
// memory.
#pragma once

#include <cstdint>
#include <cuda/ptx>

#include "cuda/sm90/mla_decode/hide.h"
#include "cuda/sm90/mla_decode/params.h"
#include "cuda/sm90/mla_decode/products.h"
#include "cuda/sm90/mla_decode/query.h"
#include "cuda/sm90/mla_decode/softmax.h"
#include "cuda/sm90/mla_decode/traits.h"
#include "cuda/sm90/ptx/matrix.h"
#include "cuda/sm90/ptx/warpgroup.h"

namespace fp8attn::cuda {

template <class Traits>
class MlaScores : MlaProducts<Traits> {
  using Products = MlaProducts<Traits>;
  using Products::accumulators_, Products::cache_, Products::kIssuesAhead, Products::kIssuesEarly, Products::lane_;
  using Products::shared_;

 public:
  using Shared = typename Traits::Shared;

  __device__ MlaScores(Shared& shared, const MlaParams& params, int warp, int lane)
      : Products(shared, lane), params_(params), warp_(warp) {}

  __device__ void run() {
    note_split({.first_team = -1});
    bool more = MlaWalk(params_, shared_.walk[4 + warp_]).next();
    if (warp_ == 0 && lane_ == 0) shared_.any_unit = more;
    // The first query is loaded by the output's warps: they have nothing to do yet, and registers for all of it at
    // once.
    ptx::named_barrier_sync<384>(kFirstQueryBarrier);            // they may look at the unit
    if (more) ptx::named_barrier_sync<384>(kFirstQueryBarrier);  // they are done
    warp_ = ptx::uniform_warp() % 4;                             // a register kept until here is one too many
    MlaWalk walk(params_, shared_.walk[4 + warp_]);
    while (more) {
      if (walk.continues()) note_split(walk.split());
      compute(walk.unit());
      more = walk.next();
      if (more) load_query(walk.unit());
    }
    begin_message();
    send(MlaMessage::kExit);
  }

 private:
  using Logits = float[32];
  static constexpr int kBarrier = 1;  // the 128 threads of this warpgroup

  // For the combining kernel, by one thread of a team.
  __device__ void note_split(const MlaSplit& split) {
    if (warp_ == 0 && lane_ == 0 && blockIdx.x == 0) params_.splits[blockIdx.y] = split;
  }

  __device__ __forceinline__ void load_query(const MlaUnit& unit) {
    // All products with the previous query have been waited for by all warps, then all rows of the new one are there.
    ptx::named_barrier_sync<128>(kBarrier);
    load_query_rows<Traits, 4>(shared_, params_, unit.sequence, unit.tile, warp_, ptx::launder(lane_));
    ptx::named_barrier_sync<128>(kBarrier);
  }

  __device__ void compute(const MlaUnit& unit) {
    softmax_.reset();
    accumulators_ = {};  // they need no registers before this
    if (unit.first < unit.last) {
      this->all_products(ptx::launder(this->query_address()));
#pragma unroll 1
      for (int block = unit.first; block < unit.last; ++block) step(unit, block);
    }
    finish(unit);
  }

  // From a block's scores to its probabilities, and to the next block's scores. Behind the last block the products are
  // made all the same, with the keys at hand and for nothing: a second copy of the code would cost registers.
  __device__ __forceinline__ void step(const MlaUnit& unit, int block) {
    Scores scores = take_scores();
    // Before any product is in flight: ptxas takes a branch behind that for a reason to serialise the products.
    if (params_.sparse || (block + 1) * Traits::kTileN > mla_visible_end<Traits>(params_, unit, 0)) {
      hide_tokens<Traits>(scores, shared_, params_, unit, block, cache_.stage(), lane_, [&](int i) { return row(i); });
    }
    auto next = cache_;
    const bool more = block + 1 < unit.last;
    if (kIssuesAhead && more) {
      next.advance();
      this->wait_for_stage(next);
    }
    if constexpr (kIssuesEarly) this->issue_fenced(next.stage(), 0);
    make_logits<0>(scores);
    if constexpr (kIssuesEarly) this->issue_fenced(next.stage(), 1);
    make_logits<4>(scores);
    float rescale[2];
    const float before[2] = {softmax_.maximum(0), softmax_.maximum(1)};
    const uint32_t rescales = softmax_.raise_maxima(scores.rope, before, false, 0.0f, rescale);
    begin_message();
    if (lane_ == 0) message().rescales[warp_] = static_cast<int>(rescales);
    if (lane_ % 4 == 0) {
      message().factor[row(0)] = rescale[0];
      message().factor[row(1)] = rescale[1];
    }
    store_probabilities(scores.rope, next.stage());
    if constexpr (kIssuesAhead) ptx::wgmma_commit();
    ::cuda::ptx::fence_proxy_async(::cuda::ptx::space_shared);  // wgmma reads the probabilities
    send(MlaMessage::kBlock);
    cache_.advance();
    if constexpr (kIssuesAhead) {
      this->finish_products(this->query_address());
    } else {
      if (more) this->all_products(this->query_address());
    }
  }

  // The finished scores, out of the way of the next block's products.
  using Scores = MlaScoreFragment;
  __device__ __forceinline__ Scores take_scores() const {
    Scores scores;
#pragma unroll
    for (int r = 0; r < 16; ++r) scores.latent[r] = accumulators_.latent[0][r];
#pragma unroll
    for (int r = 0; r < 32; ++r) scores.rope[r] = accumulators_.rope[r];
    return scores;
  }

  // Octaves: logit * log2 e, plus the logarithm of the token's scale. Column groups [kBegin, kBegin + 4).
  template <int kBegin>
  __device__ __forceinline__ void make_logits(Scores& scores) {
    Logits& logits = scores.rope;
    const float multiplier[2] = {shared_.query_scale[row(0)], shared_.query_scale[row(1)]};
#pragma unroll
    for (int j = kBegin; j < kBegin + 4; ++j) {
      float4 factors;  // scales of two tokens, logarithms of these
      if constexpr (Traits::kTokenScales) {
        factors = *reinterpret_cast<const float4*>(&shared_.factors[cache_.stage()].pair[4 * j + (lane_ & 3)]);
      }
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int r = 4 * j + 2 * i;
        if constexpr (!Traits::kIsE4M3) {
          logits[r] *= multiplier[i];
          logits[r + 1] *= multiplier[i];
        } else {
          const float low = ptx::low_half_to_float(scores.latent[2 * j + i]);
          const float high = ptx::high_half_to_float(scores.latent[2 * j + i]);
          if constexpr (Traits::kTokenScales) {
            logits[r] = fmaf(fmaf(low, factors.x, logits[r]), multiplier[i], factors.z);
            logits[r + 1] = fmaf(fmaf(high, factors.y, logits[r + 1]), multiplier[i], factors.w);
          } else {
            logits[r] = low * multiplier[i];
            logits[r + 1] = high * multiplier[i];
          }
        }
      }
    }
  }

  // Probabilities as the operand of V^T P^T (e4m3: four bytes of a word are tokens of two neighbouring column groups,
  // the order in which V's fragments come) or of P V (bf16).
  // Products with the keys of stage `next` are issued meanwhile.
  __device__ __forceinline__ void store_probabilities(Logits& logits, int next) {
    constexpr int kColumns = Traits::kIsE4M3 ? 2 : 1;  // groups of 8 tokens in a piece of 16 bytes
    const int pair = ptx::launder(lane_) & 3;
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      if (kIssuesAhead && !kIssuesEarly && j % 2 == 0) this->issue_fenced(next, j / 2);
      if (kIssuesEarly && j % 4 == 0) this->issue_fenced(next, 2 + j / 4);
      float2 inverse = {1.0f, 1.0f};
      if constexpr (Traits::kTokenScales) {
        inverse =
            *reinterpret_cast<const float2*>(&shared_.factors[cache_.stage()].inverse_scale[8 * j + 2 * (lane_ & 3)]);
      }
      softmax_.exponentiate(logits, j, inverse);
      constexpr int kGroupsOfStore = 2 * kColumns;
      if ((j + 1) % kGroupsOfStore == 0) store_pieces(logits, (j + 1 - kGroupsOfStore) / kColumns);
    }
  }

  // Pieces `piece` and `piece` + 1 of the probabilities.
  __device__ __forceinline__ void store_pieces(const Logits& logits, int piece) {
    using Tile = typename Traits::ProbabilityTile;
    constexpr int kColumns = Traits::kIsE4M3 ? 2 : 1;
    const int row = 16 * warp_ + (ptx::launder(lane_) & 15);
#pragma unroll
    for (int group = 0; group < Traits::kGroups; ++group) {
      uint32_t tiles[4];  // rows 0..7 and 8..15 of one piece, then of the next
#pragma unroll
      for (int x = 0; x < 4; ++x) {
        const int j = kColumns * (piece + (x >> 1)), r = 4 * j + 2 * (x & 1);
        if constexpr (!Traits::kIsE4M3) {
          tiles[x] = ptx::bfloat162_from_floats(logits[r], logits[r + 1]);
        } else if constexpr (Traits::kGroups == 1) {
          tiles[x] = ptx::e4m3x2_from_floats(logits[r], logits[r + 1]) |
                     static_cast<uint32_t>(ptx::e4m3x2_from_floats(logits[r + 4], logits[r + 5])) << 16;
        } else {
          const uint32_t* ratio = &shared_.ratio[cache_.stage()][group][4 * j + (lane_ & 3)];
          const uint32_t low = ptx::mul_half2(ptx::half2_from_floats(logits[r], logits[r + 1]), ratio[0]);
          const uint32_t high = ptx::mul_half2(ptx::half2_from_floats(logits[r + 4], logits[r + 5]), ratio[4]);
          tiles[x] = ptx::e4m3x2_from_half2(low) | static_cast<uint32_t>(ptx::e4m3x2_from_half2(high)) << 16;
        }
      }
      const uint32_t address = ptx::shared_address(shared_.probability[probability_.stage()][group]);
      ptx::stmatrix_x4(address + Tile::offset(row, piece + (lane_ >> 4)), tiles);
    }
  }

  // The end of a unit: the factors that make sums of products an output, and lse.
  __device__ void finish(const MlaUnit& unit) {
    begin_message();
    const bool leads = lane_ % 4 == 0;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float sum = softmax_.sum(i);
      const float log2_sum = softmax_.log2_sum(i, sum);  // of exp(logits), base 2
      float factor = sum > 0.0f ? 1.0f / sum : 0.0f;
      if (Traits::kFormat == CacheFormat::kTensor && params_.cache_scale != nullptr) {
        factor *= __ldg(params_.cache_scale);
      }
      const int row_of_sequence = unit.tile * Traits::kTileM + row(i);
      if (leads && unit.slot >= 0) {
        params_.partial_lse[static_cast<int64_t>(unit.slot) * Traits::kTileM + row(i)] = log2_sum;
      } else if (leads && row_of_sequence < params_.rows) {
        store_lse(params_, unit.sequence, row_of_sequence, log2_sum);
        factor *= share_beside_sink(params_, unit.sequence, row_of_sequence, log2_sum);
      }
      if (leads) message().factor[row(i)] = factor;
    }
    if (warp_ == 0 && lane_ == 0) {
      message().sequence = unit.sequence;
      message().tile = unit.tile;
      message().slot = unit.slot;
    }
    send(MlaMessage::kEndOfUnit);
  }

  // A message's buffer is free once the 8 output warps are done with it; it is complete once the 4 warps here are.
  __device__ void begin_message() {
    wait_barrier(&shared_.probability_ring.empty[probability_.stage()], probability_.parity() ^ 1);
  }
  __device__ MlaMessage& message() { return shared_.message[probability_.stage()]; }
  __device__ void send(MlaMessage::Kind kind) {
    if (warp_ == 0 && lane_ == 0) message().kind = kind;
    __syncwarp();
    if (lane_ == 0) arrive_barrier(&shared_.probability_ring.full[probability_.stage()]);
    probability_.advance();
  }

  __device__ int row(int i) const { return 16 * warp_ + (ptx::launder(lane_) >> 2) + 8 * i; }

  const MlaParams& params_;
  int warp_;
  RingCounter<Traits::kBuffers> probability_;
  MlaSoftmax<Traits> softmax_;
};

}  // namespace fp8attn::cuda
