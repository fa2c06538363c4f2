// What a CUDA prefill prepares in its workspace, from shapes alone. No GPU needed: nothing is launched or read.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "cuda/sm90/prefill/prepare.h"
#include "fp8attn/error.h"

namespace fp8attn::cuda {
namespace {

constexpr Device kGpu{DeviceKind::kCuda, 0};
constexpr PrefillShape kShape = prefill_shape(true, 128);
constexpr std::int64_t kHeads = 8, kKeyHeads = 2, kDim = 128, kSequences = 3;

// Addresses that nobody reads.
void* address(std::uintptr_t value) { return reinterpret_cast<void*>(value); }

TensorView tensor(DType dtype, std::initializer_list<std::int64_t> shape) {
  return TensorView::contiguous(address(0x1000), dtype, shape, kGpu);
}

PrefillProblem dense(DType q, DType kv, std::int64_t s_q = 300, std::int64_t s_kv = 500) {
  PrefillProblem problem;
  problem.q = tensor(q, {kSequences, s_q, kHeads, kDim});
  problem.k = tensor(kv, {kSequences, s_kv, kKeyHeads, kDim});
  problem.v = tensor(kv, {kSequences, s_kv, kKeyHeads, kDim});
  problem.out = MutableTensorView::contiguous(address(0x2000), DType::kBF16, {kSequences, s_q, kHeads, kDim}, kGpu);
  return problem;
}

void make_queries_ragged(PrefillProblem& problem, std::int64_t total) {
  problem.q = tensor(problem.q.dtype, {total, kHeads, kDim});
  problem.out = MutableTensorView::contiguous(address(0x2000), DType::kBF16, {total, kHeads, kDim}, kGpu);
  problem.q_offsets = tensor(DType::kI32, {kSequences + 1});
}

void make_keys_ragged(PrefillProblem& problem, std::int64_t total) {
  problem.k = problem.v = tensor(problem.k.dtype, {total, kKeyHeads, kDim});
  problem.kv_offsets = tensor(DType::kI64, {kSequences + 1});
}

void make_keys_paged(PrefillProblem& problem, std::int64_t page_size, std::int64_t max_pages) {
  problem.k = problem.v = tensor(problem.k.dtype, {100, page_size, kKeyHeads, kDim});
  problem.block_table = tensor(DType::kI32, {kSequences, max_pages});
  problem.kv_lengths = tensor(DType::kI32, {kSequences});
}

// A part of the workspace.
struct Part {
  std::uintptr_t begin;
  std::int64_t bytes;
};

Part part(const TensorView& view) {
  return {reinterpret_cast<std::uintptr_t>(view.data), view.count() * size_of(view.dtype)};
}

// The parts that the steps write.
std::vector<Part> parts_of(const Preparation& p) {
  std::vector<Part> parts;
  if (p.query) {
    parts.push_back(part(p.query->output));
    parts.push_back(part(p.query->scale));
  }
  if (p.tiles) {
    const TileList& list = p.prepared.tiles;
    parts.push_back({reinterpret_cast<std::uintptr_t>(list.entries), 8 * std::int64_t{list.capacity}});
    parts.push_back({reinterpret_cast<std::uintptr_t>(list.count), 4});
  }
  if (p.keys) parts.push_back(part(p.problem.k));
  if (p.values || p.packed) parts.push_back(part(p.problem.v));
  return parts;
}

// The preparation of a problem, with what has to be so of every one.
Preparation checked(const PrefillProblem& problem, const PrefillShape& shape = kShape) {
  constexpr std::uintptr_t kBase = std::uintptr_t{1} << 40;
  const Preparation sized = prepare(problem, shape, nullptr), placed = prepare(problem, shape, address(kBase));
  EXPECT_EQ(sized.bytes, placed.bytes);
  EXPECT_EQ(placed.bytes % 256, 0u);
  std::vector<Part> parts = parts_of(placed);
  std::ranges::sort(parts, {}, &Part::begin);
  std::uintptr_t end = kBase;
  for (const Part& part : parts) {
    EXPECT_EQ(part.begin % 256, 0u);
    EXPECT_GE(part.begin, end) << "parts share memory";
    end = part.begin + part.bytes;
  }
  EXPECT_LE(end, kBase + placed.bytes);
  EXPECT_LT(kBase + placed.bytes - end, 256u) << "more than the parts need";
  return placed;
}

TEST(Prepare, EvenBatchesKeepTheirTensors) {
  PrefillProblem problem = dense(DType::kBF16, DType::kBF16);
  Preparation p = checked(problem);
  EXPECT_EQ(p.bytes, 0u);
  EXPECT_FALSE(p.tiles || p.query || p.keys || p.packed);
  EXPECT_EQ(p.prepared.tiles.entries, nullptr);
  EXPECT_EQ(p.problem.v.data, problem.v.data);

  problem = dense(DType::kE4M3, DType::kE4M3);
  p = checked(problem);
  EXPECT_EQ(p.bytes, 3u * 2 * 128 * 512);
  EXPECT_EQ(p.problem.v_layout, VLayout::kPacked);
  EXPECT_EQ(p.problem.v.shape, (std::array<std::int64_t, kMaxRank>{3, 2, 128, 512}));
  EXPECT_FALSE(p.prepared.values_aligned);

  problem.v_layout = VLayout::kPacked;
  problem.v = p.problem.v;
  EXPECT_EQ(checked(problem).bytes, 0u);
}

TEST(Prepare, QueriesOf16BitsAreQuantised) {
  PrefillProblem problem = dense(DType::kFP16, DType::kE4M3);
  Preparation p = checked(problem);
  ASSERT_TRUE(p.query);
  EXPECT_EQ(p.query->granularity, ScaleGranularity::kTokenHead);
  EXPECT_EQ(p.problem.q.dtype, DType::kE4M3);
  EXPECT_EQ(p.problem.q.rank, 4);
  EXPECT_EQ(p.problem.q_scale->shape, (std::array<std::int64_t, kMaxRank>{3, 300, 8}));

  make_queries_ragged(problem, 700);
  p = checked(problem);
  EXPECT_EQ(p.query->input.shape, (std::array<std::int64_t, kMaxRank>{1, 700, 8, 128}));
  EXPECT_EQ(p.query->input.data, problem.q.data);
  EXPECT_EQ(p.problem.q.rank, 3);
  EXPECT_EQ(p.problem.q_scale->shape, (std::array<std::int64_t, kMaxRank>{700, 8}));
}

// Room for every tile, whatever the lengths.
TEST(Prepare, ListsHoldTheTilesOfAnyLengths) {
  PrefillProblem problem = dense(DType::kBF16, DType::kBF16);
  problem.kv_lengths = tensor(DType::kI32, {kSequences});
  EXPECT_EQ(checked(problem).prepared.tiles.capacity, 3 * 3);
  make_queries_ragged(problem, 1000);
  EXPECT_EQ(checked(problem).prepared.tiles.capacity, 7 + 3);  // 1, 1 and 998 rows have 10 tiles
  make_queries_ragged(problem, 2);
  EXPECT_EQ(checked(problem).prepared.tiles.capacity, 2);
  EXPECT_EQ(checked(problem, prefill_shape(false, 64)).tiles->tile_rows.divisor(), 192);
}

TEST(Prepare, ValuesArePackedWhereTheKernelLooksForThem) {
  PrefillProblem problem = dense(DType::kE4M3, DType::kE4M3);
  problem.kv_lengths = tensor(DType::kI64, {kSequences});
  Preparation p = checked(problem);
  EXPECT_TRUE(p.prepared.values_aligned);
  EXPECT_FALSE(p.prepared.keys_aligned);
  EXPECT_EQ(p.problem.v.shape, (std::array<std::int64_t, kMaxRank>{1, 2, 128, 3 * 512}));

  problem = dense(DType::kE4M3, DType::kE4M3);
  make_keys_ragged(problem, 1000);
  p = checked(problem);
  EXPECT_EQ(p.problem.v.shape[3], 1024 + 3 * 64);
  EXPECT_EQ(p.packed->data, problem.v.data);

  make_keys_paged(problem, 64, 5);
  problem.kv_offsets.reset();
  p = checked(problem);
  EXPECT_EQ(p.problem.v.shape[3], 3 * 320);
  EXPECT_FALSE(p.keys);
}

TEST(Prepare, H_PagesThatNoKernelReadsAreGathered) {
  for (std::int64_t page_size : {1, 2, 4, 7, 8, 16, 24, 32, 48, 100, 1000}) {
    PrefillProblem problem = dense(DType::kE4M3, DType::kE4M3);
    make_keys_paged(problem, page_size, 5);
    const std::int64_t positions = 3 * ((5 * page_size + 63) / 64 * 64);
    Preparation p = checked(problem);
    EXPECT_TRUE(p.keys && p.packed && !p.values) << page_size;
    EXPECT_TRUE(p.prepared.keys_aligned && p.prepared.values_aligned);
    EXPECT_EQ(p.problem.k.shape, (std::array<std::int64_t, kMaxRank>{1, positions, 2, 128}));

    problem = dense(DType::kBF16, DType::kBF16);
    make_keys_paged(problem, page_size, 5);
    p = checked(problem);
    EXPECT_TRUE(p.keys && p.values && !p.packed);
    EXPECT_EQ(p.problem.v.shape, p.problem.k.shape);
  }
  for (std::int64_t page_size : {64, 128, 1024}) {
    PrefillProblem problem = dense(DType::kBF16, DType::kBF16);
    make_keys_paged(problem, page_size, 5);
    const Preparation p = checked(problem);
    EXPECT_FALSE(p.keys || p.values || p.packed) << page_size;
    EXPECT_EQ(p.problem.k.data, problem.k.data);
  }
}

TEST(Prepare, B_WithoutKeysNothingIsMoved) {
  PrefillProblem problem = dense(DType::kE4M3, DType::kE4M3);
  make_keys_paged(problem, 7, 0);
  EXPECT_FALSE(checked(problem).keys || checked(problem).packed);
  make_keys_paged(problem, 7, 5);
  problem.k.shape[0] = problem.v.shape[0] = 0;  // no page
  EXPECT_FALSE(checked(problem).keys || checked(problem).packed);
  problem = dense(DType::kE4M3, DType::kE4M3, 0);
  EXPECT_EQ(checked(problem).bytes, 0u);
}

TEST(Prepare, D_MorePositionsThanAreCountedAreAnError) {
  PrefillProblem problem = dense(DType::kE4M3, DType::kE4M3);
  make_keys_paged(problem, 64, 1 << 24);
  try {
    prepare(problem, kShape, nullptr);
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("block_table.shape: got room for 3221225472 tokens"), std::string::npos)
        << error.what();
  }
  problem.v_layout = VLayout::kPacked;  // pages that are read where they lie are not moved
  problem.v = tensor(DType::kE4M3, {100, kKeyHeads, kDim, 64});
  EXPECT_NO_THROW(prepare(problem, kShape, nullptr));
}

}  // namespace
}  // namespace fp8attn::cuda
