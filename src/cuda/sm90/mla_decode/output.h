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
  // The query of the CTA's first unit, if it has one.
  __device__ void load_first_query() {
    ptx::named_barrier_sync<Traits::kThreads>(kStartBarrier);
    if (!shared_.any_unit) return;
    const MlaUnit& unit = shared_.walk[0].unit;
    load_query_rows<Traits, 8, 8>(shared_, params_, unit.sequence, unit.tile, 4 * thread_.half + thread_.warp,
                                  thread_.lane);
    ptx::named_barrier_sync<Traits::kThreads>(kStartBarrier);
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

  // 64 channels at a time. Both halves of the rows have a fresh accumulator: one is folded while the tensor core works on
  // the other, and the next operand is loaded as soon as the products with the one before are made.
  __device__ __forceinline__ void add_block_transposed(const MlaMessage& message) {
    constexpr int kChunks = 2;  // of 128 channels, for a warpgroup
    const uint32_t values = ptx::shared_address(shared_.latent[cache_.stage()]) +
                            Traits::LatentTile::offset(ptx::launder(thread_.lane), kChunks * 8 * thread_.half + thread_.warp);
    const int4 rescales = *reinterpret_cast<const int4*>(message.rescales);
    if ((rescales.x | rescales.y | rescales.z | rescales.w) != 0) rescale_columns(message);
    float fresh[2][16];  // kept in the same registers throughout
    ptx::claim(fresh[0]);
    ptx::claim(fresh[1]);
    uint32_t a[2][4];
    load_values(a[0], values, 0, 0);
    load_values(a[1], values, 0, 1);
    separate_channels(a[0]);
    separate_channels(a[1]);
    ptx::wgmma_fence();
    multiply(fresh[0], a[0], 0, 0, 0);
    multiply(fresh[1], a[0], 0, 1, 0);
    multiply(fresh[0], a[1], 0, 0, 1);
    multiply(fresh[1], a[1], 0, 1, 1);
#pragma unroll
    for (int tile = 0; tile < 4; ++tile) {
      const bool more = tile < 3;
      ptx::wgmma_wait<2>();  // both halves, step 0
      if (more) load_values(a[0], values, tile + 1, 0);
      ptx::wgmma_wait<1>();
      fold(tile, 0, fresh[0]);
      if (more) {
        separate_channels(a[0]);
        ptx::wgmma_fence();
        multiply(fresh[0], a[0], tile + 1, 0, 0);
        ptx::wgmma_wait<1>();
        load_values(a[1], values, tile + 1, 1);
      } else {
        ptx::wgmma_wait<0>();
      }
      fold(tile, 1, fresh[1]);
      if (more) {
        ptx::wgmma_fence();
        multiply(fresh[1], a[0], tile + 1, 1, 0);
        separate_channels(a[1]);
        ptx::wgmma_fence();
        multiply(fresh[0], a[1], tile + 1, 0, 1);
        multiply(fresh[1], a[1], tile + 1, 1, 1);
      }
    }
  }

  // m-tile `tile` by rows 32 half to 32 half + 31, step `step` of the tokens, as a group.
  __device__ __forceinline__ void multiply(float (&fresh)[16], const uint32_t (&a)[4], int tile, int half,
                                           int step) const {
    const int group = Traits::kGroups == 4 ? 2 * thread_.half + tile / 2 : 0;
    const uint32_t rows = ptx::shared_address(shared_.probability[probability_.stage()][group]) +
                          Traits::ProbabilityTile::offset(32 * half, 0);
    const uint64_t b = Traits::ProbabilityTile::k_major_descriptor(rows, 32 * step);
    step == 0 ? ptx::wgmma_e4m3_f32_n32_rs_again(fresh, a, b) : ptx::wgmma_e4m3_f32_n32_rs_add(fresh, a, b);
    ptx::wgmma_commit();
  }

  __device__ __forceinline__ void fold(int tile, int half, float (&fresh)[16]) {
    ptx::pin(fresh);
#pragma unroll
    for (int r = 0; r < 16; ++r) output_[tile][16 * half + r] += fresh[r];
  }

  // Column 8 j + 2 (lane % 4) + c of the accumulators is that query row.
  __device__ __forceinline__ void rescale_columns(const MlaMessage& message) {
    const int lane = ptx::launder(thread_.lane);  // what follows from it would be kept in a register throughout
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const float2 factor = *reinterpret_cast<const float2*>(&message.factor[8 * j + 2 * (lane & 3)]);
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
};

}  // namespace fp8attn::cuda
