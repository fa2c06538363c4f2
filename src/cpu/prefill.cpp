#include "cpu/prefill.h"

#include <algorithm>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <vector>

#include "cpu/prefill_layout.h"
#include "cpu/prefill_tile.h"

namespace fp8attn::cpu {
namespace {

Probability emulated_probability(const PrefillProblem& problem) {
  switch (problem.k.dtype) {
    case DType::kBF16: return Probability::kBF16;
    case DType::kFP16: return Probability::kFP16;
    case DType::kE4M3: break;
    default: return Probability::kUnrounded;
  }
  switch (problem.p_mode) {
    case PMode::kExact: return Probability::kE4M3Exact;
    case PMode::kFast: return Probability::kE4M3Fast;
    default: return Probability::kE4M3Default;
  }
}

TileRounding rounding_of(const PrefillProblem& problem) {
  const CpuArithmetic arithmetic = problem.cpu_arithmetic;
  if (arithmetic == CpuArithmetic::kFloat32 || arithmetic == CpuArithmetic::kFloat64) return {};
  const bool fp8 = problem.k.dtype == DType::kE4M3;
  return {.probability = emulated_probability(problem),
          .e4m3_query = quantizes_query(problem),
          .half_scores = fp8,
          .accumulator_13bit = fp8 && arithmetic == CpuArithmetic::kEmulated13};
}

// Queries of one sequence, and how many keys they see.
struct QueryTile {
  std::int64_t sequence;
  int first_row, keys;
};

// The longest first, so that no thread begins one while the others run out of work.
std::vector<QueryTile> query_tiles(const PrefillLayout& layout) {
  std::vector<QueryTile> tiles;
  for (std::int64_t sequence = 0; sequence < layout.batch.b; ++sequence) {
    const Rows queries = layout.queries(sequence), keys = layout.keys(sequence);
    const Mask mask = layout.mask(queries, keys);
    for (int row = 0; row < queries.length; row += kTileRows) {
      const int last_row = std::min(row + kTileRows, queries.length) - 1;
      tiles.push_back({sequence, row, mask.visible_end(last_row) - mask.visible_begin(row)});
    }
  }
  std::ranges::stable_sort(tiles, std::greater(), &QueryTile::keys);
  return tiles;
}

// Tiles are independent and each is done by one thread from start to end, so the number of threads changes no bit.
template <class T>
void run(const PrefillProblem& problem) {
  const PrefillLayout layout(problem);
  const std::vector<QueryTile> tiles = query_tiles(layout);
  const TileRounding rounding = rounding_of(problem);
  const std::int64_t heads = layout.batch.h_q, count = std::ssize(tiles) * heads;
  std::exception_ptr failure;  // an exception must not leave a parallel region
#pragma omp parallel if (count > 1)
  {
    std::unique_ptr<Tile<T>> tile;
    try {
      tile = std::make_unique<Tile<T>>(problem, layout, rounding);
    } catch (...) {
#pragma omp critical(fp8attn_prefill_failure)
      failure = std::current_exception();
    }
#pragma omp for schedule(dynamic)
    for (std::int64_t i = 0; i < count; ++i) {
      const QueryTile& work = tiles[i / heads];
      if (tile) tile->attend(work.sequence, i % heads, work.first_row);
    }
  }
  if (failure) std::rethrow_exception(failure);
}

}  // namespace

void prefill(const PrefillProblem& problem, Workspace, Stream) {
  if (problem.cpu_arithmetic == CpuArithmetic::kFloat64) return run<double>(problem);
  run<float>(problem);
}

}  // namespace fp8attn::cpu
