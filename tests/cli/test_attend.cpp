#include <cmath>
#include <nlohmann/json.hpp>

#include "cli/attention.h"
#include "cli/npy.h"
#include "cli_test.h"

namespace fp8attn::cli {
namespace {

using nlohmann::json;

class Attend : public CliTest {
 protected:
  static Tensors layer(DType dtype, std::int64_t s_q = 96, std::int64_t s_kv = 96) {
    return {{"q", normal({1, s_q, 4, 64}, dtype, 1)},
            {"k", normal({1, s_kv, 2, 64}, dtype, 2)},
            {"v", normal({1, s_kv, 2, 64}, dtype, 3)}};
  }
  json attend(const std::string& arguments) const {
    const Outcome outcome = run("attend --device cpu --json " + arguments);
    EXPECT_EQ(outcome.status, 0) << outcome.err;
    return outcome.status == 0 ? json::parse(outcome.out) : json();
  }
  // Relative L2 of two f32 tensors in .npy files.
  double difference(const std::string& a, const std::string& b) const {
    const HostTensor left = read_npy(path(a)), right = read_npy(path(b));
    EXPECT_EQ(left.shape, right.shape);
    double sum = 0, norm = 0;
    for (std::int64_t i = 0; i < left.count(); ++i) {
      const double x = element(left.bytes.data(), DType::kF32, i), y = element(right.bytes.data(), DType::kF32, i);
      sum += (x - y) * (x - y);
      norm += y * y;
    }
    return std::sqrt(sum / norm);
  }
};

TEST_F(Attend, JsonHasErrorsAndTimes) {
  write_safetensors("f", layer(DType::kBF16));
  const json result = attend("f");
  EXPECT_EQ(result["device"], "cpu (emulated)");
  EXPECT_EQ(result["causal"], false);
  EXPECT_EQ(result["v_layout"], "row-major");
  ASSERT_EQ(result["layers"].size(), 1u);
  const json& only = result["layers"][0];
  EXPECT_EQ(only["recipe"], "head");
  EXPECT_EQ(only["p_mode"], "default");
  for (const char* against : {"end_to_end", "kernel_only"}) {
    for (const char* field : {"rel_l2", "cosine", "worst_row", "lse"}) {
      EXPECT_TRUE(only[against][field].is_number()) << against << ' ' << field;
    }
  }
  // Normal data: the error of e4m3 itself, and less for the kernel alone.
  EXPECT_GT(only["end_to_end"]["rel_l2"], 0.02);
  EXPECT_LT(only["end_to_end"]["rel_l2"], 0.08);
  EXPECT_GT(only["kernel_only"]["rel_l2"], 0.005);
  EXPECT_LT(only["kernel_only"]["rel_l2"], 0.028);
  EXPECT_GT(only["attend_ms"], 0);
  EXPECT_GT(only["quantize_ms"], 0);
}

TEST_F(Attend, RefusesToWriteOverItsInput) {
  write_safetensors("f.safetensors", layer(DType::kBF16));
  const Outcome outcome = run("attend --device cpu f.safetensors --out f.safetensors");
  EXPECT_NE(outcome.status, 0);
  EXPECT_NE(outcome.err.find("--out"), std::string::npos) << outcome.err;
  EXPECT_NE(outcome.err.find("a file that is not read"), std::string::npos) << outcome.err;
  attend("f.safetensors");
}

TEST_F(Attend, ExactArithmeticOnTheInputItselfHasNoError) {
  write_safetensors("f", layer(DType::kF32));
  const json result = attend("f --recipe none --arithmetic float64 --causal");
  EXPECT_LT(result["layers"][0]["end_to_end"]["rel_l2"], 1e-6);
  EXPECT_TRUE(result["layers"][0]["kernel_only"].is_null());
}

TEST_F(Attend, MaskComesFromTheFileUnlessGiven) {
  write_safetensors("f", layer(DType::kF32), {{"causal", "true"}});
  write_safetensors("plain", layer(DType::kF32));
  EXPECT_EQ(attend("f --out file.npy")["causal"], true);
  EXPECT_EQ(attend("f --no-causal --out full.npy")["causal"], false);
  EXPECT_EQ(attend("plain --causal --out causal.npy")["causal"], true);
  EXPECT_EQ(difference("file.npy", "causal.npy"), 0);
  EXPECT_GT(difference("file.npy", "full.npy"), 0.1);
}

TEST_F(Attend, OptionsReachTheKernel) {
  write_safetensors("f", layer(DType::kF32));
  attend("f --out default.npy");
  attend("f --v-layout packed --out packed.npy");
  attend("f --p-mode fast --out fast.npy");
  attend("f --recipe head/fast-p --out recipe.npy");
  attend("f --softmax-scale 0.125 --out same_scale.npy");
  attend("f --softmax-scale 0 --out mean.npy");
  EXPECT_EQ(difference("packed.npy", "default.npy"), 0);
  EXPECT_EQ(difference("same_scale.npy", "default.npy"), 0);
  EXPECT_EQ(difference("fast.npy", "recipe.npy"), 0);
  EXPECT_GT(difference("fast.npy", "default.npy"), 0);
  EXPECT_GT(difference("mean.npy", "default.npy"), 0.3);
}

// e4m3 tensors with scales in the file give what the recipe that made them gives.
TEST_F(Attend, QuantisedInputWithItsScales) {
  const Tensors tensors = layer(DType::kBF16);
  write_safetensors("f", tensors);
  Layer real;
  real.q = tensors[0].second;
  real.k = tensors[1].second;
  real.v = tensors[2].second;
  const Layer stored = Attention(real, &find_recipe("token+channel-v"), {}).stored();
  write_safetensors("e4m3", {{"q", stored.q},
                             {"k", stored.k},
                             {"v", stored.v},
                             {"q_scale", *stored.q_scale},
                             {"k_scale", *stored.k_scale},
                             {"v_scale", *stored.v_scale}});
  write_safetensors("unscaled", {{"q", stored.q}, {"k", stored.k}, {"v", stored.v}});
  attend("f --recipe token+channel-v --out real.npy");
  const json result = attend("e4m3 --out stored.npy");
  EXPECT_EQ(result["layers"][0]["recipe"], "none");
  EXPECT_LT(result["layers"][0]["end_to_end"]["rel_l2"], 0.028);
  EXPECT_EQ(difference("stored.npy", "real.npy"), 0);
  attend("unscaled --out unscaled.npy");
  EXPECT_GT(difference("unscaled.npy", "real.npy"), 0.5);
  expect_refused("attend e4m3 --recipe head", {"--recipe", "e4m3", "none"});
}

TEST_F(Attend, WritesOutAndLse) {
  write_safetensors("f", layer(DType::kBF16));
  attend("f --recipe none --out r.safetensors");
  attend("f --recipe none --out r.npy");
  const SafetensorsFile file(path("r.safetensors"));
  const HostTensor out = file.read("out"), lse = file.read("lse");
  EXPECT_EQ(out.dtype, DType::kBF16);
  EXPECT_EQ(out.shape, (std::vector<std::int64_t>{1, 96, 4, 64}));
  EXPECT_EQ(lse.dtype, DType::kF32);
  EXPECT_EQ(lse.shape, (std::vector<std::int64_t>{1, 4, 96}));
  EXPECT_EQ(read_npy(path("r.npy")).bytes, convert(out, DType::kF32).bytes);
}

TEST_F(Attend, LayersOfAFile) {
  Tensors tensors;
  for (const char* prefix : {"a.0.", "a.1."}) {
    for (const auto& [name, tensor] : layer(DType::kBF16)) tensors.emplace_back(prefix + name, tensor);
  }
  write_safetensors("f", tensors);
  const json result = attend("f --out r.safetensors");
  ASSERT_EQ(result["layers"].size(), 2u);
  EXPECT_EQ(result["layers"][1]["layer"], "a.1");
  EXPECT_EQ(SafetensorsFile(path("r.safetensors")).names(),
            (std::vector<std::string>{"a.0.lse", "a.0.out", "a.1.lse", "a.1.out"}));
  expect_refused("attend f --out r.npy", {"--out", "2 layers"});
  EXPECT_EQ(attend("f --layer 1 --out r.npy")["layers"].size(), 1u);
}

TEST_F(Attend, LongInputIsCheckedOnASample) {
  HostTensor q(DType::kBF16, {5000, 1, 8}), kv(DType::kBF16, {5000, 1, 8});
  q = normal(q.shape, DType::kBF16, 1);
  kv = normal(kv.shape, DType::kBF16, 2);
  write_safetensors("f", {{"q", q}, {"k", kv}, {"v", kv}});
  const json result = attend("f --recipe none --causal --arithmetic float32");
  EXPECT_EQ(result["layers"][0]["rows_checked"], "256 of 5000 query tokens");
  EXPECT_LT(result["layers"][0]["end_to_end"]["rel_l2"], 5e-3);  // a bf16 output
}

TEST_F(Attend, RefusesBadOptions) {
  write_safetensors("f", layer(DType::kBF16));
  expect_refused("attend f --recipe best", {"fp8attn: attend: --recipe: got 'best'", "head/fast-p", "none"});
  expect_refused("attend f --p-mode quick", {"--p-mode: got 'quick'", "exact, default, fast"});
  expect_refused("attend f --recipe bf16 --p-mode fast", {"--p-mode: got a value beside the bf16", "e4m3"});
  expect_refused("attend f --recipe none --v-layout packed", {"--v-layout: got a value beside the bf16", "e4m3"});
  expect_refused("attend f --v-layout x", {"--v-layout: got 'x'", "row-major, packed"});
  expect_refused("attend f --arithmetic x", {"--arithmetic: got 'x'", "float32, float64, emulated, emulated13"});
  expect_refused("attend f --device cuda:99", {"--device: got 'cuda:99'", "cpu"});
  expect_refused("attend f --device cuda:0x", {"--device: got 'cuda:0x'"});
  expect_refused("attend f --device tpu", {"--device: got 'tpu'"});
  expect_refused("attend f --softmax-scale nan", {"--softmax-scale", "finite"});
  expect_refused("attend f --softmax-scale big", {"--softmax-scale"});
  expect_refused("attend f --out no/folder/r.npy", {"--out: got 'no/folder/r.npy'", "can be written"});
  expect_refused("attend f --out r.txt", {"--out", ".safetensors or .npy"});
  EXPECT_FALSE(std::filesystem::exists(path("r.txt")));
  for (const char* option : {"--out", "--recipe", "--device", "--layer", "--q", "--p-mode", "--v-layout",
                             "--arithmetic", "--softmax-scale"}) {
    expect_refused(std::string("attend f ") + option + " ''", {option, "got ''"});
  }
  expect_refused("attend ''", {"FILE", "got ''"});
  expect_refused("attend f --layer 3", {"--layer: got '3'", "belong to no layer"});
  for (const char* scale : {"1e-60", "-1e-400", "1e39", "1e400", "inf", "0.5x", "0x"}) {
    expect_refused(std::string("attend f --softmax-scale=") + scale, {"--softmax-scale: got ", scale});
  }
  EXPECT_EQ(run("attend f --device cpu --softmax-scale -0").status, 0);
  for (const char* flag : {"--causal=maybe", "--causal=false", "--no-causal=1", "--json=x"}) {
    expect_refused(std::string("attend f ") + flag, {"fp8attn: attend: "});
  }
  expect_refused("attend f --causal --no-causal", {"--no-causal"});
  for (const char* arithmetic : {"float32", "float64"}) {
    expect_refused(std::string("attend f --device cpu --p-mode fast --arithmetic ") + arithmetic,
                   {"--p-mode: got 'fast' beside --arithmetic", "emulated"});
  }
}

// Every layer has its own dtype, hence its own recipe.
TEST_F(Attend, LayersOfDifferentDtypes) {
  Tensors tensors;
  for (const auto& [name, tensor] : layer(DType::kBF16)) tensors.emplace_back("a." + name, tensor);
  for (const auto& [name, tensor] : layer(DType::kBF16)) {
    tensors.emplace_back("b." + name, HostTensor(DType::kE4M3, tensor.shape));
  }
  write_safetensors("f", tensors);
  const json result = attend("f");
  EXPECT_EQ(result["layers"][0]["recipe"], "head");
  EXPECT_EQ(result["layers"][1]["recipe"], "none");
  const Outcome text = run("attend f --device cpu");
  EXPECT_NE(text.out.find("recipe   head"), std::string::npos) << text.out;
  EXPECT_NE(text.out.find("recipe   none"), std::string::npos) << text.out;
  attend("f --p-mode fast");
  expect_refused("attend f --recipe bf16", {"--recipe: got 'bf16' for the e4m3 tensors of b"});
  expect_refused("attend f --recipe none --p-mode fast", {"--p-mode: got a value beside the bf16 tensors of a"});
  expect_refused("compare f", {"fp8attn: compare: b.q.dtype: got e4m3"});
}

TEST_F(Attend, FileNamesNeedNotBeUtf8) {
  write_safetensors("f\xff", layer(DType::kBF16));
  EXPECT_EQ(attend("f\xff")["file"], "f\uFFFD");
  EXPECT_EQ(run("compare --device cpu --json f\xff").status, 0);
}

TEST_F(Attend, SaysWhenTheOutputIsLost) {
  if (!std::filesystem::exists("/dev/full")) GTEST_SKIP() << "no /dev/full here";
  write_safetensors("f", layer(DType::kBF16));
  for (const char* arguments : {"attend f --device cpu", "info", "info --json", "--help", "--version"}) {
    const std::string command = std::string("'" FP8ATTN_PROGRAM "' ") + arguments + " >/dev/full";
    const Outcome outcome = run_command(command);
    EXPECT_EQ(outcome.status, 1) << arguments;
    EXPECT_NE(outcome.err.find("standard output"), std::string::npos) << arguments << '\n' << outcome.err;
  }
  EXPECT_EQ(run_command("'" FP8ATTN_PROGRAM "' attend nothing 2>/dev/full").status, 2);
}

}  // namespace
}  // namespace fp8attn::cli
