// The two symmetric warpgroups of a kernel without roles for scores and output (MlaTraits::kSymmetric). Each makes the
// scores and probabilities of every other block, and adds every block's values to its own 256 channels of the output.
// While one is with its probabilities the other has the tensor core.
#pragma once

#include <cstdint>
#include <cuda/ptx>

#include "cuda/sm90/mla_decode/block_output.h"
#include "cuda/sm90/mla_decode/block_scores.h"
#include "cuda/sm90/mla_decode/params.h"
#include "cuda/sm90/mla_decode/query.h"
#include "cuda/sm90/mla_decode/store.h"
#include "cuda/sm90/mla_decode/traits.h"
#include "cuda/sm90/ptx/warpgroup.h"

namespace fp8attn::cuda {

template <class Traits>
class MlaConsumer {
 public:
  using Shared = typename Traits::Shared;

  __device__ MlaConsumer(Shared& shared, const MlaParams& params, const MlaConsumerThread& thread)
      : shared_(shared), params_(params), thread_(thread), scores_(shared, params, thread), output_(shared, thread) {}

  __device__ void run() {
    note_split({.first_team = -1});
    MlaWalk walk(params_, shared_.walk[4 + 4 * thread_.half + thread_.warp]);
    int& count = shared_.exchange.blocks_before[4 * thread_.half + thread_.warp];
    count = 0;  // all lanes write the same
    while (walk.next()) {
      const MlaUnit& unit = walk.unit();
      if (walk.continues()) note_split(walk.split());
      load_query(unit);
      const int before = count;
      compute(unit, before);
      __syncwarp();
      count = before + unit.last - unit.first;
      finish(unit);
    }
  }

 private:
  static constexpr int kBarrier = 1;  // the 256 threads of both; 2 and 3: the 128 of each

  // For the combining kernel, by one thread of a team.
  __device__ void note_split(const MlaSplit& split) {
    if (threadIdx.x == 128 && blockIdx.x == 0) params_.splits[blockIdx.y] = split;
  }

  // All products with the previous query have been waited for where finish() meets.
  __device__ __forceinline__ void load_query(const MlaUnit& unit) {
    load_query_rows<Traits, 8>(shared_, params_, unit.sequence, unit.tile, 4 * thread_.half + thread_.warp,
                               ptx::launder(thread_.lane));
    ptx::named_barrier_sync<256>(kBarrier);
  }

  // Turns: the scores of an own block, then P V of the block before it, which the other warpgroup has handed over
  // meanwhile, and of the own block.
  __device__ __forceinline__ void compute(const MlaUnit& unit, int count) {
    scores_.reset();
    output_.reset();
    const int base = count - unit.first;  // from the number of a block in the sequence to that in the CTA
    int next = unit.first;                // block whose P V comes next
#pragma unroll 1
    while (next < unit.last) {
      const int own = next + (((base + next) ^ thread_.half) & 1);
      if (own < unit.last) scores_.score(unit, own, base + own);
      const int end = min(own + 1, unit.last);
      output_.await_probabilities(base + end - 1);
      output_.add(base + next, end - next);
      next = end;
    }
  }

  // The end of a unit: the sums of both warpgroups make the factors that make sums of products an output, and lse.
  __device__ void finish(const MlaUnit& unit) {
    const MlaSoftmax<Traits>& softmax = scores_.softmax();
    auto& mine = shared_.exchange.ending[thread_.half];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float sum = softmax.sum(i);
      if (thread_.lane % 4 == 0) {
        mine.sum[thread_.row(i)] = sum;
        mine.maximum[thread_.row(i)] = softmax.maximum(i);
      }
    }
    ptx::named_barrier_sync<256>(kBarrier);
    const int row = 32 * thread_.warp + ptx::launder(thread_.lane);
    if (row < Traits::kTileM) mine.message.factor[row] = factor(unit, row);
    if (row == 0) {
      mine.message.sequence = unit.sequence;
      mine.message.tile = unit.tile;
      mine.message.slot = unit.slot;
    }
    ptx::named_barrier_sync<128>(2 + thread_.half);
    store_output<Traits>(shared_, params_, mine.message, output_.output(), 0,
                         {thread_.half, thread_.warp, thread_.lane});
  }

  // What the sums of products of a row are multiplied with. The first warpgroup also stores its lse.
  __device__ float factor(const MlaUnit& unit, int row) const {
    const auto& ending = shared_.exchange.ending;
    // The output is relative to the later of the two maxima, which is the higher one.
    const float maximum[2] = {ending[0].maximum[row], ending[1].maximum[row]};
    const float highest = fmaxf(maximum[0], maximum[1]), used = highest == -INFINITY ? 0.0f : highest;
    const float sum = ending[0].sum[row] * ptx::exp2_float(maximum[0] - used) +
                      ending[1].sum[row] * ptx::exp2_float(maximum[1] - used);
    constexpr float kTop = MlaSoftmax<Traits>::kTop;
    const float log2_sum = sum > 0.0f ? used - kTop + ptx::log2_float(sum) : -INFINITY;  // of exp(logits), base 2
    float factor = sum > 0.0f ? 1.0f / sum : 0.0f;
    const int row_of_sequence = unit.tile * Traits::kTileM + row;
    if (unit.slot >= 0) {
      if (thread_.half == 0) {
        params_.partial_lse[static_cast<int64_t>(unit.slot) * Traits::kTileM + row] = log2_sum;
      }
    } else if (row_of_sequence < params_.rows) {
      if (thread_.half == 0) store_lse(params_, unit.sequence, row_of_sequence, log2_sum);
      factor *= share_beside_sink(params_, unit.sequence, row_of_sequence, log2_sum);
    }
    return factor;
  }

  Shared& shared_;
  const MlaParams& params_;
  const MlaConsumerThread thread_;
  MlaBlockScores<Traits> scores_;
  MlaBlockOutput<Traits> output_;
};

}  // namespace fp8attn::cuda
