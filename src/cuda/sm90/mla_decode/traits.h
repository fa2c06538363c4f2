// Compile-time shape of an MLA decode kernel: what follows from the cache format.
#pragma once

#include <cstdint>
#include <type_traits>

#include "cuda/sm90/mla_decode/schedule.h"
#include "cuda/sm90/tile/pipeline.h"
#include "cuda/sm90/tile/shared_tile.h"
#include "fp8attn/kv_cache.h"

namespace fp8attn::cuda {

// Named barriers. Beside them each scores' warpgroup has one of its own, and each output warpgroup.
inline constexpr int kStartBarrier = 1;         // all 512 threads, who meet twice before the first unit
inline constexpr int kScoresBarrier = 2;        // the 256 threads of both scores' warpgroups
inline constexpr int kScoresGroupBarrier = 3;   // and 4: the 128 threads of one
inline constexpr int kOutputGroupBarrier = 5;   // and 6: the same of the output

// What the scores' side tells the values' side, with a block of probabilities or at the end of a unit.
struct MlaMessage {
  enum Kind : int { kBlock, kEndOfUnit, kExit };
  int kind;
  // kEndOfUnit: whose output it is, and the partial result's slot, -1 where the unit is not split.
  int sequence, tile, slot;
  // kBlock: what the output is multiplied with before the block is added. kEndOfUnit: what it is multiplied with last.
  alignas(16) float factor[64];
  alignas(16) int rescales[4];  // kBlock: whether any factor of a scores' warp is not 1
};

// Where a warp that looks ahead for blocks to load stands. In shared memory: there are no registers to spare.
struct MlaAheadState {
  MlaWalkState walk;
  int number, block;  // of the block that was looked for last, in the CTA and in its sequence
  bool exists;
  // TMA: entries 32 chunk to 32 chunk + 31 of a sequence's block table. -1: not a page, or not one of the sequence's.
  int sequence, chunk;
  int page[32];
};

template <CacheFormat kFormat_>
struct MlaTraits {
  static constexpr CacheFormat kFormat = kFormat_;
  static constexpr bool kIsE4M3 = kFormat != CacheFormat::kBF16;
  static constexpr bool kTokenScales = kFormat == CacheFormat::kToken || kFormat == CacheFormat::kToken128;
  static constexpr bool kRopeIsBF16 = kFormat != CacheFormat::kTensor;
  static constexpr int kGroups = kFormat == CacheFormat::kToken128 ? 4 : 1;  // of latent channels, by scale

  static constexpr int kTileM = 64;  // query rows: pairs of a query token and a head
  static constexpr int kTileN = 64;  // tokens of a block; P V is folded into float32 once a block
  static constexpr int kLatent = static_cast<int>(kLatentDim), kRope = static_cast<int>(kRopeDim);
  static constexpr int kLatentBytes = kLatent * (kIsE4M3 ? 1 : 2), kRopeBytes = kRope * (kRopeIsBF16 ? 2 : 1);
  static constexpr int kScaleBytes = kTokenScales ? 16 : 0;  // of a token; four equal ones with kToken
  static constexpr int kRecordBytes = kLatentBytes + kScaleBytes + kRopeBytes;

  // Four warpgroups: two for the scores, whose blocks alternate, and two for the output, 256 channels each. The output
  // takes 128 registers, a fresh accumulator 32.
  static constexpr int kThreads = 512;
  static constexpr int kScoreRegisters = 72, kOutputRegisters = 184;
  static_assert(2 * kScoreRegisters + 2 * kOutputRegisters <= 512);

  using LatentTile = SharedTile<kTileN, kLatentBytes>;  // of the cache, and of the query: both have 64 rows
  using RopeTile = SharedTile<kTileN, kRopeBytes>;
  using ProbabilityTile = SharedTile<kTileM, kTileN*(kIsE4M3 ? 1 : 2)>;
  static_assert(kTileM == kTileN);

  static constexpr int kStages = kIsE4M3 ? 4 : 2;
  // Blocks whose sources are noted at a time.
  static constexpr int kOrders = kStages == 2 ? 3 : 4;
  static constexpr int kPresentWords = 8;  // the same of `present`, which is kept until the scores are made
  // Blocks of probabilities that may wait for their P V: as many as shared memory leaves room for.
  static constexpr int kBuffers = kFormat == CacheFormat::kToken || kFormat == CacheFormat::kTensor ? 2 : 1;
  // The output of 32 heads by 64 channels on its way to global memory, for each of the two warpgroups. With kToken128
  // it lies in the probabilities, which take four times the room.
  static constexpr int kStagingRowBytes = 144, kStagingBytes = 32 * kStagingRowBytes;  // padded against bank conflicts
  static constexpr bool kStagesInProbabilities = kFormat == CacheFormat::kToken128;

  // What the softmax needs of the scales of 16 tokens. [q][j][c] is token 8 j + 2 q + c of them.
  struct alignas(16) SoftmaxFactors {
    float log2_scale[4][2][2];     // makes P take the scale of V
    float inverse_scale[4][2][2];  // takes it back for the denominator
  };

  // Where a gathered block comes from.
  struct alignas(16) Order {
    int source[kTileN];  // the record of each token, page * page size + position. -1: zeros
    bool exists;         // false behind the last block
  };

  struct Shared {
    alignas(1024) uint8_t query[LatentTile::kBytes];
    alignas(1024) uint8_t query_rope[RopeTile::kBytes];
    alignas(1024) uint8_t latent[kStages][LatentTile::kBytes];
    alignas(1024) uint8_t rope[kStages][RopeTile::kBytes];
    alignas(1024) uint8_t probability[kBuffers][kGroups][ProbabilityTile::kBytes];
    alignas(16) uint8_t
        staging[kIsE4M3 && !kStagesInProbabilities ? 2 : 1][kIsE4M3 && !kStagesInProbabilities ? kStagingBytes : 16];
    // Of 16 tokens each: [token][group] as they come, then [group][q][j][c] (as above), what scores are multiplied with
    // behind the products of a group of channels.
    alignas(kTokenScales ? 128 : 4) float scales[kTokenScales ? kStages : 1][kTokenScales ? 4 : 1][kTokenScales ? 64 : 1];
    std::conditional_t<kTokenScales, SoftmaxFactors[2][4], char> factors;  // of either scores' warpgroup
    // kToken128: each scale over the largest, two halves for tokens 8 j + 2 q and the next: [group][q][j].
    alignas(16) uint32_t ratio[kGroups == 4 ? kStages : 1][kGroups][kGroups == 4 ? kTileN / 2 : 1];
    Order order[kOrders];
    uint32_t present[kPresentWords][2];  // sparse: bit t is set where token t of the block exists
    MlaMessage message[kBuffers];
    float query_scale[kTileM];
    float maximum[kTileM];  // largest logit of a row so far, in octaves
    // At the end of a unit: what the warpgroup of its last block has of the denominators. Before, of make_plan().
    alignas(8) float sum[kTileM];
    // full: one arrival and the bytes of TMA, or, where blocks are gathered, the 128 threads of a scores' warpgroup, when
    // their copies are there. empty: the 8 output warps, which are done with a stage after the scores, whose
    // probabilities they need.
    RingBarriers<kStages> cache_ring;
    RingBarriers<kBuffers> probability_ring;  // full: the 4 warps of a scores' warpgroup; empty: the 8 output warps
    uint64_t turn[2][4];                      // a warp of one scores' warpgroup -> its neighbour in the other
    MlaPlan plan;
    bool any_unit;          // whether this CTA has one
    MlaWalkState walk[8];   // of the scores' warps
    MlaAheadState ahead[2];  // of the first warp of either scores' warpgroup
  };
  static constexpr int kSharedBytes = sizeof(Shared);
  static_assert(kSharedBytes <= 227 * 1024, "more shared memory than an SM gives one CTA");
};

}  // namespace fp8attn::cuda
