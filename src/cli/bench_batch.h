// Batches as serving engines hold them, as what a case of the benchmark launches.
#pragma once

#include "cli/bench_subject.h"

namespace fp8attn::cli {

// As prepare(), of a case with is_batch(): makes the tensors on the device. Log-uniform lengths make a ragged query,
// whose sequences lie one behind the other; the pages of all sequences lie in random order.
Preparation prepare_batch(const BenchCase& item, const AttentionOptions& options);

}  // namespace fp8attn::cli
