#include "cpu/prefill.h"

#include <cstdint>
#include <exception>
#include <memory>

#include "cpu/prefill_tile.h"

namespace fp8attn::cpu {
namespace {

Probability emulated_probability(const PrefillProblem& problem) {
  switch (problem.q.dtype) {
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
  const bool fp8 = problem.q.dtype == DType::kE4M3;
  return {.probability = emulated_probability(problem),
          .half_scores = fp8,
          .accumulator_13bit = fp8 && arithmetic == CpuArithmetic::kEmulated13};
}

// Tiles are independent and each is done by one thread from start to end, so the number of threads changes no bit.
template <class T>
void run(const PrefillProblem& problem) {
  const std::int64_t heads = problem.q.shape[2];
  const std::int64_t row_tiles = (problem.q.shape[1] + kTileRows - 1) / kTileRows;
  const std::int64_t tiles = problem.q.shape[0] * heads * row_tiles;
  const TileRounding rounding = rounding_of(problem);
  std::exception_ptr failure;  // an exception must not leave a parallel region
#pragma omp parallel if (tiles > 1)
  {
    std::unique_ptr<Tile<T>> tile;
    try {
      tile = std::make_unique<Tile<T>>(problem, rounding);
    } catch (...) {
#pragma omp critical(fp8attn_prefill_failure)
      failure = std::current_exception();
    }
#pragma omp for schedule(dynamic)
    for (std::int64_t i = 0; i < tiles; ++i) {
      // The last rows first: under a causal mask they are the longest.
      const std::int64_t row_tile = row_tiles - 1 - i % row_tiles;
      if (tile) tile->attend(i / row_tiles / heads, i / row_tiles % heads, static_cast<int>(row_tile * kTileRows));
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
