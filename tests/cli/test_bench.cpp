#include <cmath>
#include <nlohmann/json.hpp>

#include "cli_test.h"

namespace fp8attn::cli {
namespace {

using nlohmann::json;

constexpr const char* kCases = R"({"groups":[{"dtype":["e4m3","bf16"],"batch":1,"heads_q":2,"heads_kv":1,
    "seqlen_q":128,"head_dim_qk":64,"causal":[false,true]}]})";

class BenchProgram : public CliTest {};

TEST_F(BenchProgram, RowsHaveTheAgreedFields) {
  write("cases.json", kCases);
  const Outcome outcome = run("bench --device cpu --cases cases.json --filter 'full' --json rows.json");
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_NE(outcome.out.find("e4m3 b1 h2/1 s128 d64 full row-major default"), std::string::npos) << outcome.out;
  const json rows = json::parse(read_text(path("rows.json")));
  ASSERT_EQ(rows.size(), 2u);
  for (const json& row : rows) {
    std::vector<std::string> fields;
    for (const auto& [field, value] : row.items()) fields.push_back(field);
    std::vector<std::string> agreed = {
        "op",          "library",        "library_version", "backend",          "device",       "commit",
        "date",        "dtype",          "kv_dtype",        "out_dtype",        "cache",        "batch",
        "heads_q",     "heads_kv",       "seqlen_q",        "seqlen_kv",        "layout",       "page_size",
        "lengths",     "causal",         "window_left",     "head_dim_qk",      "head_dim_v",   "v_layout",
        "p_mode",      "unsupported",    "burst_ms",        "sustained_ms",     "burst_tflops", "gbps",
        "granularity", "ratio",          "recipe",          "sustained_tflops", "rel_l2",       "yardstick_tflops",
        "copy_gbps",   "cublaslt_tflops"};
    std::sort(agreed.begin(), agreed.end());
    EXPECT_EQ(fields, agreed);
    EXPECT_EQ(row["op"], "prefill");
    EXPECT_EQ(row["backend"], "cpu");
    EXPECT_EQ(row["library"], "fp8attn");
    EXPECT_EQ(row["out_dtype"], "bf16");
    EXPECT_EQ(row["heads_kv"], 1);
    EXPECT_TRUE(row["yardstick_tflops"].is_null() && row["cublaslt_tflops"].is_null() && row["ratio"].is_null());
    EXPECT_TRUE(row["unsupported"].is_null() && row["library_version"].is_null());
    for (const char* field : {"kv_dtype", "layout", "page_size", "lengths", "window_left"}) {
      EXPECT_TRUE(row[field].is_null()) << field;
    }
    const double flop = 2.0 * 2 * 128 * 128 * (64 + 64);
    EXPECT_NEAR(row["sustained_tflops"], flop / row["sustained_ms"].get<double>() * 1e-9, 1e-9);
    EXPECT_NEAR(row["burst_tflops"], flop / row["burst_ms"].get<double>() * 1e-9, 1e-9);
    EXPECT_GT(row["rel_l2"], 0);
    EXPECT_LT(row["rel_l2"], 5e-3);  // float32 arithmetic, bf16 output
  }
  EXPECT_EQ(rows[0]["p_mode"], "default");
  EXPECT_TRUE(rows[1]["p_mode"].is_null());
}

TEST_F(BenchProgram, EmulatedRowsShowTheErrorOfP) {
  write("cases.json", kCases);
  const Outcome outcome =
      run("bench --device cpu --cases cases.json --filter 'e4m3.*causal' --json - --arithmetic emulated");
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  const json rows = json::parse(outcome.out);
  ASSERT_EQ(rows.size(), 1u);
  EXPECT_GT(rows[0]["rel_l2"], 5e-3);
  EXPECT_LT(rows[0]["rel_l2"], 2.8e-2);
}

TEST_F(BenchProgram, RefusesBadOptions) {
  expect_refused("bench --device cpu --cases nothing", {"fp8attn: bench: --cases: got 'nothing'", "quick"});
  expect_refused("bench --device cpu --filter zzz", {"--filter: got 'zzz'"});
  expect_refused("bench --device cpu --filter '['", {"--filter: got '['", "regular expression"});
  expect_refused("bench --device cpu --json no/folder/x", {"--json: got 'no/folder/x'"});
  expect_refused("bench --device cpu --arithmetic x", {"--arithmetic"});
  expect_refused("bench --json", {"--json"});
  for (const char* option : {"--cases", "--filter", "--device", "--arithmetic", "--json"}) {
    expect_refused(std::string("bench ") + option + " ''", {option, "got ''"});
  }
}

TEST_F(BenchProgram, FailsWhereACaseCannotRun) {
  write("cases.json", R"({"groups":[{"dtype":"e4m3","batch":1,"heads_q":[2,3],"heads_kv":2,"seqlen_q":16,
      "head_dim_qk":16}]})");
  const Outcome outcome = run("bench --device cpu --cases cases.json --json rows.json");
  EXPECT_EQ(outcome.status, 1);
  EXPECT_NE(outcome.err.find("1 of 2 cases cannot run"), std::string::npos) << outcome.err;
  EXPECT_NE(outcome.out.find("h3/2 s16 d16 full row-major default  not supported: "), std::string::npos) << outcome.out;
  const json rows = json::parse(read_text(path("rows.json")));
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_TRUE(rows[0]["unsupported"].is_null());
  EXPECT_GT(rows[0]["sustained_tflops"], 0);
  EXPECT_NE(rows[1]["unsupported"].get<std::string>().find("heads"), std::string::npos) << rows[1];
  EXPECT_TRUE(rows[1]["sustained_tflops"].is_null());
}

TEST_F(BenchProgram, RunsCasesOfTheSameTensorsAndMaskTogether) {
  write("cases.json", R"({"groups":[{"dtype":"e4m3","batch":1,"heads_q":1,"seqlen_q":[16,32],"head_dim_qk":16,
      "causal":[false,true]}, {"dtype":"e4m3","batch":1,"heads_q":1,"seqlen_q":[32,16],"head_dim_qk":16,
      "v_layout":"packed","causal":[false,true]}]})");
  const Outcome outcome = run("bench --device cpu --cases cases.json --json rows.json");
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  std::vector<std::string> order;
  for (const json& row : json::parse(read_text(path("rows.json")))) {
    order.push_back(row["seqlen_q"].dump() + (row["causal"] == true ? " causal " : " full ") + row["v_layout"].dump());
  }
  EXPECT_EQ(order, (std::vector<std::string>{"16 full \"row-major\"", "16 full \"packed\"", "16 causal \"row-major\"",
                                             "16 causal \"packed\"", "32 full \"row-major\"", "32 full \"packed\"",
                                             "32 causal \"row-major\"", "32 causal \"packed\""}));
}

TEST_F(BenchProgram, ShowsAnotherLibraryThatIsAbsent) {
  write("cases.json", R"({"groups":[{"dtype":"bf16","batch":1,"heads_q":1,"seqlen_q":16,"head_dim_qk":16,
      "library":["fp8attn","cudnn"]}]})");
  const Outcome outcome = run("bench --device cpu --cases cases.json --json rows.json");
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_NE(outcome.out.find("d16 full cudnn  not supported: cuDNN runs on CUDA devices only"), std::string::npos)
      << outcome.out;
  const json rows = json::parse(read_text(path("rows.json")));
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_EQ(rows[1]["library"], "cudnn");
  EXPECT_FALSE(rows[1]["unsupported"].is_null());
}

// A token of another sequence, or another page, would make errors of the size of the values.
TEST_F(BenchProgram, MeasuresTheBatchesOfServingEngines) {
  write("cases.json", R"({"groups":[
      {"dtype":"e4m3","batch":8,"heads_q":4,"heads_kv":2,"seqlen_q":90,"head_dim_qk":16,"causal":true,
       "layout":"ragged","lengths":["equal","log-uniform"]},
      {"dtype":"e4m3","batch":8,"heads_q":4,"heads_kv":2,"seqlen_q":[40,90],"seqlen_kv":90,"head_dim_qk":16,
       "causal":true,"layout":"paged","page_size":24,"lengths":"log-uniform"},
      {"dtype":"bf16","kv_dtype":"e4m3","batch":3,"heads_q":2,"seqlen_q":1,"seqlen_kv":150,"head_dim_qk":16,
       "layout":"paged","page_size":64,"v_layout":"packed"},
      {"dtype":"fp16","batch":2,"heads_q":2,"seqlen_q":90,"head_dim_qk":16,"causal":true,"window_left":10},
      {"dtype":"e4m3","batch":70000,"heads_q":1,"seqlen_q":1,"seqlen_kv":3,"head_dim_qk":16,"v_layout":"packed"}]})");
  const Outcome outcome = run("bench --device cpu --cases cases.json --json rows.json");
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  const json rows = json::parse(read_text(path("rows.json")));
  ASSERT_EQ(rows.size(), 7u);
  for (const json& row : rows) {
    EXPECT_GT(row["rel_l2"], 0) << row;
    // float32 arithmetic and a 16-bit output; a query that becomes 8 bits in the call.
    EXPECT_LT(row["rel_l2"], row["kv_dtype"].is_null() ? 5e-3 : 0.1) << row;
  }
  EXPECT_EQ(rows[1]["layout"], "ragged");
  EXPECT_EQ(rows[1]["lengths"], "log-uniform");
  EXPECT_EQ(rows[2]["page_size"], 24);
  EXPECT_EQ(rows[4]["kv_dtype"], "e4m3");
  EXPECT_EQ(rows[4]["lengths"], "equal");
  EXPECT_EQ(rows[5]["window_left"], 10);
  EXPECT_TRUE(rows[5]["layout"].is_null() && rows[5]["lengths"].is_null());
}

TEST_F(BenchProgram, GoesOnAfterTensorsThatAreTooLarge) {
  write("cases.json", R"({"groups":[{"dtype":"e4m3","batch":1,"heads_q":[1000000000,1],"head_dim_qk":64,
      "seqlen_q":[1099511627776,1000000000000,16]}]})");
  const Outcome outcome =
      run("bench --device cpu --cases cases.json --filter 'h1000000000 s[0-9]{13}|h1 s16' --json rows.json");
  EXPECT_EQ(outcome.status, 1);
  EXPECT_NE(outcome.err.find("2 of 3 cases cannot run"), std::string::npos) << outcome.err;
  EXPECT_NE(outcome.out.find(
                "h1000000000 s1099511627776 d64 full row-major default  not supported: the tensors are too large"),
            std::string::npos)
      << outcome.out;
  const json rows = json::parse(read_text(path("rows.json")));
  ASSERT_EQ(rows.size(), 3u);
  for (const json& row : rows) EXPECT_EQ(row["unsupported"].is_null(), row["seqlen_q"] == 16) << row;
}

}  // namespace
}  // namespace fp8attn::cli
