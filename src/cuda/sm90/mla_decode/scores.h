// A scores' warpgroup: S = Q K^T of 64 query rows with blocks of 64 tokens, softmax, probabilities into shared memory.
// There are two, which take turns: while one multiplies, the other is in its softmax.
#pragma once

#include <cstdint>
#include <cuda/ptx>

#include "cuda/sm90/mla_decode/load.h"
#include "cuda/sm90/mla_decode/params.h"
#include "cuda/sm90/mla_decode/products.h"
#include "cuda/sm90/mla_decode/query.h"
#include "cuda/sm90/mla_decode/schedule.h"
#include "cuda/sm90/mla_decode/softmax.h"
#include "cuda/sm90/mla_decode/traits.h"
#include "cuda/sm90/ptx/matrix.h"
#include "cuda/sm90/ptx/warpgroup.h"

namespace fp8attn::cuda {

template <class Traits>
class MlaScores : MlaProducts<Traits> {
  using Products = MlaProducts<Traits>;
  using Products::group, Products::lane, Products::meet_group, Products::shared_, Products::warp, Products::warp_;

 public:
  using Shared = typename Traits::Shared;

  // warp: of the 8 of both warpgroups.
  __device__ MlaScores(Shared& shared, const MlaMaps& maps, const MlaParams& params, int warp, int lane)
      : Products(shared, warp, lane), params_(params), loader_(shared, maps, params) {}

  __device__ void run() {
    note_split({.first_team = -1});
    walk().start(shared_.plan);
    bool more = walk().next();
    if (group() == 0 && warp() == 0 && lane() == 0) shared_.any_unit = more;
    if (group() == 0 && lane() < 16) shared_.maximum[16 * warp() + lane()] = -INFINITY;
    // The first query is loaded by the output's warps: they have nothing to do yet, and registers for all of it at
    // once.
    ptx::named_barrier_sync<Traits::kThreads>(kStartBarrier);  // they may look at the unit
    if (warp() == 0) ahead().start(shared_.walk[ptx::launder(warp_)], more);
    if (group() == 0) load_first_blocks();
    if (more) ptx::named_barrier_sync<Traits::kThreads>(kStartBarrier);  // they are done
    while (more) {
      if (walk().split().first_team >= 0) note_split(walk().split());
      compute(walk().unit());
      more = walk().next();
      if (more) load_query(walk().unit());
    }
    if (has_turn()) {
      begin_message();
      send(MlaMessage::kExit);
    }
  }

 private:
  using Logits = float[32];
  // Probabilities of a thread as they are stored: word 2 p + i is piece p of 16 bytes of row i. kToken128: pairs in
  // half, word 2 j + i for columns 8 j + 2 (lane % 4) + {0, 1}.
  static constexpr bool kStoresGroups = Traits::kGroups == 4;
  static constexpr int kWords = !Traits::kIsE4M3 || kStoresGroups ? 16 : 8;

  // For the combining kernel, by one thread of a team.
  __device__ void note_split(const MlaSplit& split) {
    const int team_size = params_.schedule.team_size;
    const int team = static_cast<int>(blockIdx.x) / team_size;
    if (group() == 0 && warp() == 0 && lane() == 0 && team * team_size == static_cast<int>(blockIdx.x)) {
      params_.splits[team] = split;
    }
  }

  __device__ __forceinline__ void load_query(const MlaUnit& unit) {
    // All products with the previous query are finished, then all rows of the new one are there.
    ptx::named_barrier_sync<256>(kScoresBarrier);
    load_query_rows<Traits, 8, 2>(shared_, ptx::launder_reference(params_), unit.sequence, unit.tile, 4 * group() + warp(),
                                  lane());
    ptx::named_barrier_sync<256>(kScoresBarrier);
  }

  __device__ void load_first_blocks() {
    if (warp() == 0) {
#pragma unroll 1
      for (int block = 0; block < Traits::kStages; ++block) {
        if (params_.gathers()) {
          ahead().note(block, lane(), true);
        } else if (ahead().advance(block, lane(), true)) {
          loader_.load_boxes(ahead(), ahead().unit(), ahead().block(), block, lane());
        }
      }
    }
    if (!params_.gathers()) return;
    meet_group();  // all sources are noted
#pragma unroll 1
    for (int block = 0; block < Traits::kStages; ++block) loader_.gather(shared_.order[block], block, warp(), lane());
  }

  __device__ __forceinline__ void wait_for_output(int done) const {
    wait_barrier(&shared_.cache_ring.empty[done % Traits::kStages], done / Traits::kStages & 1);
  }

  // The block that load_boxes_ahead() is to load, if it belongs to another unit: there are registers for that now.
  static constexpr int kLead = Traits::kStages - 2;
  __device__ __forceinline__ void look_ahead(const MlaUnit& unit, int block) const {
    if (kLead == 0 || block + kLead < unit.last || params_.gathers() || warp() != 0) return;
    ahead().advance(cache_.count() + kLead, lane(), group() == 0);
  }

  // In the midst of a block the output should be done with the block before the last one: into its stage, by TMA, comes
  // the one after the next if there are four stages. If there are two it is this block.
  __device__ __forceinline__ void load_boxes_ahead(const MlaUnit& unit, int block) const {
    const int done = cache_.count() - 2;
    if (params_.gathers() || done < 0 || warp() != 0) return;
    const bool same_unit = kLead == 0 || block + kLead < unit.last;
    if (!same_unit && !ahead().exists()) return;
    wait_for_output(done);
    loader_.load_boxes(ahead(), same_unit ? unit : ahead().unit(), same_unit ? block + kLead : ahead().block(),
                       done % Traits::kStages, lane());
  }

  // Gathering takes registers, which are free before a block, and time: of two stages this block, of four the next.
  __device__ __forceinline__ void gather_ahead() const {
    if (!params_.gathers()) return;
    meet_group();  // the sources are noted
    const int done = cache_.count() - (Traits::kStages == 2 ? 2 : 3);
    if (done < 0) return;
    wait_for_output(done);
    loader_.gather(shared_.order[(done + Traits::kStages) % Traits::kOrders], done % Traits::kStages, warp(), lane());
  }

  // Every message is a turn, and turns alternate: each block's probabilities, and the end of each unit.
  __device__ bool has_turn() const { return (turn_.count() & 1) == group(); }

  __device__ void compute(const MlaUnit& unit) {
    softmax_.reset();
    // Blocks before this one are seen by all rows.
    const int seen = params_.sparse ? 0 : visible_end(unit, 0) / Traits::kTileN;
#pragma unroll 1
    for (int block = unit.first; block < unit.last; ++block) {
      if (has_turn()) step(unit, block, block < seen);
      turn_.advance();
      cache_.advance();
    }
    if (has_turn()) finish(unit);
    turn_.advance();
  }

  // From a block's keys to its probabilities.
  __device__ __forceinline__ void step(const MlaUnit& unit, int block, bool all_seen) {
    const int stage = cache_.stage();
    const int tokens = min(unit.length - block * Traits::kTileN, Traits::kTileN);
    gather_ahead();
    look_ahead(unit, block);
    if constexpr (Traits::kStages == 2) load_boxes_ahead(unit, block);
    receive_block(stage, tokens);
    Logits logits;
    float multiplier[2];
    float4 log2_scale[4];
    this->multiply(
        logits, stage, tokens,
        [&] {
          if (params_.gathers() && warp() == 0) {
            ahead().note(cache_.count() + Traits::kStages, lane(), group() == 0);
          }
        },
        [&] { load_row_factors(multiplier, log2_scale); });
    make_logits(logits, multiplier, log2_scale);
    if (!all_seen) hide(logits, unit, block);
    float rescale[2];
    const bool last = block + 1 == unit.last;
    const bool rescales = take_maxima(logits, rescale, !last);
    if constexpr (Traits::kStages > 2) load_boxes_ahead(unit, block);
    uint32_t words[kWords];
    make_probabilities(logits, words);
    if (last) leave_sums();
    begin_message();
    if (lane() == 0) message().rescales[warp()] = rescales;
    if (lane() % 4 == 0) {
      message().factor[row(0)] = rescale[0];
      message().factor[row(1)] = rescale[1];
    }
    store_probabilities(words, stage);
    ::cuda::ptx::fence_proxy_async(::cuda::ptx::space_shared);  // wgmma reads the probabilities
    send(MlaMessage::kBlock);
  }

  // Waits for a block.
  __device__ __forceinline__ void receive_block(int stage, int tokens) {
    wait_barrier(&shared_.cache_ring.full[stage], cache_.parity());
    if (params_.gathers()) {
      ::cuda::ptx::fence_proxy_async(::cuda::ptx::space_shared);  // wgmma reads what cp.async wrote
    } else if (tokens < Traits::kTileN) {
      // Behind the last token there may be NaN, which P = 0 would not silence.
      clear_latents(stage, tokens);
      ::cuda::ptx::fence_proxy_async(::cuda::ptx::space_shared);
      if constexpr (!Traits::kTokenScales) meet_group();
    }
    // All warps are done with the factors of the block before, and with clearing.
    if constexpr (Traits::kTokenScales) meet_group();
  }

  // Of tokens `first` and later.
  __device__ void clear_latents(int stage, int first) {
    constexpr int kPieces = Traits::kLatentBytes / 16;
    for (int i = first * kPieces + 32 * warp() + lane(); i < Traits::kTileN * kPieces; i += 128) {
      uint8_t* piece = shared_.latent[stage] + Traits::LatentTile::offset(i / kPieces, i % kPieces);
      *reinterpret_cast<uint4*>(piece) = make_uint4(0, 0, 0, 0);
    }
  }

  __device__ __forceinline__ void load_row_factors(float (&multiplier)[2], float4 (&log2_scale)[4]) const {
    multiplier[0] = shared_.query_scale[row(0)];
    multiplier[1] = shared_.query_scale[row(1)];
    if constexpr (Traits::kTokenScales) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        log2_scale[i] = *reinterpret_cast<const float4*>(shared_.factors[group()][i].log2_scale[lane() & 3]);
      }
    }
  }

  // From scores to octaves: logit * log2 e, plus the logarithm of the token's scale.
  __device__ __forceinline__ void make_logits(Logits& logits, const float (&multiplier)[2],
                                              const float4 (&log2_scale)[4]) const {
#pragma unroll
    for (int r = 0; r < 32; ++r) {
      if constexpr (Traits::kTokenScales) {
        const float4& offset = log2_scale[r / 8];
        const float low = r % 8 < 4 ? offset.x : offset.z, high = r % 8 < 4 ? offset.y : offset.w;
        logits[r] = fmaf(logits[r], multiplier[r / 2 % 2], r % 2 == 0 ? low : high);
      } else {
        logits[r] *= multiplier[r / 2 % 2];
      }
    }
  }

  // Row `row` of the unit's tile sees the tokens before this one.
  __device__ int visible_end(const MlaUnit& unit, int row) const {
    const Mask mask{params_.queries, unit.length, params_.causal};
    return mask.visible_end(params_.heads.divide(unit.tile * Traits::kTileM + row));
  }

  // The logit of a token that a row does not see becomes minus infinity.
  __device__ __forceinline__ void hide(Logits& logits, const MlaUnit& unit, int block) const {
    uint64_t present = ~uint64_t{0};
    if (params_.sparse) {
      const auto& words = shared_.present[cache_.count() % Traits::kPresentWords];
      present = static_cast<uint64_t>(words[1]) << 32 | words[0];
    }
    const int shift = 2 * (lane() & 3);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int count = min(max(visible_end(unit, row(i)) - block * Traits::kTileN, 0), Traits::kTileN);
      const uint64_t seen = count == 64 ? present : present & ((uint64_t{1} << count) - 1);
      const uint32_t low = static_cast<uint32_t>(seen) >> shift, high = static_cast<uint32_t>(seen >> 32) >> shift;
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        const uint32_t bits = (j < 4 ? low : high) >> (8 * j % 32);
        if ((bits & 1) == 0) logits[4 * j + 2 * i] = -INFINITY;
        if ((bits & 2) == 0) logits[4 * j + 2 * i + 1] = -INFINITY;
      }
    }
  }

  // Takes note of a block's largest logits, on top of those that the turns before left, and leaves the result to the
  // next turn (`leaves`: at once).
  __device__ __forceinline__ bool take_maxima(const Logits& logits, float (&rescale)[2], bool leaves) {
    wait_for_turn();
    const float before[2] = {shared_.maximum[row(0)], shared_.maximum[row(1)]};
    const bool raises = softmax_.raise_maxima(logits, before, rescale);
    if (raises && lane() % 4 == 0) {
      shared_.maximum[row(0)] = softmax_.maximum(0);
      shared_.maximum[row(1)] = softmax_.maximum(1);
    }
    if (leaves) leave_turn();
    return raises;
  }

  // Behind the last block of a unit: what the other warpgroup, whose turn the end is, does not know.
  __device__ void leave_sums() {
    const float sum[2] = {softmax_.sum(0), softmax_.sum(1)};
    if (lane() % 4 == 0) {
      shared_.sum[row(0)] = sum[0];
      shared_.sum[row(1)] = sum[1];
    }
    leave_turn();
  }

  // Until the warp of the other warpgroup that has the same rows has left its turn.
  __device__ void wait_for_turn() { wait_barrier(&shared_.turn[1 - group()][warp()], ((turn_.count() - 1) >> 1) & 1); }
  __device__ void leave_turn() {
    __syncwarp();
    if (lane() == 0) arrive_barrier(&shared_.turn[group()][warp()]);
  }

  __device__ __forceinline__ void make_probabilities(Logits& logits, uint32_t (&words)[kWords]) {
#pragma unroll
    for (int j = 0; j < 8; j += 2) {
      float4 inverse = {1.0f, 1.0f, 1.0f, 1.0f};
      if constexpr (Traits::kTokenScales) {
        inverse = *reinterpret_cast<const float4*>(shared_.factors[group()][j / 2].inverse_scale[lane() & 3]);
      }
      softmax_.exponentiate(logits, j, {inverse.x, inverse.y});
      softmax_.exponentiate(logits, j + 1, {inverse.z, inverse.w});
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const float* value = &logits[4 * j + 2 * i];  // columns of groups j and, 4 registers on, j + 1
        if constexpr (!Traits::kIsE4M3) {
          words[2 * j + i] = ptx::bfloat162_from_floats(value[0], value[1]);
          words[2 * j + 2 + i] = ptx::bfloat162_from_floats(value[4], value[5]);
        } else if constexpr (kStoresGroups) {
          words[2 * j + i] = ptx::half2_from_floats(value[0], value[1]);
          words[2 * j + 2 + i] = ptx::half2_from_floats(value[4], value[5]);
        } else {
          words[j + i] = ptx::e4m3x2_from_floats(value[0], value[1]) |
                         static_cast<uint32_t>(ptx::e4m3x2_from_floats(value[4], value[5])) << 16;
        }
      }
    }
  }

  // Probabilities as the operand of V^T P^T (e4m3: four bytes of a word are tokens of two neighbouring column groups,
  // the order in which V's fragments come) or of P V (bf16).
  __device__ __forceinline__ void store_probabilities(const uint32_t (&words)[kWords], int stage) {
    if constexpr (kStoresGroups) {
#pragma unroll
      for (int group = 0; group < 4; ++group) {
        const auto* ratios = reinterpret_cast<const uint4*>(&shared_.ratio[stage][group][8 * (lane() & 3)]);
#pragma unroll
        for (int half = 0; half < 2; ++half) {  // of the block's tokens
          const uint4 four = ratios[half];
          const uint32_t ratio[4] = {four.x, four.y, four.z, four.w};
          uint32_t tiles[4];
#pragma unroll
          for (int x = 0; x < 4; ++x) {
            const uint32_t* pair = &words[8 * half + 4 * (x / 2) + x % 2];
            const uint32_t low = ptx::mul_half2(pair[0], ratio[x / 2 * 2]);
            const uint32_t high = ptx::mul_half2(pair[2], ratio[x / 2 * 2 + 1]);
            tiles[x] = ptx::e4m3x2_from_half2(low) | static_cast<uint32_t>(ptx::e4m3x2_from_half2(high)) << 16;
          }
          store_pieces(tiles, group, 2 * half);
        }
      }
    } else {
#pragma unroll
      for (int piece = 0; piece < kWords / 2; piece += 2) {
        const uint32_t tiles[4] = {words[2 * piece], words[2 * piece + 1], words[2 * piece + 2], words[2 * piece + 3]};
        store_pieces(tiles, 0, piece);
      }
    }
  }

  // tiles: rows 0..7 and 8..15 of piece `piece`, then of the next.
  __device__ __forceinline__ void store_pieces(const uint32_t (&tiles)[4], int group, int piece) {
    using Tile = typename Traits::ProbabilityTile;
    const uint32_t address = ptx::shared_address(shared_.probability[turn_.stage()][group]);
    ptx::stmatrix_x4(address + Tile::offset(16 * warp() + (lane() & 15), piece + (lane() >> 4)), tiles);
  }

  // The end of a unit: the factors that make sums of products an output, and lse.
  __device__ void finish(const MlaUnit& unit) {
    wait_for_turn();
    const bool leads = lane() % 4 == 0;
    float factor[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float maximum = shared_.maximum[row(i)];
      const float others = unit.first < unit.last ? shared_.sum[row(i)] : 0.0f;
      const float sum = softmax_.sum_relative_to(i, maximum) + others;
      const float log2_sum = softmax_.log2_sum(maximum, sum);  // of exp(logits), base 2
      factor[i] = sum > 0.0f ? 1.0f / sum : 0.0f;
      if (Traits::kFormat == CacheFormat::kTensor && params_.cache_scale != nullptr) {
        factor[i] *= __ldg(params_.cache_scale);
      }
      const int row_of_sequence = unit.tile * Traits::kTileM + row(i);
      if (leads && unit.slot >= 0) {
        params_.partial_lse[static_cast<int64_t>(unit.slot) * Traits::kTileM + row(i)] = log2_sum;
      } else if (leads && row_of_sequence < params_.rows) {
        store_lse(params_, unit.sequence, row_of_sequence, log2_sum);
        factor[i] *= share_beside_sink(params_, unit.sequence, row_of_sequence, log2_sum);
      }
    }
    __syncwarp();
    if (lane() < 16) shared_.maximum[16 * warp() + lane()] = -INFINITY;
    leave_turn();
    begin_message();
    if (leads) {
      message().factor[row(0)] = factor[0];
      message().factor[row(1)] = factor[1];
    }
    if (warp() == 0 && lane() == 0) {
      message().sequence = unit.sequence;
      message().tile = unit.tile;
      message().slot = unit.slot;
    }
    send(MlaMessage::kEndOfUnit);
  }

  // A message's buffer is free once the 8 output warps are done with it; it is complete once the 4 warps here are.
  __device__ void begin_message() {
    const int buffer = turn_.stage();
    const uint32_t before = turn_.parity() ^ 1;
    // With one buffer its last message was the other warpgroup's, which may not have been sent yet.
    if constexpr (Traits::kBuffers == 1) wait_barrier(&shared_.probability_ring.full[buffer], before);
    wait_barrier(&shared_.probability_ring.empty[buffer], before);
  }
  __device__ MlaMessage& message() { return shared_.message[turn_.stage()]; }
  __device__ void send(MlaMessage::Kind kind) {
    if (warp() == 0 && lane() == 0) message().kind = kind;
    __syncwarp();
    if (lane() == 0) arrive_barrier(&shared_.probability_ring.full[turn_.stage()]);
  }

  __device__ MlaWalk walk() { return {params_, shared_.walk[ptx::launder(warp_)]}; }
  __device__ MlaAhead<Traits> ahead() const { return {shared_, params_, shared_.ahead[group()]}; }

  __device__ int row(int i) const { return 16 * warp() + (lane() >> 2) + 8 * i; }

  const MlaParams& params_;
  const MlaLoader<Traits> loader_;
  RingCounter<Traits::kBuffers> turn_;  // turns passed, those of the other warpgroup included
  RingCounter<Traits::kStages> cache_;  // the same of blocks
  MlaSoftmax<Traits> softmax_;
};

}  // namespace fp8attn::cuda
