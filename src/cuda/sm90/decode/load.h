// The producer warps: blocks of keys and values into the ring of stages, each warp those of its own stages.
#pragma once

#include <cstdint>
#include <cuda/ptx>

#include "cuda/sm90/decode/params.h"
#include "cuda/sm90/decode/traits.h"
#include "cuda/sm90/ptx/copy.h"
#include "cuda/sm90/ptx/matrix.h"

namespace fp8attn::cuda {

template <class Traits>
class DecodeProducer {
 public:
  using Shared = typename Traits::Shared;

  __device__ DecodeProducer(Shared& shared, const DecodeMaps& maps, const DecodeParams& params, int warp, int lane)
      : shared_(shared), maps_(maps), params_(params), warp_(warp), lane_(lane) {}

  __device__ void run() {
    SplitWalk<DecodeParams> walk(params_, shared_.walk[warp_]);
    walk.plan();
    int count = 0;  // blocks of this CTA
    while (walk.next()) {
      const SplitUnit& unit = walk.unit();
      if (warp_ == 0 && count > 0) prefetch_query(unit);
      const DecodeParams::Span span = params_.span(params_.mask(unit.sequence));
      for (int block = unit.first; block < unit.last; ++block, ++count) {
        if (count % Traits::kProducerWarps == warp_) load(unit, span, (span.first_block + block) * kTokens, count);
      }
    }
  }

 private:
  static constexpr int kTokens = Traits::kBlockTokens, kElement = Traits::Element::kBytes;
  using KeyTile = typename Traits::KeyTile;
  using ValueTile = typename Traits::ValueTile;

  // The query of a unit but the first into the L2 cache: the consumers are still with the unit before.
  __device__ void prefetch_query(const SplitUnit& unit) const {
    const int bytes = params_.head_dim_qk * static_cast<int>(params_.query_dtype == DType::kE4M3 ? 1 : 2);
    for (int index = lane_; index < params_.rows; index += 32) {
      const DecodeParams::Row row = params_.row(unit.tile, index);
      const uint8_t* address = params_.query.at(unit.sequence, row.token, row.head);
      for (int offset = 0; offset < bytes; offset += 128) ptx::prefetch(address + offset);
    }
  }

  // Block `count` of this CTA, from token `first` on.
  __device__ void load(const SplitUnit& unit, const DecodeParams::Span& span, int first, int count) {
    const int stage = count % Traits::kStages;
    const uint32_t parity = count / Traits::kStages & 1;
    // This warp has filled the stage before, so the phase in question is the next to complete, or the last that did.
    // The first round does not wait: a fresh barrier counts as completed for the odd parity.
    const auto wait = [&] { wait_barrier(&shared_.ring.empty[stage], parity ^ 1); };
    if (params_.gathers) {
      gather(unit, span, first, stage, wait);
    } else {
      load_boxes(unit, span, first, stage, wait);
    }
  }

  // A lane a box of tokens: a whole block, or of pages.
  template <class Wait>
  __device__ void load_boxes(const SplitUnit& unit, const DecodeParams::Span& span, int first, int stage, Wait wait) {
    const PrefillParams& call = params_.call;
    const int rows = params_.box_rows, begin = lane_ * rows, token = first + begin;
    bool loads = begin < kTokens;
    int row = token, entry = unit.sequence;
    if (call.keys == Placement::kPages) {
      // What no row sees is not loaded by pages: table entries behind the length may be anything. It is masked.
      loads = loads && token < span.end;
      const int index = call.page_size.divide(token);
      row = token - index * call.page_size.divisor();
      entry = loads ? call.batch.page(unit.sequence, index) : -1;  // -1, no page: TMA fills in zeros
    }
    const int boxes = __popc(__ballot_sync(0xFFFFFFFFu, loads));
    wait();
    uint64_t* full = &shared_.ring.full[stage];
    if (lane_ == 0) {
      ::cuda::ptx::mbarrier_arrive_expect_tx(::cuda::ptx::sem_release, ::cuda::ptx::scope_cta,
                                             ::cuda::ptx::space_shared, full,
                                             boxes * rows * (Traits::kHeadDimQk + Traits::kHeadDimV) * kElement);
    }
    __syncwarp();
    if (!loads) return;
    const uint64_t policy = ptx::read_once_policy();
    load_box<KeyTile>(shared_.key[stage], maps_.key, full, policy, begin, unit.tile, row, entry);
    load_box<ValueTile>(shared_.value[stage], maps_.value, full, policy, begin, unit.tile, row, entry);
  }

  template <class Tile>
  __device__ static void load_box(uint8_t* tile, const CUtensorMap& map, uint64_t* full, uint64_t policy, int begin,
                                  int head, int row, int entry) {
#pragma unroll 1
    for (int chunk = 0; chunk < Tile::kChunks; ++chunk) {
      const int32_t at[4] = {chunk * (Tile::kChunkBytes / kElement), head, row, entry};
      ptx::copy_box(tile + Tile::row_offset(chunk, begin), map, at, full, policy);
    }
  }

  // Token by token, zeros where there is none.
  template <class Wait>
  __device__ void gather(const SplitUnit& unit, const DecodeParams::Span& span, int first, int stage, Wait wait) {
#pragma unroll
    for (int base = 0; base < kTokens; base += 32) {
      // Lane l knows where token base + l is.
      const int token = first + base + lane_, index = params_.call.page_size.divide(token);
      const int row = token - index * params_.call.page_size.divisor();
      const int page = token < span.end ? params_.call.batch.page(unit.sequence, index) : -1;
      if (base == 0) wait();
      copy_rows<KeyTile>(shared_.key[stage], params_.key, params_.head_dim_qk, base, page, row, unit.tile);
      copy_rows<ValueTile>(shared_.value[stage], params_.value, params_.call.head_dim_v, base, page, row, unit.tile);
    }
    ptx::arrive_after_copies(&shared_.ring.full[stage]);
  }

  // 32 tokens. page: of the lane's, -1: none.
  template <class Tile>
  __device__ void copy_rows(uint8_t* tile, const BytesView& view, int head_dim, int base, int page, int row, int head) {
    constexpr int kPieces = Tile::kBytes / Tile::kRows / 16;
    const uint32_t destination = ptx::shared_address(tile);
    const int64_t own = page * view.entry_stride + row * view.row_stride + head * view.head_stride;
#pragma unroll 1
    for (int i = lane_; i < 32 * kPieces; i += 32) {
      const int local = i / kPieces, piece = i % kPieces;
      const int64_t offset = __shfl_sync(0xFFFFFFFFu, own, local);
      const bool exists = __shfl_sync(0xFFFFFFFFu, page, local) >= 0 && piece * (16 / kElement) < head_dim;
      ptx::copy_16_or_zero(destination + Tile::offset(base + local, piece),
                           view.data + (exists ? offset + 16 * piece : 0), exists);
    }
  }

  Shared& shared_;
  const DecodeMaps& maps_;
  const DecodeParams& params_;
  const int warp_, lane_;
};

}  // namespace fp8attn::cuda
