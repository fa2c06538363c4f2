// The producer warps: blocks of 64 tokens from a paged cache into the ring of stages. A warp serves one stage.
#pragma once

#include <cstdint>
#include <cuda/ptx>

#include "cuda/sm90/mla_decode/params.h"
#include "cuda/sm90/mla_decode/traits.h"
#include "cuda/sm90/ptx/copy.h"
#include "cuda/sm90/ptx/half2.h"
#include "cuda/sm90/ptx/matrix.h"
#include "cuda/sm90/ptx/warpgroup.h"

namespace fp8attn::cuda {

template <class Traits>
class MlaProducer {
 public:
  using Shared = typename Traits::Shared;

  __device__ MlaProducer(Shared& shared, const MlaMaps& maps, const MlaParams& params, int stage, int lane)
      : shared_(shared), maps_(maps), params_(params), stage_(stage), lane_(lane) {}

  __device__ void run() {
    MlaWalk walk(params_, shared_.walk[stage_]);
    int ahead = stage_;  // blocks before the next one that goes to this stage
    for (bool is_first = true; walk.next(); is_first = false) {
      const MlaUnit& unit = walk.unit();
      if (stage_ == 0 && !is_first) prefetch_query(unit);
      for (; ahead < unit.last - unit.first; ahead += Traits::kStages) load(unit, unit.first + ahead);
      ahead -= unit.last - unit.first;
    }
  }

 private:
  // The query of a unit but the first into the L2 cache: the scores' warps are still with the unit before.
  __device__ void prefetch_query(const MlaUnit& unit) const {
    const int begin = unit.tile * Traits::kTileM, end = min(begin + Traits::kTileM, params_.rows);
    const int bytes = static_cast<int>(kMlaDim) * (params_.query_is_e4m3 ? 1 : 2);
    for (int row = begin + lane_; row < end; row += 32) {
      const uint8_t* address = params_.query_row(unit.sequence, row);
      for (int offset = 0; offset < bytes; offset += 128) ptx::prefetch(address + offset);
    }
  }

  __device__ void load(const MlaUnit& unit, int block) {
    const int first = block * Traits::kTileN;
    const int count = min(unit.length - first, Traits::kTileN);
    // Behind the last token there may be NaN, which P = 0 would not silence: such a block is gathered, with zeros.
    if (params_.box_rows > 0 && !params_.sparse && count == Traits::kTileN) {
      load_boxes(unit.sequence, first);
    } else {
      gather(unit.sequence, first, count);
    }
    if constexpr (Traits::kTokenScales) {
      wait_barrier(&shared_.cache_ring.full[stage_], parity_);
      prepare_factors();
    }
    parity_ ^= 1;
  }

  // From the scales of the block's tokens, two a lane, to what the scores' warps need of them.
  __device__ void prepare_factors() {
    typename Traits::TokenFactors& factors = shared_.factors[stage_];
    float4 scale[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) scale[i] = reinterpret_cast<const float4*>(&factors)[2 * lane_ + i];
    __syncwarp();
    float largest[2], inverse[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      largest[i] = scale[i].x;
      if constexpr (Traits::kGroups == 4) {
        largest[i] = fmaxf(fmaxf(scale[i].x, scale[i].y), fmaxf(scale[i].z, scale[i].w));
      }
      largest[i] = fmaxf(largest[i], 0x1p-100f);  // its logarithm and reciprocal are finite
      inverse[i] = ptx::reciprocal(largest[i]);
      factors.pair[lane_].scale[i] = largest[i];
      factors.pair[lane_].log2_scale[i] = ptx::log2_float(largest[i]);
      factors.inverse_scale[2 * lane_ + i] = inverse[i];
    }
    if constexpr (Traits::kSymmetric) {
      // Bits of numbers that are not negative are in their order.
      const uint32_t least = __reduce_min_sync(0xFFFFFFFFu, __float_as_uint(fminf(largest[0], largest[1])));
      if (lane_ == 0) factors.least_scale = __uint_as_float(least);
    }
    if constexpr (Traits::kGroups == 4) {
      uint32_t* ratio = &shared_.ratio[stage_][0][lane_];
      constexpr int kGroup = Traits::kTileN / 2;
      ratio[0] = ptx::half2_from_floats(scale[0].x * inverse[0], scale[1].x * inverse[1]);
      ratio[kGroup] = ptx::half2_from_floats(scale[0].y * inverse[0], scale[1].y * inverse[1]);
      ratio[2 * kGroup] = ptx::half2_from_floats(scale[0].z * inverse[0], scale[1].z * inverse[1]);
      ratio[3 * kGroup] = ptx::half2_from_floats(scale[0].w * inverse[0], scale[1].w * inverse[1]);
    }
    ::cuda::ptx::fence_proxy_async(::cuda::ptx::space_shared);  // the next block's scales come by TMA
    __syncwarp();
    if (lane_ == 0) arrive_barrier(&shared_.factors_ready[stage_]);
  }

  __device__ uint8_t* scales(int token) { return reinterpret_cast<uint8_t*>(&shared_.factors[stage_]) + 16 * token; }

  __device__ void wait_for_stage() { wait_barrier(&shared_.cache_ring.empty[stage_], parity_ ^ 1); }

  // A lane a box of tokens.
  __device__ void load_boxes(int sequence, int first) {
    const int rows = params_.box_rows;
    int page = -1, position = 0;
    if (lane_ * rows < Traits::kTileN) {
      const int token = first + lane_ * rows;
      const int index = params_.page_size.divide(token);
      position = token - index * params_.page_size.divisor();
      page = page_at(sequence, index);
    }
    wait_for_stage();
    uint64_t* full = &shared_.cache_ring.full[stage_];
    if (lane_ == 0) {
      ::cuda::ptx::mbarrier_arrive_expect_tx(::cuda::ptx::sem_release, ::cuda::ptx::scope_cta,
                                             ::cuda::ptx::space_shared, full, Traits::kTileN * Traits::kRecordBytes);
    }
    __syncwarp();
    if (lane_ * rows >= Traits::kTileN) return;
    const int row = lane_ * rows;
    constexpr int kLatentChunk = Traits::LatentTile::kChunkBytes, kRopeChunk = Traits::RopeTile::kChunkBytes;
#pragma unroll 1
    for (int chunk = 0; chunk < Traits::LatentTile::kChunks; ++chunk) {
      copy(shared_.latent[stage_] + (chunk * Traits::kTileN + row) * kLatentChunk, maps_.latent,
           chunk * kLatentChunk / (Traits::kIsE4M3 ? 1 : 2), position, page);
    }
    copy(shared_.rope[stage_] + row * kRopeChunk, maps_.rope, 0, position, page);
    if constexpr (Traits::kTokenScales) copy(scales(row), maps_.scale, 0, position, page);
  }

  __device__ void copy(void* destination, const CUtensorMap& map, int channel, int position, int page) const {
    const int32_t coordinates[4] = {channel, position, page, 0};
    ptx::copy_box(destination, map, coordinates, &shared_.cache_ring.full[stage_], ptx::read_once_policy());
  }

  // -1 where the table holds something that is not a page: reads as zeros.
  __device__ int page_at(int sequence, int index) const {
    const int64_t page = params_.tokens.at(sequence, index);
    return page >= 0 && page < params_.pages ? static_cast<int>(page) : -1;
  }

  // Record of token `token` of a sequence, nullptr where there is none.
  __device__ const uint8_t* record(int sequence, int token) const {
    int page, position;
    if (params_.sparse) {
      const int batch = params_.sequence_tokens.divide(sequence);
      const int64_t slot = params_.tokens.at(batch, sequence - batch * params_.sequence_tokens.divisor(), token);
      if (slot < 0 || slot >= static_cast<int64_t>(params_.pages) * params_.page_size.divisor()) return nullptr;
      page = params_.page_size.divide(static_cast<int>(slot));
      position = static_cast<int>(slot) - page * params_.page_size.divisor();
    } else {
      const int index = params_.page_size.divide(token);
      position = token - index * params_.page_size.divisor();
      page = page_at(sequence, index);
      if (page < 0) return nullptr;
    }
    return params_.cache + page * params_.page_stride + position * params_.record_stride;
  }

  // Token by token, zeros where there is none.
  __device__ void gather(int sequence, int first, int count) {
#pragma unroll 1
    for (int base = 0; base < Traits::kTileN; base += 32) {
      // Lane l knows where token base + l is.
      const int token = base + lane_;
      const uint8_t* mine = token < count ? record(ptx::launder(sequence), first + token) : nullptr;
      const uint32_t present = __ballot_sync(0xFFFFFFFFu, mine != nullptr);
      if (base == 0) wait_for_stage();
      if (lane_ == 0) shared_.present[stage_][base / 32] = present;
      gather_half(base, mine != nullptr ? mine : params_.cache, present);
    }
    ptx::wait_for_copies();
    ::cuda::ptx::fence_proxy_async(::cuda::ptx::space_shared);  // what was copied so far is read by wgmma
    __syncwarp();
    if (lane_ == 0) arrive_barrier(&shared_.cache_ring.full[stage_]);
  }

  __device__ void gather_half(int base, const uint8_t* mine, uint32_t present) {
    const int lane = ptx::launder(lane_);
    const uint32_t latent = ptx::shared_address(shared_.latent[stage_]);
    const uint32_t rope = ptx::shared_address(shared_.rope[stage_]);
    const auto own = reinterpret_cast<uintptr_t>(mine);
    if constexpr (Traits::kTokenScales) {
      ptx::copy_16_or_zero(ptx::shared_address(scales(base + lane)), mine + kRecordScaleOffset, present >> lane & 1);
    }
#pragma unroll 1
    for (int t = 0; t < 32; ++t) {
      const auto* source = reinterpret_cast<const uint8_t*>(__shfl_sync(0xFFFFFFFFu, own, t));
#pragma unroll
      for (int piece = lane; piece < Traits::kLatentBytes / 16; piece += 32) {
        ptx::copy_16_or_zero(latent + Traits::LatentTile::offset(base + t, piece), source + 16 * piece,
                             present >> t & 1);
      }
    }
    constexpr int kPieces = Traits::kRopeBytes / 16, kTokens = 32 / kPieces;  // of a step
    const int piece = lane % kPieces;
#pragma unroll 1
    for (int step = 0; step < kPieces; ++step) {
      const int t = step * kTokens + lane / kPieces;
      const auto* source = reinterpret_cast<const uint8_t*>(__shfl_sync(0xFFFFFFFFu, own, t));
      ptx::copy_16_or_zero(rope + Traits::RopeTile::offset(base + t, piece),
                           source + Traits::kLatentBytes + Traits::kScaleBytes + 16 * piece, present >> t & 1);
    }
  }

  Shared& shared_;
  const MlaMaps& maps_;
  const MlaParams& params_;
  const int stage_, lane_;
  uint32_t parity_ = 0;
};

}  // namespace fp8attn::cuda
