// Compile-time shape of a prefill kernel: element type, head dims, V layout, form of P, and the shared memory that
// follows from them.
#pragma once

#include <cstdint>
#include <type_traits>

#include "cuda/sm90/ptx/half2.h"
#include "cuda/sm90/tile/pipeline.h"
#include "cuda/sm90/tile/probability.h"
#include "cuda/sm90/tile/shared_tile.h"
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

// The form of P of a mode. Which one is fastest as the default depends on how many products a probability costs.
template <PMode kMode, int kHeadDim>
struct FormOf {
  using Type = std::conditional_t<kHeadDim == 64, QuadraticProbability, MixedProbability>;
};
template <int kHeadDim>
struct FormOf<PMode::kExact, kHeadDim> {
  using Type = ExactProbability;
};
template <int kHeadDim>
struct FormOf<PMode::kFast, kHeadDim> {
  using Type = LinearProbability;
};

template <class Element_, int kHeadDim, VLayout kVLayout_ = VLayout::kRowMajor, PMode kPMode_ = PMode::kDefault>
struct PrefillTraits {
  using Element = Element_;
  static constexpr int kHeadDimQk = kHeadDim, kHeadDimV = kHeadDim;
  static constexpr VLayout kVLayout = kVLayout_;
  static constexpr PMode kPMode = kPMode_;
  static constexpr bool kIsE4M3 = Element::kDType == DType::kE4M3;
  // 8-bit wgmma reads V only with contiguous tokens: a row-major one is packed before the kernel (variants.cpp).
  static_assert(kIsE4M3 == (kVLayout == VLayout::kPacked));

  // Three warpgroups hide more of each other's latencies than two; with the registers that d = 128 needs, two are
  // faster.
  static constexpr int kConsumers = kHeadDim == 64 ? 3 : 2;
  static constexpr int kWarpgroupM = 64, kTileM = kWarpgroupM * kConsumers;  // query rows
  static constexpr int kTileN = 128;                                         // keys of a block
  static constexpr int kThreads = 128 * (1 + kConsumers);
  static constexpr int kConsumerWarps = 4 * kConsumers;
  // Registers a thread at launch are 65536 / kThreads; what the producer gives back the consumers take.
  static constexpr int kProducerRegisters = 24, kConsumerRegisters = kConsumers == 3 ? 160 : 240;

  // Whether the scores of the next step are computed behind P V of this one: where the registers suffice for it.
  static constexpr bool kOverlapsSteps = !kIsE4M3;

  // How many products of P V are issued at a time, between the making of their operands: 2 where that was faster.
  static constexpr int kProductsPerGroup =
      kIsE4M3 && (kPMode == PMode::kDefault || (kPMode == PMode::kExact && kHeadDim == 128)) ? 2 : 4;

  // Rows of ones behind the channels of V make the tensor core sum the probabilities too.
  static constexpr int kOnesRows = 8;

  using QueryTile = SharedTile<kWarpgroupM, kHeadDimQk * Element::kBytes>;
  using KeyTile = SharedTile<kTileN, kHeadDimQk * Element::kBytes>;
  using RowMajorValueTile = SharedTile<kTileN, kHeadDimV * Element::kBytes>;  // [token][channel]
  using PackedValueTile = SharedTile<kHeadDimV + kOnesRows, kTileN>;          // [channel][token]
  using ValueTile = std::conditional_t<kIsE4M3, PackedValueTile, RowMajorValueTile>;
  using OutTile = SharedTile<kWarpgroupM, kHeadDimV * 2>;

  static constexpr int kStages = kIsE4M3 ? (kHeadDim == 64 ? 5 : 4) : (kHeadDim == 64 ? 4 : 2);

  struct Shared {
    alignas(1024) uint8_t query[kConsumers][QueryTile::kBytes];
    alignas(1024) uint8_t key[kStages][KeyTile::kBytes];
    alignas(1024) uint8_t value[kStages][ValueTile::kBytes];
    alignas(1024) uint8_t out[kConsumers][OutTile::kBytes];
    RingBarriers<1> query_ring[kConsumers];  // TMA -> one consumer warpgroup
    RingBarriers<kStages> key_ring;          // TMA -> all consumer warpgroups
    RingBarriers<kStages> value_ring;        // TMA -> all consumer warpgroups
  };
  // Dynamic shared memory is aligned to 1024 bytes by hand.
  static constexpr int kSharedBytes = sizeof(Shared) + 1024;
  static_assert(kSharedBytes <= 227 * 1024, "more shared memory than an SM gives one CTA");
};

}  // namespace fp8attn::cuda
