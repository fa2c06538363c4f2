// How the program reports what a user got wrong.
#pragma once

#include <string>
#include <utility>

#include "fp8attn/error.h"

namespace fp8attn::cli {

// The operation of errors whose place is a command-line argument or an input file: the program prints the subcommand
// in its stead ("fp8attn: attend: --recipe: got 'x', expected one of ...").
inline constexpr const char* kCommandLine = "fp8attn";

// Of tensors.
inline constexpr const char* kTooLarge = "the tensors are too large for the memory of this machine";

inline Error usage_error(std::string argument, std::string got, std::string expected) {
  return {kCommandLine, std::move(argument), std::move(got), std::move(expected)};
}

}  // namespace fp8attn::cli
