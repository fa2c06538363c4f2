// The two output warpgroups, 256 channels each.
//
// e4m3: O^T = V^T P^T. The tensor core wants V with neighbouring tokens, the cache has neighbouring channels: V^T is
// the register operand, transposed on its way from shared memory (ldmatrix.trans and a byte permute). The tensor core
// sums one block in a fresh accumulator, which is then folded into float32: it keeps 13 bits below its largest term.
// bf16: O = P V, which the tensor core reads as it lies.
#pragma once

#include <cstdint>
#include <cuda/ptx>

#include "cuda/sm90/mla_decode/params.h"
#include "cuda/sm90/mla_decode/query.h"
#include "cuda/sm90/mla_decode/store.h"
#include "cuda/sm90/mla_decode/traits.h"
#include "cuda/sm90/ptx/matrix.h"
#include "cuda/sm90/ptx/wgmma.h"
#include "cuda/sm90/ptx/wgmma_control.h"

namespace fp8attn::cuda {

template <class Traits>
class MlaOutput {
 public:
  using Shared = typename Traits::Shared;

  __device__ MlaOutput(Shared& shared, const MlaParams& params, MlaOutputThread thread)
      : shared_(shared), params_(params), thread_(thread) {}

  __device__ void run() {
    load_first_query();
    while (true) {
      clear();
      int kind;
#pragma unroll 1
      while ((kind = receive()) == MlaMessage::kBlock) {
        wait_barrier(&shared_.cache_ring.full[cache_.stage()], cache_.parity());
        if constexpr (Traits::kIsE4M3) {
          add_block_transposed(message());
        } else {
          add_block(message());
        }
        release(shared_.cache_ring.empty[cache_.stage()]);
        cache_.advance();
        finish_message();
      }
      if (kind == MlaMessage::kExit) return;
      store_output<Traits>(shared_, params_, message(), output_, probability_.stage(), thread_);
      finish_message();
    }
  }

 private:
  static constexpr int kColumns = Traits::kFreshColumns;
  static_assert(kColumns == 32, "the product in use");

  // The query of the CTA's first unit, if it has one.
  __device__ void load_first_query() {
    ptx::named_barrier_sync<384>(kFirstQueryBarrier);
    if (!shared_.any_unit) return;
    const MlaUnit& unit = shared_.walk[4].unit;
    load_query_rows<Traits, 8>(shared_, params_, unit.sequence, unit.tile, 4 * thread_.half + thread_.warp,
                               thread_.lane);
    ptx::named_barrier_sync<384>(kFirstQueryBarrier);
  }

  __device__ const MlaMessage& message() const { return shared_.message[probability_.stage()]; }
  __device__ int receive() const {
    wait_barrier(&shared_.probability_ring.full[probability_.stage()], probability_.parity());
    return message().kind;
  }
  __device__ void finish_message() {
    release(shared_.probability_ring.empty[probability_.stage()]);
    probability_.advance();
  }

  __device__ void clear() {
#pragma unroll
    for (auto& tile : output_) {
#pragma unroll
      for (float& value : tile) value = 0.0f;
    }
  }

  // V^T of 16 channels of each warp by 32 tokens: step `step` of the block, m-tile `tile` of this warpgroup's 256
  // channels. A lane addresses the channels of one token. Two tokens by two channels come in a register.
  __device__ __forceinline__ void load_values(uint32_t (&a)[4], uint32_t values, int tile, int step) const {
    using Tile = typename Traits::LatentTile;
    ptx::ldmatrix_x4_trans(
        a, (values ^ (tile % 2 * 64)) + tile / 2 * (Tile::kRows * Tile::kChunkBytes) + step * 32 * Tile::kChunkBytes);
  }

  // Separates the channels: rows g and g + 8 of the operand are channels 2 g and 2 g + 1.
  __device__ __forceinline__ static void separate_channels(uint32_t (&a)[4]) {
#pragma unroll
    for (int r = 0; r < 4; r += 2) {
      const uint32_t even = __byte_perm(a[r], a[r + 1], 0x6420), odd = __byte_perm(a[r], a[r + 1], 0x7531);
      a[r] = even;
      a[r + 1] = odd;
    }
    ptx::pin(a);
  }

  __device__ __forceinline__ void add_block_transposed(const MlaMessage& message) {
    constexpr int kChunks = 2;  // of 128 channels, for a warpgroup
    const uint32_t values = ptx::shared_address(shared_.latent[cache_.stage()]) +
                            Traits::LatentTile::offset(thread_.lane, kChunks * 8 * thread_.half + thread_.warp);
    const int4 rescales = *reinterpret_cast<const int4*>(message.rescales);
    if ((rescales.x | rescales.y | rescales.z | rescales.w) != 0) rescale_columns(message);
    uint32_t a[2][4];
    load_values(a[0], values, 0, 0);
    load_values(a[1], values, 0, 1);
#pragma unroll
    for (int tile = 0; tile < 4; ++tile) {
      const int group = Traits::kGroups == 4 ? kChunks * thread_.half + tile / 2 : 0;
      const uint32_t probability = ptx::shared_address(shared_.probability[probability_.stage()][group]);
      separate_channels(a[0]);
      separate_channels(a[1]);
#pragma unroll
      for (int column = 0; column < Traits::kTileM; column += kColumns) {
        // Rows of the probabilities are columns here.
        const uint32_t rows = probability + Traits::ProbabilityTile::offset(column, 0);
        const bool loads = tile < 3 && column + kColumns == Traits::kTileM;
        ptx::wgmma_fence();
        ptx::wgmma_e4m3_f32_n32_rs_again(fresh_, a[0], Traits::ProbabilityTile::k_major_descriptor(rows, 0));
        ptx::wgmma_commit();
        ptx::wgmma_e4m3_f32_n32_rs_add(fresh_, a[1], Traits::ProbabilityTile::k_major_descriptor(rows, 32));
        ptx::wgmma_commit();
        // The next operand is loaded as soon as the registers are free, behind the second product and the fold.
        ptx::wgmma_wait<1>();
        if (loads) load_values(a[0], values, tile + 1, 0);
        ptx::wgmma_wait<0>();
        ptx::pin(fresh_);
        if (loads) load_values(a[1], values, tile + 1, 1);
#pragma unroll
        for (int r = 0; r < kColumns / 2; ++r) output_[tile][column / 2 + r] += fresh_[r];
      }
    }
  }

  // Column 8 j + 2 (lane % 4) + c of the accumulators is that query row.
  __device__ __forceinline__ void rescale_columns(const MlaMessage& message) {
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const float2 factor = *reinterpret_cast<const float2*>(&message.factor[8 * j + 2 * (thread_.lane & 3)]);
#pragma unroll
      for (auto& tile : output_) {
#pragma unroll
        for (int r = 4 * j; r < 4 * j + 4; ++r) tile[r] *= r % 2 == 0 ? factor.x : factor.y;
      }
    }
  }

  // Two products of 128 channels: the register operands of one of 256 are more than the kernel starts with.
  __device__ __forceinline__ void add_block(const MlaMessage& message) {
    using Tile = typename Traits::LatentTile;
    // Fragment rows of this warp are the rows of the scores' warp of the same number.
    if (message.rescales[thread_.warp] != 0) {
      const float factor[2] = {message.factor[thread_.row(0)], message.factor[thread_.row(1)]};
#pragma unroll
      for (auto& part : output_) {
#pragma unroll
        for (int r = 0; r < 32; ++r) part[r] *= factor[r >> 1 & 1];
      }
    }
    const uint32_t probability = ptx::shared_address(shared_.probability[probability_.stage()][0]);
    const uint32_t values = ptx::shared_address(shared_.latent[cache_.stage()]) + thread_.half * (Tile::kBytes / 2);
    ptx::wgmma_fence();
#pragma unroll
    for (int part = 0; part < 2; ++part) {
      auto& output = reinterpret_cast<float(&)[64]>(output_[2 * part]);
      ptx::pin(output);
#pragma unroll
      for (int k = 0; k < Traits::kTileN / 16; ++k) {
        ptx::wgmma_bf16_f32_n128_ss_bt_add(output, Traits::ProbabilityTile::k_major_descriptor(probability, 32 * k),
                                           Tile::n_major_descriptor(values + part * (Tile::kBytes / 4), 16 * k));
      }
    }
    ptx::wgmma_commit();
    ptx::wgmma_wait<0>();
    ptx::pin(reinterpret_cast<float(&)[64]>(output_[0]));
    ptx::pin(reinterpret_cast<float(&)[64]>(output_[2]));
  }

  // One arrival a warp.
  __device__ void release(uint64_t& empty) const {
    __syncwarp();
    if (thread_.lane == 0) arrive_barrier(&empty);
  }

  Shared& shared_;
  const MlaParams& params_;
  const MlaOutputThread thread_;
  RingCounter<Traits::kStages> cache_;
  RingCounter<Traits::kBuffers> probability_;
  // e4m3: [m-tile of 64 channels][as above], rows channels, columns query rows. bf16: register 4 j + 2 i + c is channel
  // 8 j + 2 (lane % 4) + c of query row i.
  float output_[4][32];
  float fresh_[kColumns / 2] = {};  // kept in the same registers throughout
};

}  // namespace fp8attn::cuda
