// `fp8attn compare --mla`: ways to store the latent cache of MLA, side by side.
#pragma once

#include <cstdint>
#include <string>

namespace fp8attn::cli {

struct MlaCompareOptions {
  bool wanted = false;           // --mla was given
  std::int64_t tokens = 8192;    // of every data set
  std::int64_t longest = 32768;  // of those whose length grows
  std::string device, arithmetic;
  bool json = false;
};

void run_compare_mla(const MlaCompareOptions& options);

}  // namespace fp8attn::cli
