// Products of the query with a block of keys, by a scores' warpgroup.
#pragma once

#include <cstdint>

#include "cuda/sm90/mla_decode/factors.h"
#include "cuda/sm90/mla_decode/traits.h"
#include "cuda/sm90/ptx/half2.h"
#include "cuda/sm90/ptx/matrix.h"
#include "cuda/sm90/ptx/warpgroup.h"
#include "cuda/sm90/ptx/wgmma.h"
#include "cuda/sm90/ptx/wgmma_control.h"

namespace fp8attn::cuda {

// Scores of a block: register 4 j + 2 i + c is token 8 j + 2 (lane % 4) + c of row lane / 4 + 8 i.
using MlaScoreTile = float[32];

template <class Traits>
class MlaProducts {
 public:
  using Shared = typename Traits::Shared;

 protected:
  // warp: of the 8 of both warpgroups.
  __device__ MlaProducts(Shared& shared, int warp, int lane) : shared_(shared), warp_(warp), lane_(lane) {}

  // Laundered: what follows from them would be kept in registers throughout.
  __device__ int lane() const { return ptx::launder(lane_); }
  __device__ int warp() const { return ptx::launder(warp_) & 3; }
  __device__ int group() const { return ptx::launder(warp_) >> 2; }

  // The 128 threads of this warpgroup.
  __device__ void meet_group() const { ptx::named_barrier_sync<128>(kScoresGroupBarrier + group()); }

  // Scores of a block of `tokens` tokens, which is there. Where tokens have scales, the sum is multiplied with those of a
  // group of channels behind its products, so that the next group's and the RoPE channels' go on top. Behind the first
  // products `meanwhile` runs, behind the last ones `prefetch`.
  template <class Meanwhile, class Prefetch>
  __device__ __forceinline__ void multiply(MlaScoreTile& scores, int stage, int tokens, Meanwhile meanwhile,
                                           Prefetch prefetch) const {
#pragma unroll
    for (int part = 0; part < Traits::kGroups; ++part) {
      ptx::wgmma_fence();
      issue_latent(scores, stage, part);
      if constexpr (Traits::kTokenScales) {
        ptx::wgmma_commit();
        if (part == 0) {
          prepare_factors<Traits>(shared_, stage, tokens, group(), warp(), lane());
          meanwhile();
          meet_group();  // the factors are there
        }
        float4 scale[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          scale[i] = *reinterpret_cast<const float4*>(&shared_.scales[stage][i][16 * part + 4 * (lane() & 3)]);
        }
        ptx::wgmma_wait<0>();
        ptx::pin(scores);
#pragma unroll
        for (int r = 0; r < 32; ++r) {
          const float4& factor = scale[r / 8];
          const float low = r % 8 < 4 ? factor.x : factor.z, high = r % 8 < 4 ? factor.y : factor.w;
          scores[r] *= r % 2 == 0 ? low : high;
        }
      }
    }
    if constexpr (Traits::kTokenScales) ptx::wgmma_fence();
    issue_rope(scores, stage);
    ptx::wgmma_commit();
    if constexpr (!Traits::kTokenScales) meanwhile();
    prefetch();
    ptx::wgmma_wait<0>();
    ptx::pin(scores);
  }

 private:
  // Products of a group of latent channels.
  __device__ __forceinline__ void issue_latent(MlaScoreTile& scores, int stage, int part) const {
    using Tile = typename Traits::LatentTile;
    constexpr int kSteps = Traits::kLatentBytes / 32 / Traits::kGroups;
    const uint32_t query = ptx::uniform(ptx::shared_address(shared_.query));
    const uint32_t key = ptx::uniform(ptx::shared_address(shared_.latent[stage]));
#pragma unroll
    for (int k = part * kSteps; k < (part + 1) * kSteps; ++k) {
      const uint64_t a = Tile::k_major_descriptor(query, 32 * k), b = Tile::k_major_descriptor(key, 32 * k);
      if constexpr (Traits::kIsE4M3) {
        k == 0 ? ptx::wgmma_e4m3_f32_n64_ss_first(scores, a, b) : ptx::wgmma_e4m3_f32_n64_ss_add(scores, a, b);
      } else {
        k == 0 ? ptx::wgmma_bf16_f32_n64_ss_first(scores, a, b) : ptx::wgmma_bf16_f32_n64_ss_add(scores, a, b);
      }
    }
  }

  // Those of the RoPE channels, on top of the latent's.
  __device__ __forceinline__ void issue_rope(MlaScoreTile& scores, int stage) const {
    using Tile = typename Traits::RopeTile;
    const uint32_t query = ptx::uniform(ptx::shared_address(shared_.query_rope));
    const uint32_t key = ptx::uniform(ptx::shared_address(shared_.rope[stage]));
#pragma unroll
    for (int k = 0; k < Traits::kRopeBytes / 32; ++k) {
      const uint64_t a = Tile::k_major_descriptor(query, 32 * k), b = Tile::k_major_descriptor(key, 32 * k);
      if constexpr (Traits::kRopeIsBF16) {
        ptx::wgmma_bf16_f32_n64_ss_add(scores, a, b);
      } else {
        ptx::wgmma_e4m3_f32_n64_ss_add(scores, a, b);
      }
    }
  }

 protected:
  Shared& shared_;
  const int warp_, lane_;
};

}  // namespace fp8attn::cuda
