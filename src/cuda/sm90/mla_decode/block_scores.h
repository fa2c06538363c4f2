// Scores of a block by one of the two symmetric warpgroups: S = Q K^T of 64 query rows with 64 tokens, softmax,
// probabilities into shared memory.
#pragma once

#include <cstdint>
#include <cuda/ptx>

#include "cuda/sm90/mla_decode/hide.h"
#include "cuda/sm90/mla_decode/params.h"
#include "cuda/sm90/mla_decode/softmax.h"
#include "cuda/sm90/mla_decode/traits.h"
#include "cuda/sm90/ptx/half2.h"
#include "cuda/sm90/ptx/matrix.h"
#include "cuda/sm90/ptx/warpgroup.h"
#include "cuda/sm90/ptx/wgmma.h"
#include "cuda/sm90/ptx/wgmma_control.h"

namespace fp8attn::cuda {

// Where a thread of the two warpgroups stands.
struct MlaConsumerThread {
  int half;  // which warpgroup: blocks of that parity, channels 256 half to 256 half + 255 of the output
  int warp;  // within the warpgroup
  int lane;
  // The query row of the tile that fragment row i (0 or 1) of the scores is.
  __device__ int row(int i) const { return 16 * warp + (ptx::launder(lane) >> 2) + 8 * i; }
};

template <class Traits>
class MlaBlockScores {
 public:
  using Shared = typename Traits::Shared;
  static_assert(Traits::kFormat == CacheFormat::kToken, "the other formats have warpgroups for scores and for output");

  __device__ MlaBlockScores(Shared& shared, const MlaParams& params, const MlaConsumerThread& thread)
      : shared_(shared), params_(params), thread_(thread) {}

  __device__ void reset() {
    softmax_.reset();
    least_scale_ = INFINITY;
  }
  __device__ const MlaSoftmax<Traits>& softmax() const { return softmax_; }

  // Block `block` of the unit, the CTA's block number `count`.
  __device__ __forceinline__ void score(const MlaUnit& unit, int block, int count) {
    const int stage = count % Traits::kStages;
    wait_barrier(&shared_.cache_ring.full[stage], count / Traits::kStages & 1);
    Scores scores;
    multiply(scores, stage);
    if (thread_.warp >= Traits::kScoreWarps) return;
    wait_barrier(&shared_.factors_ready[stage], count / Traits::kStages & 1);
    if (params_.sparse || (block + 1) * Traits::kTileN > mla_visible_end<Traits>(params_, unit, 0)) {
      hide_tokens<Traits>(scores, shared_, params_, unit, block, stage, thread_.lane,
                          [&](int i) { return thread_.row(i); });
    }
    make_logits(scores, stage);
    float rescale[2];
    const uint32_t raised = hand_over_maxima(scores.rope, block - unit.first, count, rescale);
    least_scale_ = fminf(least_scale_, shared_.factors[stage].least_scale);
    const int buffer = count % Traits::kBuffers;
    wait_barrier(&shared_.probability_ring.empty[buffer], (count / Traits::kBuffers & 1) ^ 1);
    MlaMessage& message = shared_.message[buffer];
    if (thread_.lane == 0) message.rescales[thread_.warp] = static_cast<int>(raised);
    if (thread_.lane % 4 == 0) {
      message.factor[thread_.row(0)] = rescale[0];
      message.factor[thread_.row(1)] = rescale[1];
    }
    store_probabilities(scores.rope, stage, buffer);
    ::cuda::ptx::fence_proxy_async(::cuda::ptx::space_shared);  // wgmma reads the probabilities
    __syncwarp();
    if (thread_.lane == 0) arrive_barrier(&shared_.probability_ring.full[buffer]);
  }

 private:
  using Logits = float[32];
  static constexpr int kSettled = 6;  // blocks, behind which few maxima are raised

  using Scores = MlaScoreFragment;

  // The latent channels in four sums of 128 each. The tensor core cuts every product below 13 bits of the sum at that
  // moment: where one key is the query and all products have one sign, a sum of 512 loses half a percent.
  // RoPE products are in flight while groups are added.
  __device__ __forceinline__ void multiply(Scores& scores, int stage) {
    uint32_t second[16], third[16];
    ptx::wgmma_fence();
    issue_group<0, true>(scores.latent, stage);
    issue_group<1, true>(second, stage);
    ptx::wgmma_commit();
    issue_group<2, true>(third, stage);
    issue_rope(scores.rope, stage, 0);
    ptx::wgmma_commit();
    take_group<1>(scores.latent, second);
    issue_group<3, false>(second, stage);
    issue_rope(scores.rope, stage, 2);
    ptx::wgmma_commit();
    take_group<1>(scores.latent, third);
    take_group<0>(scores.latent, second);
    ptx::pin(scores.rope);
  }

  // Adds a group of channels when all but kPending of the products in flight are there.
  template <int kPending>
  __device__ __forceinline__ static void take_group(uint32_t (&sum)[16], uint32_t (&group)[16]) {
    ptx::wgmma_wait<kPending>();
    ptx::pin(sum);
    ptx::pin(group);
#pragma unroll
    for (int r = 0; r < 16; ++r) sum[r] = ptx::add_half2(sum[r], group[r]);
    ptx::wgmma_fence();
  }

  // kNew: d may take any registers.
  template <int kGroup, bool kNew>
  __device__ __forceinline__ void issue_group(uint32_t (&d)[16], int stage) {
    using Tile = typename Traits::LatentTile;
    const uint32_t query = ptx::shared_address(shared_.query), key = ptx::shared_address(shared_.latent[stage]);
#pragma unroll
    for (int k = 4 * kGroup; k < 4 * kGroup + 4; ++k) {
      const uint64_t a = Tile::k_major_descriptor(query, 32 * k), b = Tile::k_major_descriptor(key, 32 * k);
      if (k > 4 * kGroup) {
        ptx::wgmma_e4m3_f16_n64_ss_add(d, a, b);
      } else {
        kNew ? ptx::wgmma_e4m3_f16_n64_ss_first(d, a, b) : ptx::wgmma_e4m3_f16_n64_ss_again(d, a, b);
      }
    }
  }

  // Products `begin` and `begin` + 1 of the RoPE channels.
  __device__ __forceinline__ void issue_rope(float (&d)[32], int stage, int begin) {
    using Tile = typename Traits::RopeTile;
#pragma unroll
    for (int k = begin; k < begin + 2; ++k) {
      const uint64_t a = Tile::k_major_descriptor(ptx::shared_address(shared_.query_rope), 32 * k);
      const uint64_t b = Tile::k_major_descriptor(ptx::shared_address(shared_.rope[stage]), 32 * k);
      k == 0 ? ptx::wgmma_bf16_f32_n64_ss_first(d, a, b) : ptx::wgmma_bf16_f32_n64_ss_add(d, a, b);
    }
  }

  // Octaves: logit * log2 e, plus the logarithm of the token's scale.
  __device__ __forceinline__ void make_logits(Scores& scores, int stage) {
    Logits& logits = scores.rope;
    const float multiplier[2] = {shared_.query_scale[thread_.row(0)], shared_.query_scale[thread_.row(1)]};
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      // Scales of two tokens, logarithms of these.
      const auto factors = *reinterpret_cast<const float4*>(&shared_.factors[stage].pair[4 * j + (thread_.lane & 3)]);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int r = 4 * j + 2 * i;
        const float low = ptx::low_half_to_float(scores.latent[2 * j + i]);
        const float high = ptx::high_half_to_float(scores.latent[2 * j + i]);
        logits[r] = fmaf(fmaf(low, factors.x, logits[r]), multiplier[i], factors.z);
        logits[r + 1] = fmaf(fmaf(high, factors.y, logits[r + 1]), multiplier[i], factors.w);
      }
    }
  }

  // The maxima go from block to block, from each warp to the warp with the same rows of the other warpgroup. One place
  // each is enough: it is written again behind an answer.
  // before: how many blocks of the unit come before this one.
  __device__ __forceinline__ uint32_t hand_over_maxima(const Logits& logits, int blocks_before, int count,
                                                       float (&rescale)[2]) {
    const int half = thread_.half, other = half ^ 1;
    wait_barrier(&shared_.exchange.maxima_ready[other][thread_.warp], ((count - 1) >> 1) & 1);
    float before[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      before[i] = blocks_before > 0 ? shared_.exchange.maximum[other][thread_.row(i)] : -INFINITY;
      softmax_.set_maximum(i, blocks_before > 1 ? shared_.exchange.maximum[half][thread_.row(i)] : -INFINITY);
    }
    const uint32_t raised = softmax_.raise_maxima(logits, before, blocks_before == kSettled, least_scale_, rescale);
    if (thread_.lane % 4 == 0) {
      shared_.exchange.maximum[half][thread_.row(0)] = softmax_.maximum(0);
      shared_.exchange.maximum[half][thread_.row(1)] = softmax_.maximum(1);
    }
    __syncwarp();
    if (thread_.lane == 0) arrive_barrier(&shared_.exchange.maxima_ready[half][thread_.warp]);
    return raised;
  }

  // Probabilities as the operand of V^T P^T: four bytes of a word are tokens of two neighbouring column groups, the
  // order in which V's fragments come.
  __device__ __forceinline__ void store_probabilities(Logits& logits, int stage, int buffer) {
    using Tile = typename Traits::ProbabilityTile;
    const int row = 16 * thread_.warp + (ptx::launder(thread_.lane) & 15);
    const uint32_t address =
        ptx::shared_address(shared_.probability[0][0]) + buffer * static_cast<uint32_t>(sizeof(shared_.probability[0]));
#pragma unroll
    for (int piece = 0; piece < 4; piece += 2) {
#pragma unroll
      for (int j = 2 * piece; j < 2 * piece + 4; ++j) {
        const auto inverse =
            *reinterpret_cast<const float2*>(&shared_.factors[stage].inverse_scale[8 * j + 2 * (thread_.lane & 3)]);
        softmax_.exponentiate(logits, j, inverse);
      }
      uint32_t tiles[4];  // rows 0..7 and 8..15 of one piece, then of the next
#pragma unroll
      for (int x = 0; x < 4; ++x) {
        const int r = 8 * (piece + (x >> 1)) + 2 * (x & 1);
        tiles[x] = ptx::e4m3x2_from_floats(logits[r], logits[r + 1]) |
                   static_cast<uint32_t>(ptx::e4m3x2_from_floats(logits[r + 4], logits[r + 5])) << 16;
      }
      ptx::stmatrix_x4(address + Tile::offset(row, piece + (ptx::launder(thread_.lane) >> 4)), tiles);
    }
  }

  Shared& shared_;
  const MlaParams& params_;
  const MlaConsumerThread thread_;
  MlaSoftmax<Traits> softmax_;
  float least_scale_;  // of the tokens of this warpgroup's blocks of the unit
};

}  // namespace fp8attn::cuda
