// What a recipe makes of q, k and v in the workspace: the CUDA backend against the CPU's, bit for bit.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "cuda_device.h"
#include "prefill_run.h"

namespace fp8attn::test {
namespace {

using enum ScaleGranularity;

std::vector<PrefillCase> cases() {
  const std::pair<const char*, QuantizeRecipe> recipes[] = {
      {"plain", {}},
      {"head_channel", {.q_scale = kBatchHead, .v_scale = kChannel}},
      {"smooth_center", {.smooth_k = true, .center_v = true}},
      {"hadamard", {.hadamard = true, .hadamard_seed = 3}},
      {"all", {kTokenHead, kBatchHead, true, true, 0, true}},
      {"all_head_channel", {kBatchHead, kChannel, true, true, 5, true}}};
  std::vector<PrefillCase> all;
  for (const auto& [name, recipe] : recipes) {
    for (auto [d_qk, d_v] : {std::pair{64, 64}, {128, 128}, {192, 128}, {256, 256}}) {
      for (auto [b, s_q, s_kv] : {std::tuple{2, 193, 333}, {1, 1, 5000}, {1, 700, 0}, {3, 300, 17}}) {
        all.push_back({.name = fmt::format("{}_{}x{}_d{}_{}", name, s_q, s_kv, d_qk, d_v),
                       .n = {.b = b, .s_q = s_q, .s_kv = s_kv, .h_q = 6, .h_kv = 3, .d_qk = d_qk, .d_v = d_v},
                       .dtype = s_q % 2 == 0 ? DType::kFP16 : DType::kBF16,
                       .quantize = recipe});
      }
    }
  }
  return all;
}

class CudaRecipe : public ::testing::TestWithParam<PrefillCase> {
 protected:
  void SetUp() override {
    cuda_ = make_default_cuda_device();
    ASSERT_NE(cuda_, nullptr);
  }

  // The workspace behind a call without lse, whose bias is no part of what is the same bit for bit.
  static std::vector<std::uint8_t> workspace(TestDevice& device, const PrefillInputs& inputs, RunOptions options) {
    PrefillRun run(device, GetParam(), inputs, options);
    run.problem().lse.reset();
    run.launch();
    return run.read_workspace();
  }

  void expect_same_workspace(const PrefillInputs& inputs, RunOptions options = {}) {
    try {
      const std::vector<std::uint8_t> got = workspace(*cuda_, inputs, options);
      const std::vector<std::uint8_t> want = workspace(*make_cpu_device(), inputs, options);
      ASSERT_EQ(got.size(), want.size());
      const auto [first, other] = std::mismatch(got.begin(), got.end(), want.begin());
      EXPECT_EQ(first, got.end()) << "byte " << first - got.begin() << " of " << got.size();
    } catch (const Error& error) {
      if (error.argument() == "q.shape" || is_left_out(error)) GTEST_SKIP() << error.what();
      throw;
    }
  }

  std::unique_ptr<TestDevice> cuda_;
};

TEST_P(CudaRecipe, F_EqualsTheCpu) { expect_same_workspace(make_inputs(GetParam())); }

TEST_P(CudaRecipe, I_EqualsTheCpuWhateverTheStrides) {
  const PrefillInputs inputs = make_inputs(GetParam());
  expect_same_workspace(inputs, {.q = Layout::kPadded,
                                 .k = Layout::kPackedQkv,
                                 .v = Layout::kTransposedHeads,
                                 .q_gap = Gap::kNan,
                                 .k_gap = Gap::kNan,
                                 .v_gap = Gap::kNan});
}

TEST_P(CudaRecipe, F_EqualsTheCpuWithSpecialNumbers) {
  PrefillInputs inputs = make_inputs(GetParam());
  constexpr float kNumbers[] = {
      std::numeric_limits<float>::infinity(), -65504.0f, 0.0f, -0.0f, 65504.0f, 1e-7f, std::nanf("")};
  for (HostTensor* tensor : {&inputs.q, &inputs.k, &inputs.v}) {
    std::vector<float> values = tensor->values();
    for (std::size_t i = 0; i < values.size(); i += 997) values[i] = kNumbers[i / 997 % std::size(kNumbers)];
    *tensor = encode_tensor(tensor->dtype, tensor->shape, values);
  }
  expect_same_workspace(inputs);
}

INSTANTIATE_TEST_SUITE_P(Recipes, CudaRecipe, ::testing::ValuesIn(cases()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace fp8attn::test
