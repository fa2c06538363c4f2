// From a paged cache into the ring of stages: the block that comes next, and its copies.
#pragma once

#include <cstdint>
#include <cuda/ptx>

#include "cuda/sm90/mla_decode/params.h"
#include "cuda/sm90/mla_decode/schedule.h"
#include "cuda/sm90/mla_decode/traits.h"
#include "cuda/sm90/ptx/copy.h"
#include "cuda/sm90/ptx/matrix.h"
#include "cuda/sm90/ptx/warpgroup.h"

namespace fp8attn::cuda {

// Looks for blocks that the CTA comes to later. One warp.
template <class Traits>
class MlaAhead {
 public:
  using Shared = typename Traits::Shared;

  __device__ MlaAhead(Shared& shared, const MlaParams& params, MlaAheadState& state)
      : shared_(shared), params_(params), state_(state), walk_(params, state.walk) {}

  // To the first block of the unit at which `walk` stands, if it `exists`.
  __device__ void start(const MlaWalkState& walk, bool exists) {
    state_.walk = walk;
    state_.number = 0;
    state_.block = walk.unit.first;
    state_.exists = exists;
    state_.sequence = -1;
    __syncwarp();
    // The unit may have no block.
    if (exists && walk.unit.first == walk.unit.last) next_unit();
  }

  // To block `number` of the CTA; numbers rise. False where there is none. prefetches: the queries of units that begin.
  __device__ bool advance(int number, int lane, bool prefetches) {
    bool exists = state_.exists;
    int block = state_.block, left = number - state_.number;
    while (exists && left >= walk_.unit().last - block) {
      left -= walk_.unit().last - block;
      exists = next_unit();
      block = walk_.unit().first;
      if (exists && prefetches) prefetch_query(lane);
    }
    __syncwarp();
    if (lane == 0) {
      state_.number = number;
      state_.block = block + left;
      state_.exists = exists;
    }
    __syncwarp();
    return exists;
  }
  __device__ bool exists() const { return state_.exists; }
  __device__ const MlaUnit& unit() const { return walk_.unit(); }
  __device__ int block() const { return state_.block; }

  // Notes the sources of block `number`, which is to be gathered.
  __device__ void note(int number, int lane, bool prefetches) {
    auto& order = shared_.order[number % Traits::kOrders];
    const bool exists = advance(number, lane, prefetches);
    if (exists) note_records(order, shared_.present[number % Traits::kPresentWords], lane);
    if (lane == 0) order.exists = exists;
    __syncwarp();
  }

  // The page of a sequence's entry of the block table. Neighbouring ones are fetched along.
  __device__ int page(const MlaUnit& unit, int index, int lane) {
    const int chunk = index / 32;
    if (state_.sequence != unit.sequence || state_.chunk != chunk) fetch(unit, chunk, lane);
    return state_.page[index % 32];
  }

 private:
  __device__ bool next_unit() {
    bool exists;
    do {
      exists = walk_.next();
    } while (exists && walk_.unit().first == walk_.unit().last);
    if (threadIdx.x % 32 == 0) {
      state_.exists = exists;
      state_.block = walk_.unit().first;
    }
    __syncwarp();
    return exists;
  }

  __device__ void fetch(const MlaUnit& unit, int chunk, int lane) {
    const int index = 32 * chunk + lane;
    // Entries behind the last token are not read.
    const int page = index <= params_.page_size.divide(unit.length - 1) ? page_at(unit.sequence, index) : -1;
    __syncwarp();
    state_.page[lane] = page;
    if (lane == 0) {
      state_.sequence = unit.sequence;
      state_.chunk = chunk;
    }
    __syncwarp();
  }

  // The query of the unit into the L2 cache.
  __device__ void prefetch_query(int lane) const {
    const MlaUnit& unit = walk_.unit();
    const int begin = unit.tile * Traits::kTileM, end = min(begin + Traits::kTileM, params_.rows);
    const int bytes = static_cast<int>(kMlaDim) * (params_.query_is_e4m3 ? 1 : 2);
    for (int row = begin + lane; row < end; row += 32) {
      const uint8_t* address = params_.query_row(unit.sequence, row);
      for (int offset = 0; offset < bytes; offset += 128) ptx::prefetch(address + offset);
    }
  }

  __device__ void note_records(typename Traits::Order& order, uint32_t (&present)[2], int lane) const {
    const MlaUnit& unit = walk_.unit();
    int record[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int token = state_.block * Traits::kTileN + 32 * i + lane;
      record[i] = token < unit.length ? record_of(unit.sequence, token) : -1;
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      order.source[32 * i + lane] = record[i];
      const uint32_t exist = __ballot_sync(0xFFFFFFFFu, record[i] >= 0);
      if (lane == 0) present[i] = exist;
    }
  }

  // -1 where the table holds something that is not a page.
  __device__ int page_at(int sequence, int index) const {
    const int64_t page = params_.tokens.at(sequence, index);
    return page >= 0 && page < params_.pages ? static_cast<int>(page) : -1;
  }

  __device__ int record_of(int sequence, int token) const {
    const int page_size = params_.page_size.divisor();
    if (params_.sparse) {
      const int batch = params_.sequence_tokens.divide(sequence);
      const int64_t slot = params_.tokens.at(batch, sequence - batch * params_.sequence_tokens.divisor(), token);
      return slot >= 0 && slot < static_cast<int64_t>(params_.pages) * page_size ? static_cast<int>(slot) : -1;
    }
    const int index = params_.page_size.divide(token), page = page_at(sequence, index);
    return page < 0 ? -1 : page * page_size + token - index * page_size;
  }

  Shared& shared_;
  const MlaParams& params_;
  MlaAheadState& state_;
  MlaWalk walk_;
};

// Copies a block into a stage that is free.
template <class Traits>
class MlaLoader {
 public:
  using Shared = typename Traits::Shared;
  using Order = typename Traits::Order;

  __device__ MlaLoader(Shared& shared, const MlaMaps& maps, const MlaParams& params)
      : shared_(shared), maps_(maps), params_(params) {}

  // Block `block` of a unit, by one warp.
  __device__ __forceinline__ void load_boxes(MlaAhead<Traits> ahead, const MlaUnit& unit, int block, int stage,
                                             int lane) const {
    uint64_t* full = &shared_.cache_ring.full[stage];
    if (lane == 0) {
      ::cuda::ptx::mbarrier_arrive_expect_tx(::cuda::ptx::sem_release, ::cuda::ptx::scope_cta,
                                             ::cuda::ptx::space_shared, full, Traits::kTileN * Traits::kRecordBytes);
    }
    __syncwarp();
    const int token = block * Traits::kTileN;
    int index = params_.page_size.divide(token);
    // The same for all lanes, or the compiler makes each copy a loop over these.
    const int position = ptx::uniform(token - index * params_.page_size.divisor());
    if (params_.box_rows == Traits::kTileN) {
      const int page = ptx::uniform(ahead.page(unit, index, lane));
      if (lane == 0) {
        copy(shared_.latent[stage], maps_.latent, position, 0, page, full);
        copy_rest(stage, 0, position, page, full);
      }
      return;
    }
#pragma unroll 1
    for (int row = 0; row < Traits::kTileN; ++index, row += params_.box_rows) {
      const int page = ptx::uniform(ahead.page(unit, index, lane));
      if (lane == 0) {
#pragma unroll 1
        for (int chunk = 0; chunk < Traits::LatentTile::kChunks; ++chunk) {
          copy(shared_.latent[stage] + Traits::LatentTile::row_offset(chunk, row), maps_.latent, position, chunk, page,
               full);
        }
        copy_rest(stage, row, position, page, full);
      }
      __syncwarp();
    }
  }

  // By the 4 warps of a scores' warpgroup, 16 tokens each, with zeros where there is none.
  __device__ __forceinline__ void gather(const Order& order, int stage, int warp, int lane) const {
    if (!order.exists) return;
    const int base = 16 * warp, record = order.source[base + lane % 16];
    const uint32_t present = __ballot_sync(0xFFFFFFFFu, record >= 0);
    const int page = params_.page_size.divide(max(record, 0));
    const auto own = reinterpret_cast<uintptr_t>(params_.cache + page * params_.page_stride +
                                                 (record - page * params_.page_size.divisor()) * params_.record_stride);
    const uint32_t latent = ptx::shared_address(shared_.latent[stage]);
    const uint32_t rope = ptx::shared_address(shared_.rope[stage]);
    constexpr int kPieces = Traits::kRopeBytes / 16;
#pragma unroll 1
    for (int t = 0; t < 16; ++t) {
      const auto* source = reinterpret_cast<const uint8_t*>(__shfl_sync(0xFFFFFFFFu, own, t));
      const bool keep = present >> t & 1;
#pragma unroll
      for (int piece = lane; piece < Traits::kLatentBytes / 16; piece += 32) {
        copy_16(latent + Traits::LatentTile::offset(base + t, piece), source + 16 * piece, keep);
      }
      if (lane < kPieces) {
        copy_16(rope + Traits::RopeTile::offset(base + t, lane),
                source + Traits::kLatentBytes + Traits::kScaleBytes + 16 * lane, keep);
      }
      if (Traits::kTokenScales && lane == kPieces) {
        copy_16(ptx::shared_address(scales(stage, base + t)), source + kRecordScaleOffset, keep);
      }
    }
    ptx::arrive_behind_copies(&shared_.cache_ring.full[stage]);
  }

 private:
  // What follows the latent channels, of a box whose first token is row `row` of the block.
  __device__ __forceinline__ void copy_rest(int stage, int row, int position, int page, uint64_t* full) const {
    copy(shared_.rope[stage] + row * Traits::RopeTile::kChunkBytes, maps_.rope, position, 0, page, full);
    if constexpr (Traits::kTokenScales) copy(scales(stage, row), maps_.scale, position, 0, page, full);
  }

  __device__ __forceinline__ void copy(void* destination, const CUtensorMap& map, int position, int chunk, int page,
                                       uint64_t* full) const {
    const int32_t coordinates[4] = {0, position, chunk, page};
    ::cuda::ptx::cp_async_bulk_tensor(::cuda::ptx::space_cluster, ::cuda::ptx::space_global, destination, &map,
                                      coordinates, full);
  }

  __device__ void copy_16(uint32_t destination, const uint8_t* source, bool keep) const {
    ptx::copy_16_or_zero(destination, keep ? source : params_.cache, keep);
  }

  __device__ uint8_t* scales(int stage, int token) const {
    return reinterpret_cast<uint8_t*>(shared_.scales[stage]) + 16 * token;
  }

  Shared& shared_;
  const MlaMaps& maps_;
  const MlaParams& params_;
};

}  // namespace fp8attn::cuda
