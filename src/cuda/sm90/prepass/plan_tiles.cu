// Lists the tiles of an uneven batch from the lengths of the moment, so that a captured graph stays right when they
// change: a stable counting sort of groups of tiles by their cost, in one block.
#include <cuda_runtime.h>

#include <algorithm>
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
#pragma unroll 2
  for (int owner = lane >> tiles.group_log2; owner < 32; owner += 32 >> tiles.group_log2) {
    const int sequence = __shfl_sync(kAllLanes, group.sequence, owner);
    const int first_and_count = __shfl_sync(kAllLanes, entry, owner);
    const int target = __shfl_sync(kAllLanes, place, owner) + position;
    const int first = first_and_count & 0xFFFFFF, count = first_and_count >> 24;
    if (position < count && target < list.capacity) list.entries[target] = {sequence, first, position, count};
  }
}

// How many tiles of a cost a warp's groups have; then where the next one of them goes. Leaders that count at the same
// time differ in cost, and then in the bank.
struct Places {
  static constexpr int kCounters = UnevenTiles::kClasses * kWarps, kPerThread = kCounters / kThreads;
  static_assert(kCounters % kThreads == 0);

  int counters[UnevenTiles::kClasses][kWarps + 1];
  std::int64_t scratch[kWarps];

  // In the order of the list: by cost, then by warp.
  __device__ int& counter(int i) { return counters[i / kWarps][i % kWarps]; }

  __device__ void clear() {
    for (int i = threadIdx.x; i < kCounters; i += kThreads) counter(i) = 0;
  }

  // From numbers to places. Whole block, between barriers. Returns the number of all tiles.
  __device__ std::int64_t sum_up(int capacity) {
    const int first = static_cast<int>(threadIdx.x) * kPerThread;
    std::int64_t sum = 0, total;
#pragma unroll
    for (int i = 0; i < kPerThread; ++i) sum += counter(first + i);
    std::int64_t place = exclusive_scan_of_block<kThreads>(sum, scratch, total);
#pragma unroll
    for (int i = 0; i < kPerThread; ++i) {
      const int count = counter(first + i);
      counter(first + i) = static_cast<int>(min(place, std::int64_t{capacity}));
      place += count;
    }
    return total;
  }
};

// What the warps have: each some blocks of 32 sequences, or `team` neighbours the groups of one block.
struct Shares {
  int blocks, blocks_of_warp;
  Divisor team;
};

// What takes time is mostly the fetching of instructions, so there is one copy of those that both passes need.
__global__ void __launch_bounds__(kThreads, 1)
    plan_tiles_kernel(const __grid_constant__ UnevenTiles tiles, const __grid_constant__ TileList list, Shares shares,
                      bool beside_rows) {
  __shared__ Places places;
  cudaTriggerProgrammaticLaunchCompletion();
  places.clear();
  if (!beside_rows) cudaGridDependencySynchronize();
  // In the order of the warps.
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, team = shares.team.divide(warp);
  const int member = warp - team * shares.team.divisor();
  const int begin = team * shares.blocks_of_warp, end = min(begin + shares.blocks_of_warp, shares.blocks);
#pragma unroll 1
  for (bool counted = false;; counted = true) {
#pragma unroll 1
    for (int block = begin; block < end; ++block) {
      const Sequences sequences(tiles, block * 32);
      const int groups = sequences.groups(), share = (shares.team.divide((groups - 1) / 32) + 1) * 32;
      const int first = member * share, last = min(first + share, groups);
#pragma unroll 1
      for (int i = first; i < last; i += 32) {
        const Group group = sequences.at(tiles, i + lane);
        const Peers peers(group);
        int& next = places.counters[group.cost_class][warp];
        const int place = next + peers.before;
        __syncwarp();
        // Offsets that make sequences overlap name more tiles than there is room for, or than an integer counts: what
        // lies beyond the room is left out.
        if (peers.leads) next = min(place + peers.all, list.capacity);
        __syncwarp();
        if (counted) write_entries(tiles, group, place, list);
      }
    }
    if (counted) break;
    __syncthreads();
    const std::int64_t total = places.sum_up(list.capacity);
    if (threadIdx.x == 0) *list.count = static_cast<int>(min(total, std::int64_t{list.capacity}));
    __syncthreads();
  }
  cudaGridDependencySynchronize();  // when this kernel has ended, all before it have
}

}  // namespace

void plan_tiles(const UnevenTiles& tiles, const TileList& list, Stream stream, bool beside_rows) {
  const int blocks = (tiles.batch.sequences + 31) / 32;
  const Shares shares{blocks, (blocks + kWarps - 1) / kWarps, Divisor(std::max(kWarps / blocks, 1))};
  launch_blocks(plan_tiles_kernel, Grid{1, kThreads}, Start::kEarly, stream, tiles, list, shares, beside_rows);
}

}  // namespace fp8attn::cuda
