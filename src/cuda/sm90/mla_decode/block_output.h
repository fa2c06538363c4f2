// The share of one of the two symmetric warpgroups in P V: 256 channels, all 64 query rows.
//
// O^T = V^T P^T. The tensor core wants V with neighbouring tokens, the cache has neighbouring channels: V^T is the
// register operand, transposed on its way from shared memory (ldmatrix.trans and a byte permute). The tensor core sums
// one block in a fresh accumulator, which is then folded into float32: it keeps 13 bits below its largest term.
#pragma once

#include <cstdint>

#include "cuda/sm90/mla_decode/block_scores.h"
#include "cuda/sm90/mla_decode/traits.h"
#include "cuda/sm90/ptx/matrix.h"
#include "cuda/sm90/ptx/wgmma.h"
#include "cuda/sm90/ptx/wgmma_control.h"

namespace fp8attn::cuda {

template <class Traits>
class MlaBlockOutput {
 public:
  using Shared = typename Traits::Shared;
  using Output = float[4][32];  // [m-tile of 64 channels][as above], rows channels, columns query rows

  __device__ MlaBlockOutput(Shared& shared, const MlaConsumerThread& thread) : shared_(shared), thread_(thread) {}

  __device__ const Output& output() const { return output_; }

  __device__ void reset() {
#pragma unroll
    for (auto& tile : output_) ptx::clear(tile);
  }

  // The CTA's block number `count`.
  __device__ __forceinline__ void add(int count) {
    const int stage = count % Traits::kStages, buffer = count % 2;
    const uint32_t values = ptx::shared_address(shared_.latent[stage]) +
                            Traits::LatentTile::offset(thread_.lane, 16 * thread_.half + thread_.warp);
    const uint32_t probability = ptx::shared_address(shared_.probability[buffer][0]);
    wait_barrier(&shared_.cache_ring.full[stage], count / Traits::kStages & 1);
    uint32_t a[2][2][4];  // of two tiles
    load_values(a[0], values, 0);
    load_values(a[1], values, 1);
    wait_barrier(&shared_.probability_ring.full[buffer], count / 2 & 1);
    rescale(shared_.message[buffer]);
    float fresh[2][32];
#pragma unroll
    for (int tile = 0; tile < 2; ++tile) multiply<true>(fresh[tile], a[tile], probability);
#pragma unroll
    for (int tile = 2; tile < 4; ++tile) {
      ptx::wgmma_wait<1>();
      ptx::pin(fresh[tile % 2]);
      load_values(a[tile % 2], values, tile);
      fold(tile - 2, fresh[tile % 2]);
      multiply<false>(fresh[tile % 2], a[tile % 2], probability);
    }
    ptx::wgmma_wait<1>();
    ptx::pin(fresh[0]);
    fold(2, fresh[0]);
    ptx::wgmma_wait<0>();
    ptx::pin(fresh[1]);
    fold(3, fresh[1]);
    __syncwarp();
    if (thread_.lane == 0) {
      arrive_barrier(&shared_.probability_ring.empty[buffer]);
      arrive_barrier(&shared_.cache_ring.empty[stage]);
    }
  }

 private:
  // V^T of 16 channels of each warp by two times 32 tokens: m-tile `tile` of this warpgroup's 256 channels. A lane
  // addresses the channels of one token. Two tokens by two channels come in a register.
  __device__ __forceinline__ static void load_values(uint32_t (&a)[2][4], uint32_t values, int tile) {
    using Tile = typename Traits::LatentTile;
    const uint32_t address = (values ^ (tile % 2 * 64)) + tile / 2 * (Tile::kRows * Tile::kChunkBytes);
    ptx::ldmatrix_x4_trans(a[0], address);
    ptx::ldmatrix_x4_trans(a[1], address + 32 * Tile::kChunkBytes);
  }

  // Rows g and g + 8 of the operand become channels 2 g and 2 g + 1, then the product of 64 channels with all rows of
  // the probabilities.
  template <bool kNew>
  __device__ __forceinline__ static void multiply(float (&fresh)[32], uint32_t (&a)[2][4], uint32_t probability) {
    using Tile = typename Traits::ProbabilityTile;
#pragma unroll
    for (auto& step : a) {
#pragma unroll
      for (int r = 0; r < 4; r += 2) {
        const uint32_t even = __byte_perm(step[r], step[r + 1], 0x6420),
                       odd = __byte_perm(step[r], step[r + 1], 0x7531);
        step[r] = even;
        step[r + 1] = odd;
      }
      ptx::pin(step);
    }
    ptx::wgmma_fence();
    const uint64_t b = Tile::k_major_descriptor(probability, 0);
    kNew ? ptx::wgmma_e4m3_f32_n64_rs_first(fresh, a[0], b) : ptx::wgmma_e4m3_f32_n64_rs_again(fresh, a[0], b);
    ptx::wgmma_e4m3_f32_n64_rs_add(fresh, a[1], Tile::k_major_descriptor(probability, 32));
    ptx::wgmma_commit();
  }

  __device__ __forceinline__ void fold(int tile, const float (&fresh)[32]) {
#pragma unroll
    for (int r = 0; r < 32; ++r) output_[tile][r] += fresh[r];
  }

  // Where maxima were raised. Column 8 j + 2 (lane % 4) + c of the accumulators is that query row.
  __device__ __forceinline__ void rescale(const MlaMessage& message) {
    const int4 raised = *reinterpret_cast<const int4*>(message.rescales);
    if ((raised.x | raised.y | raised.z | raised.w) == 0) return;
    const int of_warp[4] = {raised.x, raised.y, raised.z, raised.w};
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      if ((of_warp[j / 2] >> j % 2 & 1) == 0) continue;
      const float2 factor = *reinterpret_cast<const float2*>(&message.factor[8 * j + 2 * (thread_.lane & 3)]);
#pragma unroll
      for (auto& tile : output_) {
#pragma unroll
        for (int r = 4 * j; r < 4 * j + 4; ++r) tile[r] *= r % 2 == 0 ? factor.x : factor.y;
      }
    }
  }

  Shared& shared_;
  const MlaConsumerThread thread_;
  Output output_;
};

}  // namespace fp8attn::cuda
