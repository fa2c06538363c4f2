// The MLA decode tests of the CPU backend: the table of tests/support.
#include "mla_tests.h"

namespace fp8attn::test {
namespace {

const bool registered = register_mla_tests("CpuMlaDecode", DeviceKind::kCpu, make_cpu_device);

}  // namespace
}  // namespace fp8attn::test
