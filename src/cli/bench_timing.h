// The two times of a kernel: in a burst after a pause, and under lasting load.
#pragma once

#include <functional>

#include "fp8attn/tensor.h"

namespace fp8attn::cli {

struct Timing {
  double burst_ms = 0;      // of one launch
  double sustained_ms = 0;  // of one launch
};

// A GPU that is limited by power runs its first milliseconds after a pause at a higher clock than later on, and kernels
// differ in how much they lose. burst: about 8 ms of back-to-back launches after 300 ms idle; sustained: 60 ms of
// launches to warm up, then at least 120 ms.
Timing measure(Device device, const std::function<void()>& launch);

// The sustained half alone: milliseconds of one launch. estimate_ms: about how long a launch takes.
double measure_sustained(Device device, const std::function<void()>& launch, double estimate_ms, double warm_ms,
                         double timed_ms);

}  // namespace fp8attn::cli
