// One consumer warpgroup of the prefill kernel.
#pragma once

#include <cstdint>
#include <cuda/ptx>
#include <type_traits>

#include "cuda/sm90/prefill/epilogue.h"
#include "cuda/sm90/prefill/math_16bit.h"
#include "cuda/sm90/prefill/math_e4m3.h"
#include "cuda/sm90/prefill/params.h"
#include "cuda/sm90/prefill/traits.h"
#include "cuda/sm90/ptx/warpgroup.h"
#include "cuda/sm90/tile/mask_scores.h"
#include "cuda/sm90/tile/pipeline.h"
#include "cuda/sm90/tile/softcap.h"

namespace fp8attn::cuda {

// A pipeline over the steps of all tiles of the warpgroup.
//
// A step multiplies the probabilities of its keys with their values, and then the query with the keys of the next step,
// which may belong to the next tile: so the end of one tile and the beginning of the next hide behind each other.
template <class Traits>
class Consumer {
 public:
  using Shared = typename Traits::Shared;
  using Plan = typename Traits::Plan;
  using Math = std::conditional_t<Traits::kIsE4M3, MathE4M3<Traits>, Math16Bit<Traits>>;

  __device__ Consumer(Shared& shared, const PrefillMaps& maps, const PrefillParams& params, ConsumerThread thread)
      : shared_(shared), maps_(maps), params_(params), thread_(thread) {}

  // Walks the steps of keys of a tile from the last, where masks apply, to the first.
  __device__ void run() {
    do {
      if (enter()) walk_tiles();
    } while (pass_over_tile());
    // Shared memory must outlive the last store.
    if (thread_.lane() == 0) ::cuda::ptx::cp_async_bulk_wait_group_read(::cuda::ptx::n32_t<0>{});
  }

 private:
  static constexpr int kBlocks = Traits::kBlocksPerStep;
  // Scores come in parts of at most 128 keys, an accumulator each.
  static constexpr int kParts = Math::kParts;
  static constexpr int kBlocksPerPart = kBlocks / kParts;
  using Part = typename Math::Score[Math::kScoreRegisters];
  using Scores = Part[kParts];
  static constexpr float kLog2E = 1.44269504088896f;
  // Whether the first scores of a step are issued before P V of the step before is folded: where the registers suffice.
  static constexpr bool kOverlaps = Traits::kOverlaps;

  // Tiles until one without rows for this warpgroup, or their end, has been entered.
  __device__ __forceinline__ void walk_tiles() {
    Scores scores;
    wait_stage(shared_.key_ring, key_);
    blocks_ = plan_back(1).last_blocks;
    issue_all_scores(scores, blocks_);
    ptx::wgmma_wait<0>();
    begin();
    while (true) {
      receive(scores);
      const bool last = unscored_ == 0;
      const bool more = !last || enter();
      const int next_blocks = last ? plan_back(1).last_blocks : kBlocks;
      step(scores, next_blocks, more || plan_back(1).skipped > 0);
      blocks_ = next_blocks;
      if (last) {
        finish(tile_back(2), plan_back(2));  // the next one, or the end, has been entered
        if (!more) return;
        begin();
      }
    }
  }

  // The tile entered last, which has no rows for this warpgroup. False: it is the end of them.
  __device__ __forceinline__ bool pass_over_tile() {
    if (tile_back(1).is_none()) return false;
    release_query();
    for (int i = plan_back(1).skipped; i > 0; --i) {
      skip_stage(shared_.key_ring, key_);
      skip_stage(shared_.value_ring, value_);
    }
    return true;
  }

  // P V of a step, and the scores of the next one, which has `next_blocks`. At the end these are scores of whatever is
  // there, and nobody reads them. `come`: whether more stages do, even if only other warpgroups need them.
  __device__ __forceinline__ void step(Scores& scores, int next_blocks, bool come) {
    constexpr int kShort = Traits::kShortStep;
    static_assert(kBlocks == kShort || kBlocks == 2 * kShort);
    if (kBlocks == kShort || blocks_ == kBlocks) return step_of<kBlocks>(scores, next_blocks, come);
    step_of<kShort>(scores, next_blocks, come);
  }

  template <int kCount>
  __device__ __forceinline__ void step_of(Scores& scores, int next_blocks, bool come) {
    typename Math::Fresh fresh;
    multiply<kCount>(scores, fresh);
    // Barriers are waited for while products are in flight.
    wait_stage_if(come, shared_.key_ring, key_);
    if constexpr (kOverlaps) {
      issue_scores<0>(scores);
      ptx::wgmma_wait<1>();
      fold(fresh);
      if (has_second_part(next_blocks)) issue_scores<kParts - 1>(scores);
    } else {
      ptx::wgmma_wait<0>();
      fold(fresh);
      issue_all_scores(scores, next_blocks);
    }
    wait_stage_if(come, shared_.value_ring, value_);
    ptx::wgmma_wait<0>();
  }

  // P V of kCount blocks. Leaves its last group in flight.
  template <int kCount>
  __device__ __forceinline__ void multiply(Scores& scores, typename Math::Fresh& fresh) {
    Math::rescale_output(output_, rescale_);
    const uint32_t values = ptx::shared_address(shared_.value[value_.stage()]);
    if constexpr (Math::kInChunks) {
      uint32_t operands[kCount * Math::kProductsPerBlock][4];
      make_operands(scores, 0, operands);
      Math::multiply_chunks(output_, fresh, operands, values, rescale_);
    } else {
#pragma unroll
      for (int block = 0; block < kCount; ++block) {
        // The tensor core starts with the operands of one block while those of the next are made.
        uint32_t operands[Math::kProductsPerBlock][4];
        make_operands(scores, block, operands);
        ptx::wgmma_fence();
        Math::multiply(output_, fresh, operands, values, block);
      }
      ptx::wgmma_commit();
    }
  }

  // Operands of the products from the first one of `block` on.
  template <int kProducts>
  __device__ __forceinline__ void make_operands(Scores& scores, int block, uint32_t (&operands)[kProducts][4]) {
#pragma unroll
    for (int k = 0; k < kProducts; ++k) {
      constexpr int kProductsPerPart = kBlocksPerPart * Math::kProductsPerBlock;
      const int product = block * Math::kProductsPerBlock + k;
      softmax_.operand(scores[product / kProductsPerPart], product % kProductsPerPart, operands[k]);
      ptx::pin(operands[k]);
    }
  }

  template <int kPart>
  __device__ __forceinline__ void issue_scores(Scores& scores) {
    ptx::wgmma_fence();
    Math::issue_scores(scores[kPart], query_, query_address(), ptx::shared_address(shared_.key[key_.stage()]), kPart);
    ptx::wgmma_commit();
  }

  __device__ __forceinline__ void issue_all_scores(Scores& scores, int blocks) {
    issue_scores<0>(scores);
    if (has_second_part(blocks)) issue_scores<kParts - 1>(scores);
  }

  // A short step's is masked, whatever it is.
  __device__ static bool has_second_part(int blocks) {
    return kParts == 2 && (!Traits::kSkipsScores || blocks == kBlocks);
  }

  // Behind the wait for P V.
  __device__ __forceinline__ void fold(typename Math::Fresh& fresh) {
    Math::fold(output_, fresh, rescale_);
    release_stage(shared_.value_ring, value_);
  }

  // Behind the wait for the scores of a step: the stage goes back, softcap, mask, maxima.
  __device__ __forceinline__ void receive(Scores& scores) {
    release_stage(shared_.key_ring, key_);
    --unscored_;
    if (!Traits::kQueryInRegisters && unscored_ == 0) release_query();
#pragma unroll
    for (auto& part : scores) {
      ptx::pin(part);
      Math::adjust_scores(part, params_.softmax_scale_log2);
    }
    if (unscored_ >= plain_end_ || (!Traits::kIsPlain && unscored_ < plain_begin_)) change(scores);
    softmax_.raise_maxima(scores);
    softmax_.prepare(scores, rescale_);
  }

  __device__ bool has_softcap() const { return !Traits::kIsPlain && params_.softcap_factor != 0.0f; }
  __device__ bool has_sink() const { return !Traits::kIsPlain && params_.sink.data != nullptr; }

  // Softcap and mask.
  __device__ __forceinline__ void change(Scores& scores) {
    if (has_softcap()) cap(scores);
    const WarpgroupPlan& plan = plan_back(1);
    mask(scores, !Traits::kIsPlain && unscored_ < plan.seen_begin, unscored_ >= plan.seen_end);
  }

  // What some row does not see: the first or the last keys of a step.
  __device__ __forceinline__ void mask(Scores& scores, bool hides_first, bool hides_last) {
    const Plan& tile = tile_back(1);
    const Mask mask{tile.query_length, tile.key_length, params_.causal, Traits::kIsPlain ? -1 : params_.window_left};
    const int row = first_row(tile);
    const int first_key = tile.first_block * Traits::kBlockN + (plan_back(1).first_step + unscored_) * Traits::kStepN;
    constexpr int kKeys = Traits::kStepN / kParts;
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      const int first = first_key + part * kKeys;
      if (hides_last && mask.visible_end(row) < first + kKeys) {
        const int end[2] = {mask.visible_end(row + thread_.row(0)) - first,
                            mask.visible_end(row + thread_.row(1)) - first};
        hide_from(scores[part], end, thread_.lane());
      }
      if (hides_first && mask.visible_begin(row + Traits::kWarpgroupM - 1) > first) {
        const int begin[2] = {mask.visible_begin(row + thread_.row(0)) - first,
                              mask.visible_begin(row + thread_.row(1)) - first};
        hide_before(scores[part], begin, thread_.lane());
      }
    }
  }

  __device__ __forceinline__ void cap(Scores& scores) const {
    const auto& kept = shared_.cap_factor[thread_.consumer()];
    const typename Traits::Factor factors[2] = {kept[thread_.row(0)], kept[thread_.row(1)]};
#pragma unroll
    for (auto& part : scores) cap_scores(part, factors);
  }

  // From a logit's score to octaves, for row i of this thread.
  __device__ float multiplier_back(int count, int i) const {
    const float score = factors_back(count).score;
    if (params_.q_scale.inner_stride == 0) return score;
    if constexpr (Traits::kNotesRows) {
      const auto& factors = shared_.row_factor[(entered_.count - count) % Traits::kTileSlots];
      return score * factors[thread_.consumer() * Traits::kWarpgroupM + thread_.row(i)];
    } else {
      const Plan& tile = tile_back(count);
      const int row = min(first_row(tile) + thread_.row(i), tile.query_length - 1);
      return score * params_.q_scale.at(tile.sequence, tile.head, tile.query_start + row);
    }
  }

  // Notes what cap() multiplies with, and gives what the capped scores are to be multiplied with.
  __device__ void set_cap_factors(float (&multiplier)[2]) {
    using Factor = CapFactor<typename Traits::Factor>;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float factor = multiplier[i] * params_.softcap_factor;
      const bool shows = factor >= Factor::kLeast;
      // Four threads write the same.
      shared_.cap_factor[thread_.consumer()][thread_.row(i)] = shows ? Factor::kept(factor) : 0;
      if (shows) multiplier[i] = params_.softcap_log2 * (1.0f / Factor::kResultUnit);
    }
    __syncwarp();  // each warp reads its own rows
  }

  // The tile that was entered last (1), or the one before (2), and what this warpgroup does of it.
  __device__ const Plan& tile_back(int count) const {
    return shared_.tile[(entered_.count - count) % Traits::kTileSlots];
  }
  __device__ const WarpgroupPlan& plan_back(int count) const { return tile_back(count).warpgroup[thread_.consumer()]; }
  __device__ const typename Traits::Factors& factors_back(int count) const {
    return shared_.factors[(entered_.count - count) % Traits::kTileSlots];
  }
  // Of the sequence.
  __device__ int first_row(const Plan& tile) const { return tile.row + thread_.consumer() * Traits::kWarpgroupM; }

  // Waits for the next tile and its query. False: there is none.
  __device__ bool next_tile() {
    wait_barrier(&shared_.query_ring[thread_.consumer()].full[entered_.stage()], entered_.parity());
    entered_.advance();
    return !tile_back(1).is_none();
  }

  // Makes the query of the next tile ready for issue_scores(), and passes over keys that only other warpgroups need.
  // False: there is no next tile, or it has no rows for this warpgroup.
  __device__ __forceinline__ bool enter() {
    if (!next_tile() || plan_back(1).steps == 0) return false;
#pragma unroll
    for (int i = 0; i < 2; ++i) multiplier_[i] = multiplier_back(1, i);
    if constexpr (Traits::kIsE4M3) {
      Math::prepare_query(query_, query_address(), ptx::shared_address(shared_.value[0]), thread_.warp(),
                          thread_.lane(), multiplier_);
      if constexpr (Traits::kQueryInRegisters) {
        // The rescaling decision waits for every load, so the tile is free behind it.
        release_query();
      } else {
        // wgmma reads what any warp of the warpgroup may have rewritten. The 128 threads of the warpgroup meet.
        ptx::named_barrier_sync<128>(1 + thread_.consumer());
      }
    } else {
      // The scores carry the sign (adjust_scores()).
      multiplier_[0] = multiplier_[1] = multiplier_[0] == 0.0f ? 1.0f : fabsf(multiplier_[0]);
    }
    if (has_softcap()) set_cap_factors(multiplier_);
    for (int i = plan_back(1).skipped; i > 0; --i) skip_stage(shared_.key_ring, key_);
    return true;
  }

  // The state of the tile that has been entered, when the tile before it is finished.
  __device__ __forceinline__ void begin() {
    const WarpgroupPlan& plan = plan_back(1);
    plain_begin_ = plan.seen_begin;
    plain_end_ = has_softcap() ? 0 : plan.seen_end;
    unscored_ = plan.steps;
    const int skipped = plan.skipped;
    softmax_.reset(multiplier_);
    Math::clear(output_);
    for (int i = skipped; i > 0; --i) skip_stage(shared_.value_ring, value_);
    wait_stage(shared_.value_ring, value_);
  }

  __device__ static void wait_stage(RingBarriers<Traits::kStages>& ring,
                                    const RingPosition<Traits::kStages>& position) {
    wait_barrier(&ring.full[position.stage()], position.parity());
  }

  // Without a branch. Where no stage comes, the phase before has passed, and no other will.
  __device__ static void wait_stage_if(bool comes, RingBarriers<Traits::kStages>& ring,
                                       const RingPosition<Traits::kStages>& position) {
    wait_barrier(&ring.full[position.stage()], position.parity() ^ static_cast<uint32_t>(!comes));
  }

  __device__ void skip_stage(RingBarriers<Traits::kStages>& ring, RingPosition<Traits::kStages>& position) const {
    wait_stage(ring, position);
    release_stage(ring, position);
  }

  __device__ void finish(const Plan& tile, const WarpgroupPlan& plan) {
    float sum[2], denominator[2], factor[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) denominator[i] = sum[i] = Math::stored_sum(output_, softmax_, i);
    if (has_sink()) add_sink(tile, sum, denominator);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      factor[i] = sum[i] == 0.0f ? 0.0f : ptx::reciprocal(denominator[i]);  // 0: the row sees no key
    }
    if constexpr (Traits::kIsE4M3) finish_values(tile, sum, factor);
    store_output<Traits>(shared_, maps_, params_, tile, plan.rows, output_.value, factor, thread_);
    if (params_.lse != nullptr) store_lse(tile, sum);
  }

  // V scale and mean.
  __device__ void finish_values(const Plan& tile, const float (&sum)[2], float (&factor)[2]) {
    if (params_.v_scale.inner_stride != 0 || params_.v_mean.data != nullptr) {
      finish_channels(output_.value, factor, sum, params_, tile.sequence, tile.kv_head, thread_.lane());
    } else {
      const float scale = factors_back(2).output;
      factor[0] *= scale;
      factor[1] *= scale;
    }
  }

  // To the denominators.
  __device__ void add_sink(const Plan& tile, const float (&sum)[2], float (&denominator)[2]) const {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if (sum[i] == 0.0f) continue;
      // Relative to what one unit of the sum is worth.
      denominator[i] += ptx::exp2_float(params_.sink.at(0, tile.head) * kLog2E - log2_sum(i, 1.0f));
    }
  }

  // Of the four lanes that share two rows, the first two store one each.
  __device__ void store_lse(const Plan& tile, const float (&sum)[2]) const {
    const int i = thread_.lane() & 1;
    const int row = thread_.consumer() * Traits::kWarpgroupM + thread_.row(i);  // of the tile
    if ((thread_.lane() & 2) != 0 || tile.row + row >= tile.query_length) return;
    const float own = i == 0 ? sum[0] : sum[1];
    float exponent = log2_sum(i, own);
    if (params_.lse_bias.data != nullptr) {
      const int token = tile.query_start + tile.row + row;
      exponent = fmaf(params_.lse_bias.at(tile.sequence, tile.head, token), kLog2E, exponent);
    }
    params_.lse[factors_back(2).lse + row * params_.lse_row_stride] =
        own == 0.0f ? -INFINITY : exponent * params_.lse_unit;
  }

  // Of a row of the tile to be finished.
  __device__ float log2_sum(int i, float stored_sum) const {
    // 0, with a softcap: what the softmax has.
    return softmax_.log2_sum(i, stored_sum, has_softcap() ? 0.0f : multiplier_back(2, i));
  }

  // The stage of the tile entered last.
  __device__ int query_stage() const { return (entered_.count - 1) % Traits::kQueryStages; }
  __device__ uint32_t query_address() const {
    return ptx::shared_address(shared_.query[thread_.consumer()][query_stage()]);
  }
  __device__ void release_query() const { release(shared_.query_ring[thread_.consumer()].empty[query_stage()]); }

  // One arrival a warp.
  __device__ void release(uint64_t& empty) const {
    __syncwarp();
    if (thread_.lane() == 0) arrive_barrier(&empty);
  }
  __device__ void release_stage(RingBarriers<Traits::kStages>& ring, RingPosition<Traits::kStages>& position) const {
    release(ring.empty[position.stage()]);
    position.advance();
  }

  Shared& shared_;
  const PrefillMaps& maps_;
  const PrefillParams& params_;
  const ConsumerThread thread_;
  RingPosition<Traits::kStages> key_, value_;
  RingPosition<Traits::kQueryStages> entered_;  // tiles, the end of them included
  int plain_begin_, plain_end_;                 // between these steps of the tile there is neither softcap nor mask
  int blocks_;                                  // of the step whose scores have been received last
  int unscored_;                                // steps of the tile whose scores have not been received yet
  float multiplier_[2];                         // from a score to octaves, of the tile entered last
  float rescale_[2];                            // of the output, before the received scores' P V is added
  typename Math::Query query_;
  typename Math::Output output_;
  typename Math::Softmax softmax_;
};

}  // namespace fp8attn::cuda
