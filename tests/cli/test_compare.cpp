#include <cstring>
#include <nlohmann/json.hpp>

#include "cli/recipe.h"
#include "cli_test.h"

namespace fp8attn::cli {
namespace {

using nlohmann::json;

class Compare : public CliTest {
 protected:
  static Tensors layer(const std::string& prefix, DType dtype) {
    return {{prefix + "q", normal({1, 64, 2, 64}, dtype, 1)},
            {prefix + "k", normal({1, 64, 1, 64}, dtype, 2)},
            {prefix + "v", normal({1, 64, 1, 64}, dtype, 3)}};
  }
  static double rel_l2(const json& layer, const std::string& recipe, const char* against = "end_to_end") {
    for (const json& row : layer["recipes"]) {
      if (row["recipe"] == recipe) return row[against]["rel_l2"];
    }
    ADD_FAILURE() << "no recipe " << recipe;
    return -1;
  }
};

TEST_F(Compare, EveryRecipeOfEveryLayer) {
  Tensors tensors = layer("l.0.", DType::kBF16);
  for (const auto& tensor : layer("l.1.", DType::kBF16)) tensors.push_back(tensor);
  auto* second_v = reinterpret_cast<std::uint16_t*>(tensors[5].second.bytes.data());
  for (int i = 0; i < 64; ++i) second_v[64 * i] = 0x42C8;  // one channel of 100: a scale per channel saves the rest
  write_safetensors("f", tensors);
  const Outcome outcome = run("compare f --device cpu --json");
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  const json result = json::parse(outcome.out);
  ASSERT_EQ(result["layers"].size(), 2u);
  for (const json& one : {result["layers"][0], result["layers"][1], result["mean"]}) {
    ASSERT_EQ(one["recipes"].size(), recipes().size());
    for (const json& row : one["recipes"]) {
      EXPECT_EQ(row["device"], "cpu (emulated)");
      EXPECT_GT(row["attend_ms"], 0);
      for (const char* field : {"rel_l2", "cosine", "worst_row", "lse"}) {
        EXPECT_TRUE(row["end_to_end"][field].is_number() && row["kernel_only"][field].is_number()) << row;
      }
    }
    EXPECT_GT(rel_l2(one, "head"), rel_l2(one, "bf16"));
    EXPECT_GT(rel_l2(one, "head"), rel_l2(one, "head", "kernel_only"));
    EXPECT_EQ(rel_l2(one, "bf16"), rel_l2(one, "bf16", "kernel_only"));
  }
  const json &first = result["layers"][0], &second = result["layers"][1];
  EXPECT_DOUBLE_EQ(rel_l2(result["mean"], "head"), (rel_l2(first, "head") + rel_l2(second, "head")) / 2);
  EXPECT_TRUE(result["ran_on_cpu"].empty());
  EXPECT_TRUE(result["left_out"].empty());
}

TEST_F(Compare, TextNamesEveryRecipe) {
  write_safetensors("f", layer("", DType::kF32), {{"causal", "true"}});
  const Outcome outcome = run("compare f --device cpu");
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  for (const Recipe& recipe : recipes()) {
    EXPECT_NE(outcome.out.find(std::string("  ") + recipe.name + " "), std::string::npos) << recipe.name;
  }
  EXPECT_NE(outcome.out.find("causal"), std::string::npos);
}

TEST_F(Compare, LeavesOutRotationsThatTheHeadDimDoesNotHave) {
  write_safetensors("f", {{"q", normal({1, 20, 2, 48}, DType::kBF16, 1)},
                          {"k", normal({1, 20, 1, 48}, DType::kBF16, 2)},
                          {"v", normal({1, 20, 1, 48}, DType::kBF16, 3)}});
  const Outcome outcome = run("compare f --device cpu");
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_NE(outcome.out.find("  smooth-k "), std::string::npos);
  EXPECT_EQ(outcome.out.find("  hadamard "), std::string::npos);
  EXPECT_NE(outcome.out.find("\nhadamard was left out: head dim 48, but rotations have 64, 128, 192, 256\n"),
            std::string::npos)
      << outcome.out;
  EXPECT_EQ(outcome.out.find("\nsmooth-k was left out"), std::string::npos);
  const json left_out = json::parse(run("compare f --device cpu --json").out)["left_out"];
  ASSERT_EQ(left_out.size(), 3u);
  EXPECT_EQ(left_out[2]["recipe"], "smooth-k+hadamard+center-v");
  EXPECT_NE(left_out[2]["reason"].get<std::string>().find("head dim 48"), std::string::npos) << left_out;
}

TEST_F(Compare, SmoothingSparesKeysWithAConstant) {
  Tensors tensors = layer("", DType::kBF16);
  std::vector<float> keys(64 * 64);
  const HostTensor noise = convert(tensors[1].second, DType::kF32);
  std::memcpy(keys.data(), noise.bytes.data(), noise.bytes.size());
  for (std::size_t i = 0; i < keys.size(); ++i) keys[i] += i % 8 == 0 ? 40.0f : 0.0f;
  HostTensor shifted(DType::kF32, {1, 64, 1, 64});
  std::memcpy(shifted.bytes.data(), keys.data(), shifted.bytes.size());
  tensors[1].second = convert(shifted, DType::kBF16);
  write_safetensors("f", tensors);
  const Outcome outcome = run("compare f --device cpu --json");
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  const json mean = json::parse(outcome.out)["mean"];
  EXPECT_LT(rel_l2(mean, "smooth-k"), 0.5 * rel_l2(mean, "token"));
}

TEST_F(Compare, RefusesQuantisedInput) {
  const HostTensor codes(DType::kE4M3, {1, 4, 1, 16});
  write_safetensors("f", {{"q", codes}, {"k", codes}, {"v", codes}});
  expect_refused("compare f", {"fp8attn: compare: q.dtype: got e4m3"});
}

}  // namespace
}  // namespace fp8attn::cli
