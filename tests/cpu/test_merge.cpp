// merge_attention() on the CPU: against float64 attention over all keys, empty parts, layouts, and every bad argument.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "api/validate.h"
#include "bad_case.h"
#include "cpu/float16.h"
#include "fp8attn/error.h"
#include "fp8attn/merge.h"
#include "prefill_arguments.h"
#include "random.h"

namespace fp8attn::test {
namespace {
