// Checks that MLA decode and the latent cache's functions share.
#pragma once

#include <fmt/format.h>

#include <optional>
#include <vector>

#include "api/view_checks.h"
#include "fp8attn/kv_cache.h"

namespace fp8attn {

// Format, shape, dtype and memory of a cache.
void check_cache(std::vector<Reason>& reasons, const TensorView& cache, CacheFormat format, MemoryRules rules);

// A scale that only kTensor has: a float on the device of the cache.
void check_cache_scale(std::vector<Reason>& reasons, const std::optional<TensorView>& scale, CacheFormat format,
                       Device device);

}  // namespace fp8attn
