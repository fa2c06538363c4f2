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

// Numbers the groups of all sequences: sequence by sequence, its last tiles first. Every thread counts those of a run
// of sequences; then any thread finds any group.
class GroupNumbers {
 public:
  struct Shared {
    std::int64_t scratch[kWarps];
    int first[kThreads];  // of each thread's sequences
  };

  // Whole block. `most`: groups beyond that many are left out.
  __device__ GroupNumbers(const UnevenTiles& tiles, int most, Shared& shared)
      : tiles_(tiles), shared_(shared), run_((tiles.batch.sequences + kThreads - 1) / kThreads) {
    const int begin = static_cast<int>(threadIdx.x) * run_, end = min(begin + run_, tiles.batch.sequences);
    std::int64_t groups = 0, total;
    for (int i = begin; i < end; ++i) groups += tiles.groups(tiles.mask(i));
    const std::int64_t before = exclusive_scan_of_block<kThreads>(groups, shared.scratch, total);
    shared.first[threadIdx.x] = static_cast<int>(min(before, std::int64_t{most}));
    count_ = static_cast<int>(min(total, std::int64_t{most}));
    __syncthreads();
  }

  __device__ int count() const { return count_; }

  __device__ Group at(int number) const {
    if (number >= count_) return {};
    int owner = 0;  // the last thread whose groups begin at the number or before
#pragma unroll
    for (int step = kThreads / 2; step > 0; step /= 2) {
      if (shared_.first[owner + step] <= number) owner += step;
    }
    int index = number - shared_.first[owner], sequence = owner * run_;
    Mask mask = tiles_.mask(sequence);
    for (int groups = tiles_.groups(mask); index >= groups; groups = tiles_.groups(mask)) {
      index -= groups;
      mask = tiles_.mask(++sequence);
    }
    const int first = tiles_.tiles(mask) - 1 - (index << tiles_.group_log2);
    return {sequence, first, min(first + 1, tiles_.group()), UnevenTiles::cost_class(tiles_.steps(mask, first))};
  }

 private:
  const UnevenTiles& tiles_;
  const Shared& shared_;
  const int run_;  // sequences of a thread
  int count_;
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
  __shared__ GroupNumbers::Shared numbers_shared;
  cudaTriggerProgrammaticLaunchCompletion();
  // Counters in the order of the list: by cost, then by warp.
  constexpr int kCounters = UnevenTiles::kClasses * kWarps;
  const auto counter = [&](int i) -> int& { return places[i / kWarps][i % kWarps]; };
  for (int i = threadIdx.x; i < kCounters; i += kThreads) counter(i) = 0;
  cudaGridDependencySynchronize();

  const GroupNumbers numbers(tiles, list.capacity, numbers_shared);
  // Neighbours for every warp, 32 at a time; mostly there are no more.
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int share = ((numbers.count() + kWarps - 1) / kWarps + 31) / 32 * 32;
  const int begin = warp * share + lane;
  const Group first_group = numbers.at(begin);
  const auto group_at = [&](int i) { return i == 0 ? first_group : numbers.at(begin + i); };
  for (int i = 0; i < share; i += 32) {
    const Group group = group_at(i);
    if (group.count > 0) atomicAdd(&places[group.cost_class][warp], group.count);
  }
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

  for (int i = 0; i < share; i += 32) {
    const Group group = group_at(i);
    const Peers peers(group);
    int& next = places[group.cost_class][warp];
    const int place = next + peers.before;
    __syncwarp();
    // Offsets that make sequences overlap name more tiles than there is room for: what lies beyond is left out.
    if (peers.leads) next = min(place + peers.all, list.capacity);
    __syncwarp();
    write_entries(tiles, group, place, list);
  }
}

}  // namespace

void plan_tiles(const UnevenTiles& tiles, const TileList& list, Stream stream) {
  launch_blocks(plan_tiles_kernel, Grid{1, kThreads}, Start::kEarly, stream, tiles, list);
}

}  // namespace fp8attn::cuda
