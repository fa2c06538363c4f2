// Compile-time shape of a prefill kernel: element type, head dims, form of P, and the shared memory that
// follows from them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "cuda/sm90/prefill/shape.h"
#include "cuda/sm90/ptx/half2.h"
#include "cuda/sm90/tile/pipeline.h"
#include "cuda/sm90/tile/probability.h"
#include "cuda/sm90/tile/shared_tile.h"
#include "cuda/sm90/tile/tile_plan.h"
#include "fp8attn/prefill.h"

namespace fp8attn::cuda {

struct ElementE4M3 {
  static constexpr DType kDType = DType::kE4M3;
  static constexpr int kBytes = 1;
};
struct ElementBF16 {
  static constexpr DType kDType = DType::kBF16;
  static constexpr int kBytes = 2;
  __device__ static uint32_t pack(float low, float high) { return ptx::bfloat162_from_floats(low, high); }
};
struct ElementFP16 {
  static constexpr DType kDType = DType::kFP16;
  static constexpr int kBytes = 2;
  __device__ static uint32_t pack(float low, float high) { return ptx::half2_from_floats(low, high); }
};

// The form of P of a mode.
template <PMode kMode>
struct FormOf {
  using Type = DefaultProbability;
};
template <>
struct FormOf<PMode::kExact> {
  using Type = ExactProbability;
};
template <>
struct FormOf<PMode::kFast> {
  using Type = LinearProbability;
};

// 8-bit wgmma reads V only with contiguous tokens: e4m3 kernels take it packed. A row-major one is packed before the
// kernel (variants.cpp).
//
// Two kernels of each: one does everything; the other has no code for uneven batches, windows, softcap, sinks and
// output other than 16 bits, since all that a tile runs through has to fit the 32 KB of instruction cache.
enum class Batches : uint8_t { kPlain, kAny };

template <class Element_, int kHeadDimQk_, int kHeadDimV_, PMode kPMode_ = PMode::kDefault,
          Batches kBatches_ = Batches::kAny>
struct PrefillTraits {
  using Plain = PrefillTraits<Element_, kHeadDimQk_, kHeadDimV_, kPMode_, Batches::kPlain>;
  static constexpr bool kIsPlain = kBatches_ == Batches::kPlain;

  using Element = Element_;
  static constexpr int kHeadDimQk = kHeadDimQk_, kHeadDimV = kHeadDimV_;
  static constexpr PMode kPMode = kPMode_;
  static constexpr bool kIsE4M3 = Element::kDType == DType::kE4M3;
  static constexpr PrefillShape kShape = prefill_shape(kIsE4M3, kHeadDimQk);

  static constexpr int kConsumers = kShape.consumers;
  static constexpr int kWarpgroupM = 64, kTileM = kWarpgroupM * kConsumers;  // query rows
  static constexpr int kBlockN = 64;                                         // keys of a block, the grain of masks
  static constexpr int kBlocksPerStep = kShape.blocks_per_step, kStepN = kBlockN * kBlocksPerStep;
  static constexpr int kShortStep = short_step(kBlocksPerStep);
  static constexpr int kThreads = 128 * (1 + kConsumers);
  static constexpr int kConsumerWarps = 4 * kConsumers;
  // Registers a thread at launch are 65536 / kThreads; what the producer gives back the consumers take.
  static constexpr int kProducerRegisters = kConsumers == 3 ? 32 : 24;
  static constexpr int kConsumerRegisters = kConsumers == 3 ? 160 : 240;
  // Where the tensor core is the bound, the scores of the next step are queued behind P V. The registers for that come
  // from the query, which is read from shared memory. (The fast form at d = 128 gains 6% at length from it in some
  // builds and loses 10% in others.)
  static constexpr bool kOverlaps = !kIsE4M3 || kHeadDimQk == 192;
  static constexpr bool kQueryInRegisters = kShape.query_in_registers && !kOverlaps;
  // Whether a short step has scores of its own part only. Not where operands of P V are made between its products: the
  // compiler makes all of them first where scores are in a branch.
  static constexpr bool kSkipsScores = kIsE4M3 && kConsumers == 2 && !kOverlaps && kPMode == PMode::kFast;

  // Rows of ones behind the channels of V make the tensor core sum the probabilities too.
  static constexpr int kOnesRows = 8;

  using QueryTile = SharedTile<kWarpgroupM, kHeadDimQk * Element::kBytes>;
  using KeyTile = SharedTile<kStepN, kHeadDimQk * Element::kBytes>;
  using RowMajorValueTile = SharedTile<kStepN, kHeadDimV * Element::kBytes>;   // [token][channel]
  using PackedValueTile = SharedTile<kHeadDimV + kOnesRows, kStepN, kBlockN>;  // [block][channel][token]
  using ValueTile = std::conditional_t<kIsE4M3, PackedValueTile, RowMajorValueTile>;
  using OutTile = SharedTile<kWarpgroupM / 4, 128>;  // 64 channels of the rows of a warp

  static constexpr int kStages = kShape.stages, kQueryStages = kShape.query_stages, kOutBuffers = kShape.out_buffers;

  // Tiles that a consumer may still read: the one being finished, the one entered, and those whose queries wait. The
  // producer's warps are done with a tile when the consumers have entered the second one behind it.
  static constexpr int kTileSlots = 4;
  using Plan = TilePlan<kConsumers>;
  static_assert(kWarpgroupM == kPlanRows && kBlockN == kPlanBlock);

  // Beside a tile's plan.
  struct Factors {
    int64_t lse;   // where that of the tile's first row lies
    float score;   // what scores are multiplied with, to make octaves of them
    float output;  // and the output, where V has one scale for all channels
  };
  // Queries with a scale a token have factors for each row besides, where shared memory has room for them.
  static constexpr bool kNotesRows = kIsE4M3 && kHeadDimQk < 256;
  using Factor = std::conditional_t<kIsE4M3, uint16_t, float>;  // of a softcap

  struct Shared {
    alignas(1024) uint8_t query[kConsumers][kQueryStages][QueryTile::kBytes];
    alignas(1024) uint8_t key[kStages][KeyTile::kBytes];
    alignas(1024) uint8_t value[kStages][ValueTile::kBytes];
    alignas(1024) uint8_t out[kConsumerWarps][kOutBuffers][OutTile::kBytes];
    Plan tile[kTileSlots];
    Factors factors[kTileSlots];
    float row_factor[kNotesRows ? kTileSlots : 1][kNotesRows ? kTileM : 1];
    Factor cap_factor[kConsumers][kWarpgroupM];         // of the rows of the tile entered last
    RingBarriers<kQueryStages> query_ring[kConsumers];  // TMA -> one consumer warpgroup; its tile arrives with it
    RingBarriers<kStages> key_ring;                     // TMA -> all consumer warpgroups, a step a stage
    RingBarriers<kStages> value_ring;                   // the same
    uint64_t announced[kTileSlots];                     // the warp that announces tiles -> those that load
    Arrival values_to_clear;                            // TMA -> the warp that loads values -> value_ring
    Arrival query_to_clear;                             // TMA -> the warp that announces tiles -> query_ring
  };
  static_assert(sizeof(Shared) <= 227 * 1024, "more shared memory than an SM gives one CTA");
};

}  // namespace fp8attn::cuda
