// Rows of the table of MLA decode that the sm_90a kernels contribute.
#pragma once

#include <span>

#include "api/mla_decode_variants.h"

namespace fp8attn::cuda {

std::span<const MlaDecodeVariant> mla_decode_variants();

}  // namespace fp8attn::cuda
