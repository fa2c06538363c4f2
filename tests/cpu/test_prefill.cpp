// The prefill tests of the CPU backend: the table of tests/support.
#include "class_summary.h"
#include "prefill_tests.h"

namespace fp8attn::test {
namespace {

const bool registered = register_prefill_tests("CpuPrefill", DeviceKind::kCpu, make_cpu_device);
const bool summary = print_summary_by_class();

}  // namespace
}  // namespace fp8attn::test
