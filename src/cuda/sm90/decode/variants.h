// Rows of the variants table that the sm_90a decode kernels contribute.
#pragma once

#include <span>

#include "api/variants.h"

namespace fp8attn::cuda {

std::span<const PrefillVariant> decode_variants();

}  // namespace fp8attn::cuda
