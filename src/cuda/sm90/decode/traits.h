// Compile-time shape of a decode kernel: element type of the cache, head dims, and the shared memory that follows.
#pragma once

#include <cstdint>

#include "cuda/sm90/decode/fragments.h"
#include "cuda/sm90/decode/params.h"
#include "cuda/sm90/tile/pipeline.h"
#include "cuda/sm90/tile/shared_tile.h"

namespace fp8attn::cuda {

inline constexpr int kSliceTokens = 32;  // what a warp takes at a time

// What head dims and the bytes of an element leave room for. 64 KB of the stages are in the hands of the consumers, the
// rest on its way.
struct DecodeShape {
  int block_tokens;  // of a stage: one slice or two
  int stages;
  int consumer_warps;     // four where the output takes 128 registers a thread
  int exchange_channels;  // that the warps of a CTA exchange at a time, at the end of a unit
};

constexpr DecodeShape decode_shape(int element_bytes, int head_dim_qk) {
  const bool e4m3 = element_bytes == 1;
  switch (head_dim_qk) {
    case 64: return {64, e4m3 ? 16 : 8, 8, 64};
    case 128: return {e4m3 ? 64 : 32, 8, 8, 128};
    case 192: return {e4m3 ? 64 : 32, 8, 8, 64};
    default: return {32, e4m3 ? 8 : 4, 4, 256};  // 256
  }
}

template <class Element_, int kHeadDimQk_, int kHeadDimV_>
struct DecodeTraits {
  using Element = Element_;
  static constexpr int kHeadDimQk = kHeadDimQk_, kHeadDimV = kHeadDimV_;
  static constexpr DecodeShape kShape = decode_shape(Element::kBytes, kHeadDimQk);
  static constexpr int kBlockTokens = kShape.block_tokens, kStages = kShape.stages;
  static_assert(kBlockTokens == 64 || kBlockTokens == 32);
  static constexpr int kSlices = kBlockTokens / kSliceTokens;  // of a block

  static constexpr int kProducerWarps = 4, kConsumerWarps = kShape.consumer_warps;
  static constexpr int kConsumerThreads = 32 * kConsumerWarps;
  static constexpr int kThreads = 32 * (kProducerWarps + kConsumerWarps);
  // A stage always comes from the same producer warp and goes to the same consumer warps, whatever the number of row
  // tiles: who waits for a phase of its barriers has itself seen the phase before.
  static_assert(kStages % kProducerWarps == 0 && kStages * kSlices % kConsumerWarps == 0);

  // Eight consumer warps take the registers that the producers leave, four get as many as there are.
  static constexpr bool kMovesRegisters = kConsumerWarps == 8;
  static constexpr int kProducerRegisters = 56;
  static constexpr int kConsumerRegisters = 224;
  // Where there are no registers for it, each warp keeps its query (lanes' operands of steps of 16 channels) where it
  // will put its output.
  static constexpr bool kQueryInShared = kConsumerWarps == 4;

  using KeyTile = SharedTile<kBlockTokens, kHeadDimQk * Element::kBytes>;
  using ValueTile = SharedTile<kBlockTokens, kHeadDimV * Element::kBytes>;

  // Rows are padded against bank conflicts; the first number of the padding says whether the row sees no key.
  static constexpr int kExchangeChannels = kShape.exchange_channels, kExchangeStride = kExchangeChannels + 4;

  static_assert(!kQueryInShared || kRowTile * kExchangeStride * 4 >= kHeadDimQk / 16 * 32 * 16);

  struct Shared {
    alignas(1024) uint8_t key[kStages][KeyTile::kBytes];
    alignas(1024) uint8_t value[kStages][ValueTile::kBytes];
    alignas(16) float exchange[kConsumerWarps][kRowTile][kExchangeStride];
    float maximum[kConsumerWarps][kRowTile];  // of each warp's tokens
    float sum[kConsumerWarps][kRowTile];
    RingBarriers<kStages> ring;  // a producer warp -> the consumer warps that have a slice of the block
    SplitWalkState walk[kThreads / 32];
  };
  static_assert(sizeof(Shared) <= 227 * 1024, "more shared memory than an SM gives one CTA");
};

}  // namespace fp8attn::cuda
