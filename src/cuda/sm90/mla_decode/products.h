// Products of the query with blocks of keys, by the scores' warpgroup.
#pragma once

#include <cstdint>

#include "cuda/sm90/mla_decode/traits.h"
#include "cuda/sm90/ptx/half2.h"
#include "cuda/sm90/ptx/matrix.h"
#include "cuda/sm90/ptx/wgmma.h"
#include "cuda/sm90/ptx/wgmma_control.h"

namespace fp8attn::cuda {

// Accumulators of a block: register 4 j + 2 i + c of a float array, half c of register 2 j + i of a half one, is token
// 8 j + 2 (lane % 4) + c of row lane / 4 + 8 i.
template <class Traits>
struct MlaAccumulators {
  // e4m3: sums of 128 channels (kTensor: and of RoPE ones), in half. The tensor core cuts what it adds below 13 bits of
  // the sum at that moment: where one key is the query and all products have one sign, a sum of 512 channels loses half
  // a percent. kToken128: of two groups, then of the other two.
  uint32_t latent[!Traits::kIsE4M3 ? 1 : Traits::kGroups == 4 ? 2 : 4][16];
  float rope[32];  // bf16: all channels
};

template <class Traits>
class MlaProducts {
 public:
  using Shared = typename Traits::Shared;

 protected:
  __device__ MlaProducts(Shared& shared, int lane) : shared_(shared), lane_(lane) {}

  // Those of block cache_, with nothing else in flight.
  __device__ __forceinline__ void all_products(uint32_t query) {
    wait_for_stage(cache_);
    ptx::wgmma_fence();
#pragma unroll
    for (int part = 0; part < kParts; ++part) issue_part(query, cache_.stage(), part);
    ptx::wgmma_commit();
    finish_products(query);
  }

  __device__ __forceinline__ void wait_for_stage(const RingCounter<Traits::kStages>& at) {
    wait_barrier(&shared_.cache_ring.full[at.stage()], at.parity());
    if constexpr (Traits::kTokenScales) wait_barrier(&shared_.factors_ready[at.stage()], at.parity());
  }

  // The products of a block are issued in parts, in the midst of the softmax of the block before. With kToken128 there
  // are registers for two of the four groups only, and later.
  //
  // With bf16 there are two stages only: the products wait for theirs until the probabilities are on their way, or each
  // load would wait for the block before it.
  static constexpr bool kIssuesAhead = Traits::kIsE4M3;
  static constexpr bool kIssuesEarly = kIssuesAhead && Traits::kGroups == 1;
  static constexpr int kParts = 4;
  __device__ __forceinline__ void issue_part(uint32_t query, int stage, int part) {
    constexpr int kSteps = Traits::kLatentBytes / 32 / kParts, kRopeSteps = Traits::kRopeBytes / 32;
    auto& d = accumulators_;
    if constexpr (Traits::kGroups == 4) {
      issue_latent(d.latent[part / 2], query, stage, 2 * part, 2 * part + 2, part / 2 * 4);
    } else {
      if constexpr (Traits::kIsE4M3) {
        issue_latent(d.latent[part], query, stage, kSteps * part, kSteps * (part + 1), kSteps * part);
      } else {
        issue_latent(d.rope, query, stage, kSteps * part, kSteps * (part + 1), 0);
      }
      if (part >= kParts - kRopeSteps) issue_rope(query, stage, part - (kParts - kRopeSteps));
    }
  }
  __device__ __forceinline__ void issue_fenced(int stage, int part) {
    ptx::wgmma_fence();
    issue_part(query_address(), stage, part);
  }

  // The rest of them, and the sum over the groups of channels that have scales of their own.
  __device__ __forceinline__ void finish_products(uint32_t query) {
    auto& d = accumulators_;
    if constexpr (Traits::kGroups == 4) {
      ptx::wgmma_wait<0>();
      uint32_t sum[16];
      scale_group<true>(sum, d.latent[0], 0);
      scale_group<false>(sum, d.latent[1], 1);
      ptx::wgmma_fence();
#pragma unroll
      for (int group = 2; group < 4; ++group) {
        issue_latent(d.latent[group - 2], query, cache_.stage(), 4 * group, 4 * group + 4, 4 * group);
        ptx::wgmma_commit();
      }
#pragma unroll
      for (int k = 0; k < Traits::kRopeBytes / 32; ++k) issue_rope(query, cache_.stage(), k);
      ptx::wgmma_commit();
      ptx::wgmma_wait<2>();
      scale_group<false>(sum, d.latent[0], 2);
      ptx::wgmma_wait<1>();
      scale_group<false>(sum, d.latent[1], 3);
#pragma unroll
      for (int r = 0; r < 16; ++r) d.latent[0][r] = sum[r];
    }
    ptx::wgmma_wait<0>();
    if constexpr (Traits::kIsE4M3 && Traits::kGroups == 1) {
#pragma unroll
      for (auto& sum : d.latent) ptx::pin(sum);
#pragma unroll
      for (int r = 0; r < 16; ++r) {
        d.latent[0][r] = ptx::add_half2(ptx::add_half2(d.latent[0][r], d.latent[1][r]),
                                        ptx::add_half2(d.latent[2][r], d.latent[3][r]));
      }
    } else if constexpr (Traits::kIsE4M3) {
      ptx::pin(d.latent[0]);
    }
    if constexpr (Traits::kRopeIsBF16) ptx::pin(d.rope);
  }

  // Products of 32-byte steps [begin, end) of the latent channels, in half (e4m3) or float (bf16) accumulators, which
  // start at step `start`.
  template <class Accumulator>
  __device__ __forceinline__ void issue_latent(Accumulator& d, uint32_t query, int stage, int begin, int end,
                                               int start) {
    using Tile = typename Traits::LatentTile;
    const uint32_t key = ptx::shared_address(shared_.latent[stage]);
#pragma unroll
    for (int k = begin; k < end; ++k) {
      const uint64_t a = Tile::k_major_descriptor(query, 32 * k), b = Tile::k_major_descriptor(key, 32 * k);
      if constexpr (Traits::kIsE4M3) {
        k == start ? ptx::wgmma_e4m3_f16_n64_ss_again(d, a, b) : ptx::wgmma_e4m3_f16_n64_ss_add(d, a, b);
      } else {
        k == start ? ptx::wgmma_bf16_f32_n64_ss_again(d, a, b) : ptx::wgmma_bf16_f32_n64_ss_add(d, a, b);
      }
    }
  }

  // Product k of the RoPE channels. kTensor and bf16: on top of the latent's.
  __device__ __forceinline__ void issue_rope(uint32_t query, int stage, int k) {
    using Tile = typename Traits::RopeTile;
    auto& d = accumulators_;
    const uint32_t query_rope = query + Traits::LatentTile::kBytes;  // they lie side by side
    const uint64_t a = Tile::k_major_descriptor(query_rope, 32 * k);
    const uint64_t b = Tile::k_major_descriptor(ptx::shared_address(shared_.rope[stage]), 32 * k);
    if constexpr (!Traits::kRopeIsBF16) {
      ptx::wgmma_e4m3_f16_n64_ss_add(d.latent[kParts - Traits::kRopeBytes / 32 + k], a, b);
    } else {
      Traits::kIsE4M3&& k == 0 ? ptx::wgmma_bf16_f32_n64_ss_again(d.rope, a, b)
                               : ptx::wgmma_bf16_f32_n64_ss_add(d.rope, a, b);
    }
  }

  // sum (kFirst: =, else +=) scores of a group, times its scale over the largest of the token.
  template <bool kFirst>
  __device__ __forceinline__ void scale_group(uint32_t (&sum)[16], uint32_t (&scores)[16], int group) {
    ptx::pin(scores);
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const uint32_t ratio = shared_.ratio[cache_.stage()][group][4 * j + (lane_ & 3)];
#pragma unroll
      for (int r = 2 * j; r < 2 * j + 2; ++r) {
        sum[r] = kFirst ? ptx::mul_half2(scores[r], ratio) : ptx::fma_half2(scores[r], ratio, sum[r]);
      }
    }
  }

  // The products before the loop over blocks get it laundered: descriptors that both had in common would be kept in
  // registers throughout.
  __device__ uint32_t query_address() const { return ptx::shared_address(shared_.query); }

  Shared& shared_;
  const int lane_;
  RingCounter<Traits::kStages> cache_;    // the block whose scores these are or will be
  MlaAccumulators<Traits> accumulators_;  // kept in the same registers throughout
};

}  // namespace fp8attn::cuda
