// Lists the tiles of an uneven batch from the lengths of the moment, so that a captured graph stays right when they
// change: a stable counting sort of groups of tiles by their cost, in one block.
#include <cuda_runtime.h>

#include <cstdint>

#include "cuda/sm90/prepass/prepass.h"
#include "cuda/sm90/quantize/launch.h"
#include "cuda/sm90/tile/block_scan.h"

namespace fp8attn::cuda {
namespace {

constexpr int kThreads = 1024, kWarps = kThreads / 32;
constexpr unsigned kAllLanes = 0xFFFFFFFFu;

// Tiles `first`, first - 1, ... of a sequence. The lane's own: it may have none, which is a count of 0.
struct Group {
  int sequence, first, count, cost_class;
};

// Up to 32 sequences, one a lane, and their groups, numbered sequence by sequence, the last tiles first. Whole warp.
class Sequences {
 public:
  __device__ Sequences(const UnevenTiles& tiles, int first) : first_(first) {
    const int own = first + static_cast<int>(threadIdx.x % 32);
    if (own < tiles.batch.sequences) mask_ = tiles.mask(own);
    groups_ = tiles.groups(mask_);
    past_ = inclusive_scan_of_warp(groups_);
    all_ = __shfl_sync(kAllLanes, past_, 31);
  }

  __device__ int groups() const { return all_; }

  __device__ Group at(const UnevenTiles& tiles, int number) const {
    int owner = 0;  // the lane whose sequence has it: the first whose groups end behind it
#pragma unroll
    for (int d = 16; d > 0; d /= 2) {
      if (__shfl_sync(kAllLanes, past_, owner + d - 1) <= number) owner += d;
    }
    const Mask mask{__shfl_sync(kAllLanes, mask_.query_length, owner), __shfl_sync(kAllLanes, mask_.key_length, owner),
                    tiles.causal, tiles.window_left};
    const int index = number - __shfl_sync(kAllLanes, past_ - groups_, owner);
    const int first = tiles.tiles(mask) - 1 - (index << tiles.group_log2);
    if (number >= all_) return {};
    return {first_ + owner, first, min(first + 1, tiles.group()), UnevenTiles::cost_class(tiles.steps(mask, first))};
  }

 private:
  int first_, groups_, past_, all_;  // past: groups up to this lane's sequence, it included
  Mask mask_{};
};

// Which groups a warp has: those of some blocks of 32 sequences, or a part of those of one block. The parts of warps
// lie in the order of the warps.
class WarpGroups {
 public:
  __device__ explicit WarpGroups(const UnevenTiles& tiles) : tiles_(tiles), first_(tiles, first_block() * 32) {}

  // Calls body(group), 32 lanes at a time.
  template <class Body>
  __device__ void for_each(Body body) const {
    const int team = warps_of_block(), begin = first_block();
    const int end = min(begin + (blocks() + kWarps - 1) / kWarps, blocks());
    for (int block = begin; block < end; ++block) {
      const Sequences sequences = block == begin ? first_ : Sequences(tiles_, block * 32);
      const int groups = sequences.groups(), share = ((groups + 31) / 32 + team - 1) / team * 32;
      const int first = static_cast<int>(threadIdx.x / 32) % team * share, last = min(first + share, groups);
      for (int i = first; i < last; i += 32) body(sequences.at(tiles_, i + static_cast<int>(threadIdx.x % 32)));
    }
  }

 private:
  __device__ int blocks() const { return (tiles_.batch.sequences + 31) / 32; }
  __device__ int warps_of_block() const { return max(kWarps / blocks(), 1); }
  __device__ int first_block() const {
    return static_cast<int>(threadIdx.x / 32) / warps_of_block() * ((blocks() + kWarps - 1) / kWarps);
  }

  const UnevenTiles& tiles_;
  const Sequences first_;  // of the first block: mostly there is no other
};

// The tiles of the lanes whose groups have the same cost.
struct Peers {
  int before, all;  // of the lanes below; of all
  bool leads;       // the lowest lane of them

  __device__ explicit Peers(const Group& group) {
    static_assert(UnevenTiles::kClasses <= 256);
    const unsigned below = (1u << threadIdx.x % 32) - 1;
    unsigned lanes = kAllLanes;
#pragma unroll
    for (int bit = 0; bit < 8; ++bit) {
      const bool own = (group.cost_class >> bit & 1) != 0;
      const unsigned ones = __ballot_sync(kAllLanes, own);
      lanes &= own ? ones : ~ones;
    }
    before = all = 0;
#pragma unroll
    for (int bit = 0; 1 << bit <= TileEntry::kMaxGroup; ++bit) {
      const unsigned counted = __ballot_sync(kAllLanes, group.count >> bit & 1) & lanes;
      before += __popc(counted & below) << bit;
      all += __popc(counted) << bit;
    }
    leads = (lanes & below) == 0;
  }
};

// Writes the entries of the lanes' groups, that of each from `place` on, neighbouring lanes neighbouring entries.
__device__ void write_entries(const UnevenTiles& tiles, const Group& group, int place, const TileList& list) {
  const int lane = threadIdx.x % 32, position = lane & (tiles.group() - 1);
  const int entry = group.first | group.count << 24;  // of which one shuffle fewer is needed
#pragma unroll 4
  for (int owner = lane >> tiles.group_log2; owner < 32; owner += 32 >> tiles.group_log2) {
    const int sequence = __shfl_sync(kAllLanes, group.sequence, owner);
    const int first_and_count = __shfl_sync(kAllLanes, entry, owner);
    const int target = __shfl_sync(kAllLanes, place, owner) + position;
    const int first = first_and_count & 0xFFFFFF, count = first_and_count >> 24;
    if (position < count && target < list.capacity) list.entries[target] = {sequence, first, position, count};
  }
}

__global__ void __launch_bounds__(kThreads, 1)
    plan_tiles_kernel(const __grid_constant__ UnevenTiles tiles, const __grid_constant__ TileList list) {
  // How many tiles of a cost a warp's groups have; then where the next one of them goes. Leaders that count at the same
  // time differ in cost, and then in the bank.
  __shared__ int places[UnevenTiles::kClasses][kWarps + 1];
  __shared__ std::int64_t scratch[kWarps];
  cudaTriggerProgrammaticLaunchCompletion();
  // Counters in the order of the list: by cost, then by warp.
  constexpr int kCounters = UnevenTiles::kClasses * kWarps;
  const auto counter = [&](int i) -> int& { return places[i / kWarps][i % kWarps]; };
  for (int i = threadIdx.x; i < kCounters; i += kThreads) counter(i) = 0;
  cudaGridDependencySynchronize();

  // Offsets that make sequences overlap name more tiles than there is room for, or than an integer counts: what lies
  // beyond the room is left out.
  const int warp = threadIdx.x / 32;
  const WarpGroups groups(tiles);
  groups.for_each([&](const Group& group) {
    const Peers peers(group);
    int& count = places[group.cost_class][warp];
    if (peers.leads) count = min(count + peers.all, list.capacity);
    __syncwarp();
  });
  __syncthreads();

  constexpr int kPerThread = kCounters / kThreads;
  static_assert(kCounters % kThreads == 0);
  const int first = static_cast<int>(threadIdx.x) * kPerThread;
  std::int64_t sum = 0;
#pragma unroll
  for (int i = 0; i < kPerThread; ++i) sum += counter(first + i);
  std::int64_t total;
  std::int64_t place = exclusive_scan_of_block<kThreads>(sum, scratch, total);
#pragma unroll
  for (int i = 0; i < kPerThread; ++i) {
    const int count = counter(first + i);
    counter(first + i) = static_cast<int>(min(place, std::int64_t{list.capacity}));
    place += count;
  }
  if (threadIdx.x == 0) *list.count = static_cast<int>(min(total, std::int64_t{list.capacity}));
  __syncthreads();

  groups.for_each([&](const Group& group) {
    const Peers peers(group);
    int& next = places[group.cost_class][warp];
    const int place = next + peers.before;
    __syncwarp();
    if (peers.leads) next = min(place + peers.all, list.capacity);
    __syncwarp();
    write_entries(tiles, group, place, list);
  });
}

}  // namespace

void plan_tiles(const UnevenTiles& tiles, const TileList& list, Stream stream) {
  launch_blocks(plan_tiles_kernel, Grid{1, kThreads}, Start::kEarly, stream, tiles, list);
}

}  // namespace fp8attn::cuda
