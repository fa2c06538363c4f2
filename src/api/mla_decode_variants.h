// The variants table of MLA decode: every kernel that this build has or left out. It answers supports(), picks the
// launcher, and drives the test matrix, the benchmark and `fp8attn info`.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "fp8attn/mla_decode.h"

namespace fp8attn {

// How the tokens that a query sees are named.
enum class Addressing : std::uint8_t {
  kDense,   // block table and lengths
  kSparse,  // indices
};

// "dense", "sparse".
const char* name_of(Addressing addressing);

inline Addressing addressing_of(const MlaDecodeProblem& problem) {
  return problem.indices ? Addressing::kSparse : Addressing::kDense;
}

struct MlaDecodeVariant {
  const char* name;  // "sm90-mla-bf16-token128-dense"
  DeviceKind device;
  DType q_dtype;
  CacheFormat format;
  Addressing addressing;
  const char* left_out_by;  // nullptr, or the CMake option that left it out of this build
  std::size_t (*workspace_size)(const MlaDecodeProblem&);
  void (*launch)(const MlaDecodeProblem&, Workspace, Stream);  // gets validated problems only; null when left out
};

// CPU rows first, then CUDA rows.
std::span<const MlaDecodeVariant> mla_decode_variants();

}  // namespace fp8attn
