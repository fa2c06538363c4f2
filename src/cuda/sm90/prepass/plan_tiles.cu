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

// Calls body(group) with the groups of sequences [begin, end) in their order, 32 at a time. Whole warp.
template <class Body>
__device__ void for_each_group(const UnevenTiles& tiles, int begin, int end, Body body) {
  const int lane = threadIdx.x % 32;
  for (int base = begin; base < end; base += 32) {
    const Mask mask = base + lane < end ? tiles.mask(base + lane) : Mask{};
    const int groups = tiles.groups(mask);
    const int past = inclusive_scan_of_warp(groups);
    const int total = __shfl_sync(kAllLanes, past, 31);
    for (int number = lane; number - lane < total; number += 32) {
      int owner = 0;  // the lane whose sequence has group `number`: the first one that `past` is beyond it
#pragma unroll
      for (int d = 16; d > 0; d /= 2) {
        if (__shfl_sync(kAllLanes, past, owner + d - 1) <= number) owner += d;
      }
      const Mask owned{__shfl_sync(kAllLanes, mask.query_length, owner), __shfl_sync(kAllLanes, mask.key_length, owner),
                       tiles.causal, tiles.window_left};
      const int index = number - __shfl_sync(kAllLanes, past - groups, owner);
      Group group{base + owner, 0, 0, 0};
      if (number < total) {
        group.first = tiles.tiles(owned) - 1 - index * tiles.group;
        group.count = min(group.first + 1, tiles.group);
        group.cost_class = UnevenTiles::cost_class(tiles.steps(owned, group.first));
      }
      body(group);
    }
  }
}

// The tiles of the lanes whose groups have the same cost.
struct Peers {
  int before, all;  // of the lanes below; of all
  bool leads;       // the lowest lane of them

  __device__ explicit Peers(const Group& group) {
    const unsigned below = (1u << threadIdx.x % 32) - 1;
    const unsigned lanes = __match_any_sync(kAllLanes, group.count == 0 ? -1 : group.cost_class);
    before = all = 0;
#pragma unroll
    for (int bit = 0; 1 << bit <= TileEntry::kMaxGroup; ++bit) {
      const unsigned counted = __ballot_sync(kAllLanes, group.count >> bit & 1) & lanes;
      before += __popc(counted & below) << bit;
      all += __popc(counted) << bit;
    }
    leads = group.count > 0 && (lanes & below) == 0;
  }
};

// Writes the entries of the lanes' groups, that of each from `place` on, neighbouring lanes neighbouring entries.
__device__ void write_entries(const UnevenTiles& tiles, const Group& group, int place, const TileList& list) {
  const int lane = threadIdx.x % 32, position = lane & (tiles.group - 1);
  const int at_once = 32 / tiles.group;
  for (int base = 0; base < 32; base += at_once) {
    const int owner = base + lane / tiles.group;
    const int sequence = __shfl_sync(kAllLanes, group.sequence, owner);
    const int first = __shfl_sync(kAllLanes, group.first, owner);
    const int count = __shfl_sync(kAllLanes, group.count, owner);
    const int target = __shfl_sync(kAllLanes, place, owner) + position;
    if (position < count && target < list.capacity) list.entries[target] = {sequence, first, position, count};
  }
}

__global__ void __launch_bounds__(kThreads)
    plan_tiles_kernel(const __grid_constant__ UnevenTiles tiles, const __grid_constant__ TileList list) {
  // How many tiles of a cost a warp's sequences have; then where the next one of them goes. Leaders that count at the
  // same time differ in cost, and then in the bank.
  __shared__ int places[UnevenTiles::kClasses][kWarps + 1];
  __shared__ std::int64_t scratch[kWarps];
  cudaTriggerProgrammaticLaunchCompletion();
  cudaGridDependencySynchronize();
  const int warp = threadIdx.x / 32;
  const int sequences = (tiles.batch.sequences + kWarps - 1) / kWarps;
  const int begin = min(warp * sequences, tiles.batch.sequences);
  const int end = min(begin + sequences, tiles.batch.sequences);
  // Counters in the order of the list: by cost, then by warp.
  constexpr int kCounters = UnevenTiles::kClasses * kWarps;
  const auto counter = [&](int i) -> int& { return places[i / kWarps][i % kWarps]; };
  for (int i = threadIdx.x; i < kCounters; i += kThreads) counter(i) = 0;
  __syncthreads();

  // Offsets that make sequences overlap name more tiles than there is room for, or than an integer counts: what lies
  // beyond the room is left out.
  for_each_group(tiles, begin, end, [&](const Group& group) {
    const Peers peers(group);
    if (peers.leads) {
      int& count = places[group.cost_class][warp];
      count = min(count + peers.all, list.capacity);
    }
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

  for_each_group(tiles, begin, end, [&](const Group& group) {
    const Peers peers(group);
    const int place = group.count > 0 ? places[group.cost_class][warp] + peers.before : 0;
    __syncwarp();
    if (peers.leads) places[group.cost_class][warp] = min(place + peers.all, list.capacity);
    __syncwarp();
    write_entries(tiles, group, place, list);
  });
}

}  // namespace

void plan_tiles(const UnevenTiles& tiles, const TileList& list, Stream stream) {
  launch_blocks(plan_tiles_kernel, Grid{1, kThreads}, Start::kEarly, stream, tiles, list);
}

}  // namespace fp8attn::cuda
