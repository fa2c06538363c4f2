// quantize() and pack_v() as what a case of the benchmark launches.
#pragma once

#include <memory>

#include "cli/bench_subject.h"

namespace fp8attn::cli {

// input: [b, s, h, d] of the case's dtype. out() is f32, scaled and row-major, whatever the layout.
std::unique_ptr<BenchSubject> quantiser_subject(const BenchCase& item, const HostTensor& input, Device device);

}  // namespace fp8attn::cli
