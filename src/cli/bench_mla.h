// `fp8attn bench --mla`: time and error of MLA decode.
#pragma once

#include <string>

namespace fp8attn::cli {

struct MlaBenchOptions {
  std::string filter, device, arithmetic, json;  // of `bench`
};

void run_bench_mla(const MlaBenchOptions& options);

}  // namespace fp8attn::cli
