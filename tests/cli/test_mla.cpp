// `compare --mla`, `bench --mla` and what `info` says of MLA decode.
#include <nlohmann/json.hpp>

#include "cli/mla_study.h"
#include "cli/mla_weights_study.h"
#include "cli_test.h"

namespace fp8attn::cli {
namespace {

using nlohmann::json;

class MlaProgram : public CliTest {};

double error_of(const json& rows, const std::string& data, const std::string& cache, const char* field) {
  for (const json& row : rows) {
    if (row["data"] == data && row["cache"] == cache) return row[field];
  }
  ADD_FAILURE() << "no row " << data << ", " << cache;
  return -1;
}

TEST_F(MlaProgram, ComparesEveryStorageOnEveryDataSet) {
  const Outcome outcome = run("compare --mla --device cpu --tokens 600 --longest 4096 --json");
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  const json result = json::parse(outcome.out);
  EXPECT_EQ(result["formats"].size(), mla_data_sets().size() * mla_storages().size());
  EXPECT_EQ(result["growth"].size(), 16u);  // 2 data sets, 2 lengths, 4 formats
  EXPECT_EQ(result["p_v"].size(), 4u);
  const json& formats = result["formats"];
  EXPECT_EQ(error_of(formats, "normal", "bf16", "stored"), 0.0);
  EXPECT_LT(error_of(formats, "normal", "token128", "end_to_end"), 6e-2);
  EXPECT_LT(error_of(formats, "normal", "token", "end_to_end"), 6.5e-2);
  // What 8-bit RoPE parts cost where these decide, and no rotation mends.
  const double token = error_of(formats, "RoPE decides", "token", "stored");
  for (const char* cache : {"tensor", "tensor, rotated", "page", "page, rotated"}) {
    EXPECT_GT(error_of(formats, "RoPE decides", cache, "stored"), 1.5 * token) << cache;
  }
  const json& longest = result["p_v"].back();
  EXPECT_GT(longest["p_e4m3_13bit_never_folded"].get<double>(), 3 * longest["p_e4m3_13bit_folded"].get<double>());
  EXPECT_LT(longest["p_bf16"].get<double>(), longest["p_e4m3"].get<double>());
}

TEST_F(MlaProgram, CompareRefusesWhatItDoesNotUse) {
  expect_refused("compare --mla file.safetensors", {"--mla"});
  expect_refused("compare --tokens 64", {"--mla"});
  expect_refused("compare --mla --device cpu --tokens 0", {"--tokens", "got 0", "from 1"});
  expect_refused("compare --mla --device cpu --longest 100", {"--longest", "got 100", "from 1024"});
}

TEST_F(MlaProgram, BenchWritesRows) {
  const Outcome outcome = run("bench --mla --device cpu --filter 'topk' --json rows.json");
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_NE(outcome.out.find("token128 b2 h16 s1 t1024 topk256"), std::string::npos) << outcome.out;
  const json rows = json::parse(read_text(path("rows.json")));
  ASSERT_EQ(rows.size(), 1u);
  const json& row = rows.front();
  EXPECT_EQ(row["op"], "mla_decode");
  EXPECT_EQ(row["cache"], "token128");
  EXPECT_TRUE(row["ratio"].is_null());
  // 2 sequences of 256 records of 656 bytes, and 16 heads of q and out.
  const double bytes = 2 * 256 * 656.0 + 2 * 16 * 2 * (576 + 512);
  EXPECT_NEAR(row["gbps"].get<double>(), bytes / row["sustained_ms"].get<double>() * 1e-6, 1e-9);
  const double flop = 2.0 * 2 * 256 * 16 * (576 + 512);
  EXPECT_NEAR(row["sustained_tflops"].get<double>(), flop / row["sustained_ms"].get<double>() * 1e-9, 1e-9);
  EXPECT_LT(row["rel_l2"], 3e-3);
}

TEST_F(MlaProgram, BenchRefusesWhatItDoesNotUse) {
  expect_refused("bench --mla --cases quick", {"--mla"});
  expect_refused("bench --mla --device cpu --filter nothing", {"--filter", "matches no case", "bf16 b2"});
}

TEST_F(MlaProgram, InfoListsTheKernels) {
  const Outcome text = run("info"), structured = run("info --json");
  EXPECT_NE(text.out.find("cpu-mla-bf16-token128-dense"), std::string::npos) << text.out;
  bool found = false;
  const json info = json::parse(structured.out);
  for (const json& row : info["mla_decode_variants"]) {
    found |= row["name"] == "cpu-mla-e4m3-token-sparse" && row["q_dtype"] == "e4m3" && row["addressing"] == "sparse";
  }
  EXPECT_TRUE(found);
  EXPECT_NE(run("info --markdown").out.find("| CPU | bf16, e4m3 | bf16, tensor, token128, token | dense, sparse |"),
            std::string::npos);
}

}  // namespace
}  // namespace fp8attn::cli
