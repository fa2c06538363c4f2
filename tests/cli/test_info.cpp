#include <nlohmann/json.hpp>

#include "cli_test.h"
#include "fp8attn/backend.h"

namespace fp8attn::cli {
namespace {

using nlohmann::json;

class Info : public CliTest {};

TEST_F(Info, JsonHasEverything) {
  const Outcome outcome = run("info --json");
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  const json info = json::parse(outcome.out);
  EXPECT_EQ(info["version"], version());
  EXPECT_EQ(info["backends"][0]["kind"], "cpu");
  EXPECT_EQ(info["backends"][0]["available"], true);
  ASSERT_FALSE(info["prefill_variants"].empty());
  for (const json& variant : info["prefill_variants"]) {
    for (const char* field :
         {"name", "backend", "dtype", "head_dim_qk", "head_dim_v", "v_layout", "p_mode", "left_out_by"}) {
      EXPECT_TRUE(variant.contains(field)) << field;
    }
  }
  EXPECT_FALSE(info["recipes"].empty());
}

TEST_F(Info, TextAndMarkdown) {
  const Outcome text = run("info");
  EXPECT_EQ(text.status, 0);
  EXPECT_NE(text.out.find("default device"), std::string::npos) << text.out;
  const Outcome markdown = run("info --markdown");
  EXPECT_EQ(markdown.status, 0);
  EXPECT_EQ(markdown.out.rfind("| backend |", 0), 0u) << markdown.out;
  EXPECT_NE(markdown.out.find("| CPU | e4m3 |"), std::string::npos) << markdown.out;
}

TEST_F(Info, CommandLineMistakes) {
  expect_refused("", {"Usage: fp8attn", "attend", "bench"});
  expect_refused("inform", {"fp8attn: got 'inform', expected one of info, attend, compare, bench"});
  expect_refused("info --jsn", {"fp8attn: info: ", "--jsn"});
  expect_refused("info --json --markdown", {"fp8attn: info: ", "--markdown"});
  EXPECT_EQ(run("--version").out, std::string(version()) + "\n");
  EXPECT_EQ(run("attend --help").status, 0);
}

}  // namespace
}  // namespace fp8attn::cli
