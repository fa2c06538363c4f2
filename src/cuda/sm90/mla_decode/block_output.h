// The share of one of the two symmetric warpgroups in P V: 256 channels, all query rows.
//
// O^T = V^T P^T. The tensor core wants V with neighbouring tokens, the cache has neighbouring channels: V^T is the
// register operand, transposed on its way from shared memory (ldmatrix.trans and a byte permute). The tensor core sums
// one block, or two, in a fresh accumulator, which is then folded into float32: it keeps 13 bits below its largest
// term.
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
  // [m-tile of 64 channels][as above], rows channels, columns query rows. Behind kRows rows there is nothing.
  using Output = float[4][32];

  __device__ MlaBlockOutput(Shared& shared, const MlaConsumerThread& thread) : shared_(shared), thread_(thread) {}

  __device__ const Output& output() const { return output_; }

  __device__ void reset() {
#pragma unroll
    for (auto& tile : output_) ptx::clear(tile);
  }

  // The CTA's blocks number `count` to `count` + blocks - 1, one or two. The probabilities of the last one must be
  // there. Where it raised no maximum both are relative to the same, and the tensor core sums them together.
  __device__ __forceinline__ void add(int count, int blocks) {
    if (blocks == 2 && !raises(count + 1)) {
      add<2>(count);
    } else {
#pragma unroll 1
      for (int end = count + blocks; count < end; ++count) add<1>(count);
    }
  }

  __device__ __forceinline__ void await_probabilities(int count) const {
    wait_barrier(&shared_.probability_ring.full[buffer(count)], count / Traits::kBuffers & 1);
  }

 private:
  static constexpr int kTiles = 4;  // of 64 channels
  static constexpr int kColumnRegisters = Traits::kRows / 2;
  using Fresh = float[kColumnRegisters];

  __device__ static int stage(int count) { return count % Traits::kStages; }
  __device__ static int buffer(int count) { return count % Traits::kBuffers; }

  template <int kBlocks>
  __device__ __forceinline__ void add(int count) {
    constexpr int kItems = kTiles * kBlocks;  // 64 channels of a block
    uint32_t a[3][2][4];                      // of three items in turn
    float fresh[2][kColumnRegisters];         // of two tiles in turn
    wait_barrier(&shared_.cache_ring.full[stage(count)], count / Traits::kStages & 1);
    load_values(a[0], count, 0);
    load_values(a[1], count + 1 % kBlocks, 1 / kBlocks);
    await_probabilities(count);
    rescale(shared_.message[buffer(count)]);
#pragma unroll
    for (int item = 0; item <= kItems; ++item) {
      const int tile = item / kBlocks, block = item % kBlocks, next = item + 2;
      if (item < kItems) {
        separate_channels(a[item % 3]);
        multiply(fresh[tile % 2], a[item % 3], count + block, block > 0 ? kAdd : tile < 2 ? kFirst : kAgain);
      }
      if (item > 0) item < kItems ? ptx::wgmma_wait<1>() : ptx::wgmma_wait<0>();
      if (next < kItems) load_values(a[next % 3], count + next % kBlocks, next / kBlocks);
      if (item > 0 && block == 0) {
        ptx::pin(fresh[(tile - 1) % 2]);
        fold(tile - 1, fresh[(tile - 1) % 2]);
      }
    }
    __syncwarp();
    if (thread_.lane != 0) return;
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) {
      arrive_barrier(&shared_.probability_ring.empty[buffer(count + block)]);
      arrive_barrier(&shared_.cache_ring.empty[stage(count + block)]);
    }
  }

  // V^T of 16 channels of each warp by two times 32 tokens: m-tile `tile` of this warpgroup's 256 channels. A lane
  // addresses the channels of one token. Two tokens by two channels come in a register.
  __device__ __forceinline__ void load_values(uint32_t (&a)[2][4], int count, int tile) const {
    using Tile = typename Traits::LatentTile;
    const uint32_t address = ptx::shared_address(shared_.latent[0]) + stage(count) * Tile::kBytes +
                             tile / 2 * (Tile::kRows * Tile::kChunkBytes) +
                             (Tile::offset(thread_.lane, 16 * thread_.half + thread_.warp) ^ (tile % 2 * 64));
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

  // kFirst, kAgain: a new sum; kFirst: in any registers.
  enum Sum { kFirst, kAgain, kAdd };
  // 64 channels of a block with all rows of its probabilities.
  __device__ __forceinline__ void multiply(Fresh& fresh, const uint32_t (&a)[2][4], int count, Sum sum) const {
    using Tile = typename Traits::ProbabilityTile;
    const uint32_t probability = ptx::shared_address(shared_.probability[0][0]) +
                                 buffer(count) * static_cast<uint32_t>(sizeof(shared_.probability[0]));
    const uint64_t b = Tile::k_major_descriptor(probability, 0);
    ptx::wgmma_fence();
    issue(fresh, a[0], b, sum);
    issue(fresh, a[1], Tile::k_major_descriptor(probability, 32), kAdd);
    ptx::wgmma_commit();
  }

  __device__ __forceinline__ static void issue(Fresh& fresh, const uint32_t (&a)[4], uint64_t b, Sum sum) {
    if constexpr (Traits::kRows == 64) {
      if (sum == kFirst) ptx::wgmma_e4m3_f32_n64_rs_first(fresh, a, b);
      if (sum == kAgain) ptx::wgmma_e4m3_f32_n64_rs_again(fresh, a, b);
      if (sum == kAdd) ptx::wgmma_e4m3_f32_n64_rs_add(fresh, a, b);
    } else if constexpr (Traits::kRows == 32) {
      if (sum == kFirst) ptx::wgmma_e4m3_f32_n32_rs_first(fresh, a, b);
      if (sum == kAgain) ptx::wgmma_e4m3_f32_n32_rs_again(fresh, a, b);
      if (sum == kAdd) ptx::wgmma_e4m3_f32_n32_rs_add(fresh, a, b);
    } else {
      if (sum == kFirst) ptx::wgmma_e4m3_f32_n16_rs_first(fresh, a, b);
      if (sum == kAgain) ptx::wgmma_e4m3_f32_n16_rs_again(fresh, a, b);
      if (sum == kAdd) ptx::wgmma_e4m3_f32_n16_rs_add(fresh, a, b);
    }
  }

  // Of each warp with scores, bit i where rows i of it had a maximum raised.
  __device__ static int4 raised_rows(const MlaMessage& message) {
    int4 raised = *reinterpret_cast<const int4*>(message.rescales);
    if (Traits::kScoreWarps < 4) raised.z = raised.w = 0;
    if (Traits::kScoreWarps < 2) raised.y = 0;
    return raised;
  }
  __device__ static bool is_any(const int4& raised) { return (raised.x | raised.y | raised.z | raised.w) != 0; }
  __device__ bool raises(int count) const { return is_any(raised_rows(shared_.message[buffer(count)])); }

  __device__ __forceinline__ void fold(int tile, const Fresh& fresh) {
#pragma unroll
    for (int r = 0; r < kColumnRegisters; ++r) output_[tile][r] += fresh[r];
  }

  // Where maxima were raised. Column 8 j + 2 (lane % 4) + c of the accumulators is that query row.
  __device__ __forceinline__ void rescale(const MlaMessage& message) {
    const int4 raised = raised_rows(message);
    if (!is_any(raised)) return;
    const int of_warp[4] = {raised.x, raised.y, raised.z, raised.w};
#pragma unroll
    for (int j = 0; j < Traits::kRows / 8; ++j) {
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
