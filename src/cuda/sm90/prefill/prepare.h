// From the caller's problem to what a prefill kernel takes: which steps run before it in the same call, and where in
// the workspace they leave their results. Host.
#pragma once

#include <cstddef>
#include <optional>

#include "cuda/sm90/prefill/prepared.h"
#include "cuda/sm90/prefill/shape.h"
#include "cuda/sm90/prepass/prepass.h"
#include "fp8attn/prefill.h"

namespace fp8attn::cuda {

struct Preparation {
  PrefillProblem problem;  // as the kernel takes it: some of its tensors lie in the workspace
  PreparedBatch prepared;

  // The steps, in this order.
  std::optional<QuantizeProblem> query;      // q to e4m3
  std::optional<UnevenTiles> tiles;          // their list
  std::optional<GatheredRows> keys, values;  // out of pages that the kernel does not read
  std::optional<TensorView> packed;          // a row-major v, to problem.v

  std::size_t bytes = 0;  // of workspace
};

// Of a valid problem for a kernel of that shape. workspace: its beginning; null where only the size is wanted, which
// shapes alone decide. Throws Error for a batch with more tiles, or positions, than a kernel counts.
Preparation prepare(const PrefillProblem& problem, const PrefillShape& shape, void* workspace);

// Launches the steps.
void run(const Preparation& preparation, Stream stream);

}  // namespace fp8attn::cuda
