// Calls the installed library: one key, so that attention must return its value.
#include <array>
#include <cstdio>
#include <cstring>

#include "fp8attn/backend.h"
#include "fp8attn/prefill.h"

int main() {
  if (std::strcmp(fp8attn::version(), EXPECTED_VERSION) != 0) {
    std::printf("version: got %s, expected %s\n", fp8attn::version(), EXPECTED_VERSION);
    return 1;
  }
  constexpr int kHeadDim = 64;
  std::array<float, kHeadDim> query{}, key{}, value{}, out{};
  for (int i = 0; i < kHeadDim; ++i) {
    query[i] = 1.0f;
    key[i] = 2.0f;
    value[i] = static_cast<float>(i);
  }
  const auto view = [](auto& data) {
    return fp8attn::MutableTensorView::contiguous(data.data(), fp8attn::DType::kF32, {1, 1, 1, kHeadDim});
  };
  fp8attn::PrefillProblem problem;
  problem.q = view(query);
  problem.k = view(key);
  problem.v = view(value);
  problem.out = view(out);
  fp8attn::prefill(problem);
  if (out != value) {
    std::printf("out: got %g in channel 1, expected %g\n", out[1], value[1]);
    return 1;
  }
  std::printf("fp8attn %s: installed, found, linked and right\n", fp8attn::version());
  return 0;
}
