// What `attend` and `compare` say about files that they cannot use.
#include "cli/input.h"
#include "cli/npy.h"
#include "cli_test.h"

namespace fp8attn::cli {
namespace {

class InputFiles : public CliTest {
 protected:
  // q of 4 heads, k and v of 2, d 16.
  static Tensors layer(const std::string& prefix = "", DType dtype = DType::kBF16) {
    return {{prefix + "q", normal({1, 8, 4, 16}, dtype, 1)},
            {prefix + "k", normal({1, 8, 2, 16}, dtype, 2)},
            {prefix + "v", normal({1, 8, 2, 16}, dtype, 3)}};
  }
  // `base` with one tensor replaced.
  static Tensors with(Tensors base, const std::string& name, HostTensor tensor) {
    for (auto& [other, old] : base) {
      if (other == name) old = tensor;
    }
    return base;
  }
};

TEST_F(InputFiles, TensorsThatDoNotFit) {
  write_safetensors("heads", with(layer(), "q", normal({1, 8, 5, 16}, DType::kBF16, 1)));
  expect_refused("attend heads", {"fp8attn: attend: k.shape: got [1, 8, 2, 16] (2 heads)", "[1, 8, 5, 16]"});
  write_safetensors("dim", with(layer(), "k", normal({1, 8, 2, 32}, DType::kBF16, 1)));
  expect_refused("attend dim", {"k.shape: got [1, 8, 2, 32]", "[1, 8, 4, 16]"});
  write_safetensors("length", with(layer(), "v", normal({1, 9, 2, 16}, DType::kBF16, 1)));
  expect_refused("compare length", {"fp8attn: compare: v.shape: got [1, 9, 2, 16]", "[1, 8, 2, d]"});
  write_safetensors("batch", with(layer(), "q", normal({2, 8, 4, 16}, DType::kBF16, 1)));
  expect_refused("attend batch", {"k.shape: got [1, 8, 2, 16]", "batch"});
  write_safetensors("dtype", with(layer(), "v", normal({1, 8, 2, 16}, DType::kFP16, 1)));
  expect_refused("attend dtype", {"v.dtype: got fp16", "bf16"});
  write_safetensors("rank", with(layer(), "q", normal({8, 16}, DType::kBF16, 1)));
  expect_refused("attend rank", {"q.shape: got [8, 16]", "[b, s, h, d] or [s, h, d]"});
  Tensors scaled = layer();
  scaled.emplace_back("q_scale", normal({1}, DType::kF32, 1));
  write_safetensors("scale", scaled);
  expect_refused("attend scale", {"q_scale: got a scale beside bf16", "F8_E4M3"});
  write_safetensors("ok", layer());
  EXPECT_EQ(run("attend ok").status, 0);
}

TEST_F(InputFiles, MissingFilesAndTensors) {
  expect_refused("attend nothing.safetensors", {"fp8attn: attend: nothing.safetensors", "no readable file"});
  expect_refused("attend", {"--q", ".npy"});
  expect_refused("attend x.npy", {"FILE: got x.npy"});
  Tensors tensors = layer();
  tensors[1].first = "key";
  write_safetensors("missing", tensors);
  expect_refused("attend missing", {"no tensor 'k'", "key, q, v"});
  EXPECT_EQ(run("attend missing --k key").status, 0);
  write("short", serialize_safetensors(layer()).substr(0, 700));
  expect_refused("attend short", {"fp8attn: attend: short", "cut short"});
}

TEST_F(InputFiles, LayersInTheOrderOfTheirNumbers) {
  Tensors tensors;
  for (const char* prefix : {"model.10.", "model.2.", "model.1."}) {
    for (const auto& tensor : layer(prefix)) tensors.push_back(tensor);
  }
  tensors.emplace_back("model.3.q", normal({1, 8, 4, 16}, DType::kBF16, 1));  // no k and v: no layer
  InputOptions options;
  options.file = write_safetensors("layers", tensors, {{"causal", "true"}});
  const Input all = load_input(options);
  ASSERT_EQ(all.layers.size(), 3u);
  EXPECT_EQ(all.layers[0].name, "model.1");
  EXPECT_EQ(all.layers[1].name, "model.2");
  EXPECT_EQ(all.layers[2].name, "model.10");
  EXPECT_TRUE(all.causal);
  for (const char* wanted : {"2", "model.2"}) {
    options.layer = wanted;
    const Input one = load_input(options);
    ASSERT_EQ(one.layers.size(), 1u);
    EXPECT_EQ(one.layers[0].name, "model.2");
  }
  options.layer = "0";
  EXPECT_NE(message_of([&] { load_input(options); }).find("model.1, model.2, model.10"), std::string::npos);
}

TEST_F(InputFiles, MaskOfTheMetadata) {
  const std::pair<const char*, bool> accepted[] = {{"true", true},   {"True", true},   {"1", true},
                                                   {"false", false}, {"False", false}, {"0", false}};
  InputOptions options;
  for (const auto& [text, causal] : accepted) {
    options.file = write_safetensors("f", layer(), {{"causal", text}});
    EXPECT_EQ(load_input(options).causal, causal) << text;
  }
  write_safetensors("f", layer(), {{"causal", "yes"}});
  expect_refused("attend f", {"fp8attn: attend: f: got 'causal' as 'yes'", "true, True, 1, false"});
}

TEST_F(InputFiles, NpyFiles) {
  write("q.npy", serialize_npy(normal({8, 4, 16}, DType::kF32, 1)));
  write("k.npy", serialize_npy(normal({8, 2, 16}, DType::kF32, 2)));
  write("v.npy", serialize_npy(normal({8, 2, 16}, DType::kF32, 3)));
  write("half.npy", serialize_npy(normal({8, 2, 16}, DType::kFP16, 3)));
  EXPECT_EQ(run("attend --q q.npy --k k.npy --v v.npy").status, 0);
  expect_refused("attend --q q.npy --k k.npy --v half.npy", {"half.npy.dtype: got fp16"});
  expect_refused("attend --q q.npy --k k.npy", {"--v: got 'v'"});
  expect_refused("attend --q q.npy --k k.npy --v none.npy", {"none.npy", "no readable file"});
  expect_refused("attend --q q.npy --k k.npy --v v.npy --layer 1", {"--layer: got 1"});
}

}  // namespace
}  // namespace fp8attn::cli
