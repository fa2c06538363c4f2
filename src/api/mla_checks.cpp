#include "api/mla_checks.h"

namespace fp8attn {
namespace {

void check_cache_shape(std::vector<Reason>& reasons, const TensorView& cache, CacheFormat format) {
  const std::string meaning = fmt::format("[pages, page_size, elements of a record] of format {}", name_text(format));
  if (!check_shape(reasons, "cache", cache, {{kAnyDim, kAnyDim, record_elements(format)}, meaning.c_str()})) return;
  const std::int64_t page_size = cache.shape[1];
  if (page_size < 1 || page_size > kMaxPageSize) {
    reasons.push_back({"cache.shape", fmt::format("page size {} in {}", page_size, shape_text(cache)),
                       fmt::format("a page size from 1 to {}", kMaxPageSize)});
  } else if (cache.shape[0] > kMaxDim / page_size) {
    reasons.push_back({"cache.shape", shape_text(cache), fmt::format("at most {} slots", kMaxDim)});
  }
}

}  // namespace

void check_cache(std::vector<Reason>& reasons, const TensorView& cache, CacheFormat format, MemoryRules rules) {
  using enum CacheFormat;
  if (!check_enum(reasons, "format", format, {kBF16, kTensor, kToken128, kToken})) return;
  check_cache_shape(reasons, cache, format);
  check_dtype(reasons, "cache", cache, {record_dtype(format)});
  check_memory(reasons, "cache", cache, rules);
}

void check_cache_scale(std::vector<Reason>& reasons, const std::optional<TensorView>& scale, CacheFormat format,
                       Device device) {
  if (!scale) return;
  if (format != CacheFormat::kTensor) {
    reasons.push_back({"cache_scale", fmt::format("a scale with format {}", name_text(format)),
                       "none: only format tensor has its scale outside of the records"});
    return;
  }
  if (scale->rank != 0) check_shape(reasons, "cache_scale", *scale, {{1}, "[1] or rank 0"});
  check_floats(reasons, "cache_scale", *scale, "cache", device);
}

}  // namespace fp8attn
