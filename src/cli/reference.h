// Exact attention in float64, and how far a result is from it.
#pragma once

#include <vector>

#include "cli/attention.h"
#include "cli/input.h"

namespace fp8attn::cli {

// Query rows [begin, end).
struct RowRange {
  std::int64_t begin = 0, end = 0;
};

// All of `rows` where they are at most `limit`, else `ranges` ranges of `length` rows, evenly spaced from the first row
// to the last.
std::vector<RowRange> sample_rows(std::int64_t rows, std::int64_t limit, std::int64_t ranges, std::int64_t length);

struct Reference {
  struct Part {
    RowRange rows;
    HostTensor out;  // f32 [b, rows, h, d_v]
    HostTensor lse;  // f32 [b, h, rows]
  };
  std::vector<Part> parts;
};

// Attention of the tensors as they are (e4m3 with its scales) in float64 on the CPU, for `rows` of every batch entry
// and head. Of `options`, mask and softmax scale count; a window beside a causal mask only.
Reference exact_attention(const Layer& layer, const AttentionOptions& options, const std::vector<RowRange>& rows);

struct Errors {
  double rel_l2 = 0;     // |out - exact| / |exact| over all elements
  double cosine = 0;     // between out and exact over all elements
  double worst_row = 0;  // largest |out - exact| / |exact| of one row (one token of one head)
  double lse = 0;        // largest |lse - exact|
};

// Of the reference's rows. lse may be null (its error is then 0). NaN in the result gives NaN.
Errors errors_of(const Reference& reference, const HostTensor& out, const HostTensor* lse);

}  // namespace fp8attn::cli
