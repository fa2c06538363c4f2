// Which precision the product of probabilities and values needs in MLA decode.
#pragma once

#include <array>
#include <cstdint>

#include "cli/mla_study.h"

namespace fp8attn::cli {

// Relative L2 against the same product in float64, of the same stored tokens and probabilities.
struct WeightErrors {
  double bf16 = 0;               // probabilities in bf16, sums in float32
  double e4m3 = 0;               // times the token's scale and in e4m3, sums in float32
  double e4m3_folded = 0;        // the same, sums of 256 tokens in the 8-bit tensor core's accumulator, then float32
  double e4m3_never_folded = 0;  // the same, all tokens in one such accumulator
};

// Of the first heads of a cache of format token. The accumulator is the model of docs/kernels/cpu.md: 13 fractional
// bits below the largest of the running sum and the products of 32 tokens.
WeightErrors weight_errors(const MlaTensors& tensors);

}  // namespace fp8attn::cli
