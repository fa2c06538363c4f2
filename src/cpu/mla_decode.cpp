#include "cpu/mla_decode.h"

#include <algorithm>
#include <cstdint>
#include <exception>
#include <memory>

#include "cpu/mla_tile.h"

namespace fp8attn::cpu {
namespace {

// Tiles are independent and each is done by one thread from start to end, so the number of threads changes no bit.
template <class T>
void run(const MlaDecodeProblem& problem) {
  const std::int64_t queries = problem.q.shape[1], heads = problem.q.shape[2];
  // With indices every query token sees tokens of its own, so that a tile has rows of one query token only.
  const std::int64_t groups = problem.indices ? queries : 1;
  const std::int64_t group_rows = queries / groups * heads;
  const std::int64_t group_tiles = (group_rows + kMlaTileRows - 1) / kMlaTileRows;
  const std::int64_t tiles = problem.q.shape[0] * groups * group_tiles;
  std::exception_ptr failure;  // an exception must not leave a parallel region
#pragma omp parallel if (tiles > 1)
  {
    std::unique_ptr<MlaTile<T>> tile;
    try {
      tile = std::make_unique<MlaTile<T>>(problem);
    } catch (...) {
#pragma omp critical(fp8attn_mla_decode_failure)
      failure = std::current_exception();
    }
#pragma omp for schedule(dynamic)
    for (std::int64_t i = 0; i < tiles; ++i) {
      const std::int64_t first = i / group_tiles % groups * group_rows + i % group_tiles * kMlaTileRows;
      const std::int64_t end = (i / group_tiles % groups + 1) * group_rows;
      const auto rows = static_cast<int>(std::min<std::int64_t>(kMlaTileRows, end - first));
      if (tile) tile->attend(i / group_tiles / groups, static_cast<int>(first), rows);
    }
  }
  if (failure) std::rethrow_exception(failure);
}

}  // namespace

void mla_decode(const MlaDecodeProblem& problem, Workspace, Stream) {
  if (problem.cpu_arithmetic == CpuArithmetic::kFloat64) return run<double>(problem);
  run<float>(problem);
}

}  // namespace fp8attn::cpu
