// Named ways to quantise q, k and v and to form P.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "fp8attn/prefill.h"

namespace fp8attn::cli {

struct Recipe {
  const char* name;
  DType dtype;                         // kE4M3: quantised; kBF16, kFP16: converted where the input is something else
  ScaleGranularity query, key, value;  // e4m3 only
  PMode p_mode;                        // e4m3 only
  // Set: the call itself quantises, and gets the tensors in 16 bits, in `dtype` where they have more.
  std::optional<QuantizeRecipe> within_call = {};

  // What the call is given for an input of `input`.
  DType stored_dtype(DType input) const {
    return within_call && (input == DType::kBF16 || input == DType::kFP16) ? input : dtype;
  }
};

// Why the recipe is not for tensors like these, "" where it is; prefill() has the last word.
std::string misfit(const Recipe& recipe, std::int64_t head_dim_qk);

// The recipe that `attend` uses where none is named.
inline constexpr const char* kDefaultRecipe = "head";

// The name that means: the tensors as they are in the file.
inline constexpr const char* kNoRecipe = "none";

std::span<const Recipe> recipes();

// Throws Error for a name that is not in the list, which the message gives.
const Recipe& find_recipe(const std::string& name);

// "e4m3, one scale per head (q), head (k), channel (v); P exact", "bf16 throughout".
std::string describe(const Recipe& recipe);

// Values of --p-mode and --v-layout. Throw Error with the accepted names.
PMode parse_p_mode(const std::string& name);
VLayout parse_v_layout(const std::string& name);

// Value of --arithmetic, `fallback` where it is empty. Throws Error with the accepted names, and on a CUDA device.
CpuArithmetic parse_arithmetic(const std::string& name, Device device, CpuArithmetic fallback);

}  // namespace fp8attn::cli
