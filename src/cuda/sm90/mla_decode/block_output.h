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

  // The CTA's block number `count`. An item is the products of 64 channels with 32 query rows: two are under way while a
  // third is folded and the operands of the next channels come from shared memory.
  __device__ __forceinline__ void add(int count) {
    constexpr int kTiles = 4, kItems = 2 * kTiles;
    uint32_t a[3][2][4];  // of three m-tiles in turn
    float fresh[3][16];   // of three items in turn
    wait_barrier(&shared_.cache_ring.full[stage(count)], count / Traits::kStages & 1);
    load_values(a[0], count, 0);
    load_values(a[1], count, 1);
    wait_barrier(&shared_.probability_ring.full[buffer(count)], count / 2 & 1);
    const bool raised = raises(count);
#pragma unroll
    for (int item = 0; item < kItems + 3; ++item) {
      const int tile = item / 2, done = item - 3;
      if (done >= 0) {
        if (item < kItems + 1) ptx::wgmma_wait<2>();
        if (item == kItems + 1) ptx::wgmma_wait<1>();
        if (item == kItems + 2) ptx::wgmma_wait<0>();
        ptx::pin(fresh[done % 3]);
      }
      if (item % 2 == 0 && item >= 2 && tile + 1 < kTiles) load_values(a[(tile + 1) % 3], count, tile + 1);
      if (done >= 0) fold(done / 2, done % 2, fresh[done % 3], count, raised);
      if (item < kItems) {
        if (item % 2 == 0) separate_channels(a[tile % 3]);
        multiply(fresh[item % 3], a[tile % 3], count, item % 2, item < 3);
      }
    }
    __syncwarp();
    if (thread_.lane == 0) {
      arrive_barrier(&shared_.probability_ring.empty[buffer(count)]);
      arrive_barrier(&shared_.cache_ring.empty[stage(count)]);
    }
  }

 private:
  __device__ static int stage(int count) { return count % Traits::kStages; }
  __device__ static int buffer(int count) { return count % 2; }

  // V^T of 16 channels of each warp by two times 32 tokens: m-tile `tile` of this warpgroup's 256 channels. A lane
  // addresses the channels of one token. Two tokens by two channels come in a register.
  __device__ __forceinline__ void load_values(uint32_t (&a)[2][4], int count, int tile) const {
    using Tile = typename Traits::LatentTile;
    const uint32_t values = ptx::shared_address(shared_.latent[0]) + stage(count) * Tile::kBytes +
                            Tile::offset(thread_.lane, 16 * thread_.half + thread_.warp);
    const uint32_t address = (values ^ (tile % 2 * 64)) + tile / 2 * (Tile::kRows * Tile::kChunkBytes);
    ptx::ldmatrix_x4_trans(a[0], address);
    ptx::ldmatrix_x4_trans(a[1], address + 32 * Tile::kChunkBytes);
  }

  // Rows g and g + 8 of the operand become channels 2 g and 2 g + 1.
  __device__ __forceinline__ static void separate_channels(uint32_t (&a)[2][4]) {
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
  }

  // 64 channels by 32 query rows, half `half` of them.
  __device__ __forceinline__ void multiply(float (&fresh)[16], const uint32_t (&a)[2][4], int count, int half,
                                           bool is_new) const {
    using Tile = typename Traits::ProbabilityTile;
    const uint32_t probability = ptx::shared_address(shared_.probability[0][0]) +
                                 buffer(count) * static_cast<uint32_t>(sizeof(shared_.probability[0])) +
                                 Tile::offset(32 * half, 0);
    ptx::wgmma_fence();
    const uint64_t b = Tile::k_major_descriptor(probability, 0);
    is_new ? ptx::wgmma_e4m3_f32_n32_rs_first(fresh, a[0], b) : ptx::wgmma_e4m3_f32_n32_rs_again(fresh, a[0], b);
    ptx::wgmma_e4m3_f32_n32_rs_add(fresh, a[1], Tile::k_major_descriptor(probability, 32));
    ptx::wgmma_commit();
  }

  // Whether maxima were raised in that block.
  __device__ bool raises(int count) const {
    const int4 raised = *reinterpret_cast<const int4*>(shared_.message[buffer(count)].rescales);
    return (raised.x | raised.y | raised.z | raised.w) != 0;
  }

  // Column 8 j + 2 (lane % 4) + c of the accumulators is that query row.
  __device__ __forceinline__ void fold(int tile, int half, const float (&fresh)[16], int count, bool raised) {
    float* sum = output_[tile] + 16 * half;
    if (raised) {
      const float* factors = shared_.message[buffer(count)].factor + 32 * half + 2 * (thread_.lane & 3);
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const float2 factor = *reinterpret_cast<const float2*>(factors + 8 * j);
#pragma unroll
        for (int r = 4 * j; r < 4 * j + 4; ++r) sum[r] = fmaf(sum[r], r % 2 == 0 ? factor.x : factor.y, fresh[r]);
      }
    } else {
#pragma unroll
      for (int r = 0; r < 16; ++r) sum[r] += fresh[r];
    }
  }

  Shared& shared_;
  const MlaConsumerThread thread_;
  Output output_;
};

}  // namespace fp8attn::cuda
