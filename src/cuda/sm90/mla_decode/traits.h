// Compile-time shape of an MLA decode kernel: what follows from the cache format.
#pragma once

#include <cstdint>
#include <type_traits>

#include "cuda/sm90/mla_decode/params.h"
#include "cuda/sm90/tile/pipeline.h"
#include "cuda/sm90/tile/shared_tile.h"
#include "fp8attn/kv_cache.h"

namespace fp8attn::cuda {

// Named barrier of the scores' and the output's 384 threads, who meet twice before the first unit.
inline constexpr int kFirstQueryBarrier = 4;

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

// kRows_: how many of a tile's rows there can be, 16, 32 or 64. The scores' products have 64 all the same.
template <CacheFormat kFormat_, int kRows_ = 64>
struct MlaTraits {
  static constexpr CacheFormat kFormat = kFormat_;
  static constexpr int kRows = kRows_;
  static constexpr bool kIsE4M3 = kFormat != CacheFormat::kBF16;
  static constexpr bool kTokenScales = kFormat == CacheFormat::kToken || kFormat == CacheFormat::kToken128;
  static constexpr bool kRopeIsBF16 = kFormat != CacheFormat::kTensor;
  static constexpr int kGroups = kFormat == CacheFormat::kToken128 ? 4 : 1;  // of latent channels, by scale

  static constexpr int kTileM = 64;  // query rows: pairs of a query token and a head
  static constexpr int kTileN = 64;  // tokens of a block; P V is folded into float32 once a block, or every two
  static constexpr int kLatent = static_cast<int>(kLatentDim), kRope = static_cast<int>(kRopeDim);
  static constexpr int kLatentBytes = kLatent * (kIsE4M3 ? 1 : 2), kRopeBytes = kRope * (kRopeIsBF16 ? 2 : 1);
  static constexpr int kScaleBytes = kTokenScales ? 16 : 0;  // of a token; four equal ones with kToken
  static constexpr int kRecordBytes = kLatentBytes + kScaleBytes + kRopeBytes;

  // Query rows that P V sums in a fresh accumulator at a time: 32, to leave registers to the scores.
  static constexpr int kFreshColumns = 32;

  // Three warpgroups: producer, and two that share scores and output, where that is faster: kTensor and kToken128 lost
  // 9 and 5% by it.
  static constexpr bool kSymmetric = kFormat == CacheFormat::kToken;
  static_assert(kRows == 64 || kSymmetric);
  static constexpr int kScoreWarps = kRows / 16;  // of a warpgroup, those with scores of rows that there can be
  static constexpr int kConsumerRegisters = 232;

  // Else four: producer, scores, and two for the output, 256 channels each. The output takes 128 registers, a fresh
  // accumulator 16.
  static constexpr int kThreads = kSymmetric ? 384 : 512;
  static constexpr int kOutputRegisters = 168;
  static constexpr int kWalks = kSymmetric ? 12 : 8;  // the producer warps, and those with scores
  static constexpr int kProducerRegisters = kIsE4M3 ? 40 : 64;
  static constexpr int kScoreRegisters = 512 - kProducerRegisters - 2 * kOutputRegisters;
  // Warpgroups share what the kernel starts with, 168 a thread, or setmaxnreg waits for ever.
  static_assert(!kSymmetric || kProducerRegisters + 2 * kConsumerRegisters <= 3 * 168);

  using LatentTile = SharedTile<kTileN, kLatentBytes>;  // of the cache, and of the query: both have 64 rows
  using RopeTile = SharedTile<kTileN, kRopeBytes>;
  using ProbabilityTile = SharedTile<kTileM, kTileN*(kIsE4M3 ? 1 : 2)>;
  static_assert(kTileM == kTileN);

  static constexpr int kStages = kIsE4M3 ? 4 : 2;
  // Blocks of probabilities that may wait for their P V: as many as shared memory leaves room for. kSymmetric: two of
  // each warpgroup, since the other one is done with the first only when the second has been made.
  static constexpr int kBuffers = kSymmetric ? 4 : kFormat == CacheFormat::kTensor ? 2 : 1;
  // The output of 32 heads by 64 channels on its way to global memory, for each of the two warpgroups. It lies in the
  // probabilities where these take 16 KB.
  static constexpr int kStagingRowBytes = 144, kStagingBytes = 32 * kStagingRowBytes;  // padded against bank conflicts
  static constexpr bool kStagesInProbabilities = kTokenScales;

  // What the scores' warps need of the scales of a block's tokens. The producer writes it over the scales.
  struct alignas(128) TokenFactors {
    struct Pair {
      float scale[2];       // of the latent; kToken128: the largest of the four
      float log2_scale[2];  // makes P take the scale of V
    };
    Pair pair[kTileN / 2];
    float inverse_scale[kTileN];  // takes it back for the denominator
    float least_scale;
    float unused[kTileN - 1];
  };
  static_assert(sizeof(TokenFactors) == 16 * kTileN);

  // What the two symmetric warpgroups tell each other.
  struct Exchange {
    float maximum[2][kTileM];     // of the rows, after the last block of each warpgroup
    uint64_t maxima_ready[2][4];  // from a warp to the warp of the same number
    int blocks_before[8];         // the unit, of this CTA: a number for each warp
    // At the end of a unit.
    struct {
      float sum[kTileM], maximum[kTileM];
      MlaMessage message;  // to itself
    } ending[2];
  };
  struct Nothing {};

  struct Shared {
    alignas(1024) uint8_t query[LatentTile::kBytes];
    alignas(1024) uint8_t query_rope[RopeTile::kBytes];
    alignas(1024) uint8_t latent[kStages][LatentTile::kBytes];
    alignas(1024) uint8_t rope[kStages][RopeTile::kBytes];
    alignas(1024) uint8_t probability[kBuffers][kGroups][ProbabilityTile::kBytes];
    alignas(16) uint8_t
        staging[kIsE4M3 && !kStagesInProbabilities ? 2 : 1][kIsE4M3 && !kStagesInProbabilities ? kStagingBytes : 16];
    TokenFactors factors[kTokenScales ? kStages : 1];
    // kToken128: each scale over the largest, two halves for two tokens.
    uint32_t ratio[kGroups == 4 ? kStages : 1][kGroups == 4 ? 4 : 1][kGroups == 4 ? kTileN / 2 : 1];
    MlaMessage message[kBuffers];
    std::conditional_t<kSymmetric, Exchange, Nothing> exchange;
    float query_scale[kTileM];
    uint32_t present[kStages][2];             // sparse: bit t is set where token t of the block exists
    RingBarriers<kStages> cache_ring;         // a producer warp -> scores and output warps
    uint64_t factors_ready[kStages];          // a producer warp -> scores' warps
    RingBarriers<kBuffers> probability_ring;  // scores -> output warps
    bool any_unit;                            // whether this CTA has one
    MlaWalkState walk[kWalks];
  };
  static constexpr int kSharedBytes = sizeof(Shared);
  static_assert(kSharedBytes <= 227 * 1024, "more shared memory than an SM gives one CTA");
};

}  // namespace fp8attn::cuda
