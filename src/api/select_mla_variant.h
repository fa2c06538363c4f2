// Whether the kernel of a valid MLA decode exists, and which one it is.
#pragma once

#include <span>
#include <vector>

#include "api/mla_decode_variants.h"
#include "api/reason.h"

namespace fp8attn {

struct MlaSelection {
  const MlaDecodeVariant* variant = nullptr;
  std::vector<Reason> reasons;
};

// The row for the problem's device, dtype of q, format and addressing, else the one reason why there is none.
MlaSelection select_mla_variant(const MlaDecodeProblem& problem, std::span<const MlaDecodeVariant> rows);

}  // namespace fp8attn
