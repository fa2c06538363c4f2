// cuDNN's attention, measured beside this library's. cuDNN is looked for at run time.
#pragma once

#include <memory>

#include "cli/bench_cases.h"
#include "cli/bench_subject.h"
#include "cli/input.h"

namespace fp8attn::cli {

// One attention call of cuDNN: 16-bit q, k and v with an output of their dtype, or e4m3 ones with an e4m3 output, which
// is the only one that cuDNN has for them on Hopper. It writes the log-sum-exp too, as ours does.
// layer: contiguous tensors of the item's shape, e4m3 ones with scales of 1, as random_layer() makes them. Throws
// std::runtime_error with the reason where cuDNN is not there or does not take the case.
std::unique_ptr<BenchSubject> cudnn_subject(const BenchCase& item, const Layer& layer, Device device);

}  // namespace fp8attn::cli
