#include "cli/bench_timing.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <thread>

#include "cli/device.h"

namespace fp8attn::cli {
namespace {

constexpr std::chrono::milliseconds kIdle{300};
constexpr double kBurstMs = 8, kWarmMs = 60, kTimedMs = 120;

int launches_for(double milliseconds, double one_ms) {
  constexpr double kMost = 1e6;
  return static_cast<int>(std::clamp(std::ceil(milliseconds / one_ms), 1.0, kMost));
}

}  // namespace

double measure_sustained(Device device, const std::function<void()>& launch, double estimate_ms, double warm_ms,
                         double timed_ms) {
  const int warm_launches = launches_for(warm_ms, estimate_ms);
  double one_ms = time_ms(device, warm_launches, launch) / warm_launches;
  // The clock may rise once more; then there were too few launches, and a second, longer series follows at once.
  while (true) {
    const int launches = launches_for(1.05 * timed_ms, one_ms);
    const double total_ms = time_ms(device, launches, launch);
    one_ms = total_ms / launches;
    if (total_ms >= timed_ms) return one_ms;
  }
}

Timing measure(Device device, const std::function<void()>& launch) {
  time_ms(device, 1, launch);  // the first launch loads the kernel
  const double first_ms = time_ms(device, 1, launch);
  const int probes = launches_for(kBurstMs / 2, first_ms);
  const double estimate_ms = time_ms(device, probes, launch) / probes;
  Timing timing;
  std::this_thread::sleep_for(kIdle);
  const int burst_launches = launches_for(kBurstMs, estimate_ms);
  timing.burst_ms = time_ms(device, burst_launches, launch) / burst_launches;
  timing.sustained_ms = measure_sustained(device, launch, timing.burst_ms, kWarmMs, kTimedMs);
  return timing;
}

}  // namespace fp8attn::cli
