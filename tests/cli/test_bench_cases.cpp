#include <set>

#include "cli/bench_cases.h"
#include "cli_test.h"

namespace fp8attn::cli {
namespace {

class BenchCases : public CliTest {
 protected:
  std::string refusal(const std::string& text) const {
    const std::string file = write("cases.json", text);
    return message_of([&] { load_cases(file); });
  }
};

TEST_F(BenchCases, BuiltInFilesAreSound) {
  for (const char* name : {"prefill", "table", "quantize", "quick", "cpu"}) {
    std::set<std::string> names;
    const auto cases = load_cases(name);
    for (const BenchCase& item : cases) names.insert(item.name());
    EXPECT_EQ(names.size(), cases.size()) << name << " has a case twice";
    EXPECT_FALSE(cases.empty()) << name;
  }
}

TEST_F(BenchCases, PrefillHasTheShapesOfTheComparisons) {
  std::set<std::string> names;
  for (const BenchCase& item : load_cases("prefill")) {
    names.insert(item.name());
    EXPECT_EQ(item.batch * item.seqlen_q, std::max<std::int64_t>(16384, item.seqlen_q)) << item.name();
    const std::int64_t hidden = item.head_dim_qk == 192 ? 16 * 192 : item.heads_kv == item.heads_q ? 2048 : 4096;
    EXPECT_EQ(item.heads_q * item.head_dim_qk, hidden) << item.name();
  }
  EXPECT_TRUE(names.contains("e4m3 b16 h16 s1024 d128 causal packed default"));
  EXPECT_TRUE(names.contains("e4m3 b1 h32 s16384 d64 full row-major default"));
  EXPECT_TRUE(names.contains("e4m3 b4 h32/8 s4096 d128 causal packed default"));
  EXPECT_TRUE(names.contains("e4m3 b32 h8 s512 d256 full packed fast"));
  EXPECT_TRUE(names.contains("e4m3 b1 h16 s32768 d192/128 causal packed exact"));
  EXPECT_TRUE(names.contains("bf16 b1 h16 s32768 d128 full"));
  EXPECT_TRUE(names.contains("e4m3 b1 h16 s16384 d192/128 causal cudnn"));
}

TEST_F(BenchCases, TableIsPartOfPrefill) {
  std::set<std::string> names;
  for (const BenchCase& item : load_cases("prefill")) names.insert(item.name());
  for (const BenchCase& item : load_cases("table")) EXPECT_TRUE(names.contains(item.name())) << item.name();
}

TEST_F(BenchCases, CountsOperationsAndBytes) {
  const auto cases = load_cases(
      write("c", R"({"groups":[{"dtype":"e4m3","batch":2,"heads_q":4,"heads_kv":1,"seqlen_q":8,"seqlen_kv":16,
               "head_dim_qk":64,"head_dim_v":32,"causal":[false,true]}]})"));
  ASSERT_EQ(cases.size(), 2u);
  EXPECT_EQ(cases[0].flop(), 2.0 * 2 * 4 * 8 * 16 * (64 + 32));
  EXPECT_EQ(cases[1].flop(), 1.0 * 2 * 4 * 8 * 16 * (64 + 32));
  EXPECT_EQ(cases[0].bytes(), 2.0 * (8 * 4 * 64 + 16 * (64 + 32) + 2 * 8 * 4 * 32));
  EXPECT_EQ(cases[1].name(), "e4m3 b2 h4/1 s8/16 d64/32 causal row-major default");
}

TEST_F(BenchCases, QuantisersCountEveryPass) {
  const auto cases = load_cases(
      write("c", R"({"groups":[{"op":"quantize","dtype":"bf16","batch":2,"heads_q":4,"seqlen_q":8,"head_dim_qk":64,
               "granularity":["head","token-head"],"v_layout":["row-major","packed"]},
               {"op":"pack_v","dtype":"e4m3","batch":2,"heads_q":4,"seqlen_q":8,"head_dim_qk":64}]})"));
  ASSERT_EQ(cases.size(), 5u);
  constexpr double kElements = 2 * 4 * 8 * 64;
  EXPECT_EQ(cases[0].name(), "quantize bf16 b2 h4 s8 d64 head row-major");
  const double passes[] = {5, 5, 3, 5, 2};  // bytes an element: two passes, or one
  for (std::size_t i = 0; i < cases.size(); ++i) {
    EXPECT_EQ(cases[i].bytes(), kElements * passes[i]) << cases[i].name();
    EXPECT_EQ(cases[i].flop(), 0) << cases[i].name();
  }
  EXPECT_EQ(cases[4].name(), "pack_v e4m3 b2 h4 s8 d64");
}

TEST_F(BenchCases, RefusesWhatItDoesNotUnderstand) {
  const std::string rest = R"("dtype":"e4m3","batch":1,"heads_q":1,"seqlen_q":8,"head_dim_qk":64)";
  EXPECT_EQ(refusal(R"({"groups":[{)" + rest + "}]}"), "");
  const std::pair<std::string, const char*> cases[] = {
      {"{", "not JSON"},
      {"[]", "groups"},
      {R"({"groups":[1]})", "groups[0]"},
      {R"({"groups":[{)" + rest + R"(,"colour":1}]})", "'colour'"},
      {R"({"groups":[{)" + rest + R"(,"tokens":16}]})", "both of batch and tokens"},
      {R"({"groups":[{)" + rest + R"(,"seqlen_kv":0}]})", "a positive integer"},
      {R"({"groups":[{)" + rest + R"(,"seqlen_kv":"8"}]})", "a positive integer"},
      {R"({"groups":[{)" + rest + R"(,"causal":1}]})", "true or false"},
      {R"({"groups":[{)" + rest + R"(,"v_layout":"blocked"}]})", "row-major, packed"},
      {R"({"groups":[{)" + rest + R"(,"op":"decode"}]})", "prefill, quantize, pack_v"},
      {R"({"groups":[{)" + rest + R"(,"op":"quantize"}]})", "bf16 or fp16 beside quantize"},
      {R"({"groups":[{)" + rest + R"(,"op":"pack_v","causal":true}]})", "none beside pack_v"},
      {R"({"groups":[{)" + rest + R"(,"op":"pack_v","granularity":"head"}]})", "none beside pack_v"},
      {R"({"groups":[{)" + rest + R"(,"granularity":"head"}]})", "none beside prefill"},
      {R"({"groups":[{)" + rest + R"(,"recipe":"smooth-k"}]})", "none beside e4m3"},
      {R"({"groups":[{)" + rest + R"(,"recipe":"head"}]})", "one of smooth-k, hadamard"},
      {R"({"groups":[{)" + rest + R"(,"library":"torch"}]})", "fp8attn, cudnn"},
      {R"({"groups":[{)" + rest + R"(,"library":"cudnn","p_mode":"exact"}]})", "none beside cudnn"},
      {R"({"groups":[{)" + rest + R"(,"library":"cudnn","v_layout":"packed"}]})", "row-major beside cudnn"},
      {R"({"groups":[{"dtype":"f64","batch":1,"heads_q":1,"seqlen_q":8,"head_dim_qk":64}]})", "e4m3, bf16, fp16"},
      {R"({"groups":[{"dtype":"e4m3","batch":1,"heads_q":1,"head_dim_qk":64}]})", "seqlen_q"},
      {R"({"groups":[]})", "one group or more"},
      {R"({"groups":[{}]})", "groups[0]"},
      {R"({"groups":[{)" + rest + R"(}],"group":[]})", "an object with a list"},
      {R"({"groups":[{)" + rest + R"(,"causal":[]}]})", "at least one value"},
      {R"({"groups":[{)" + rest + R"(,"batch":2}]})", "the name 'batch' twice"},
      {R"({"groups":[{)" + rest + R"(,"seqlen_kv":18446744073709551615}]})", "a positive integer"},
      {R"({"groups":[{"dtype":"e4m3","tokens":12,"heads_q":1,"seqlen_q":8,"head_dim_qk":64}]})",
       "a multiple of seqlen_q 8"},
      {R"({"groups":[{"dtype":"e4m3","batch":1,"hidden":100,"seqlen_q":8,"head_dim_qk":64}]})",
       "a multiple of head_dim_qk 64"},
      {R"({"groups":[{"dtype":"bf16","batch":1,"heads_q":1,"seqlen_q":8,"head_dim_qk":64,"p_mode":"exact"}]})",
       "p_mode"},
      {R"({"groups":[{"dtype":"fp16","batch":1,"heads_q":1,"seqlen_q":8,"head_dim_qk":64,"v_layout":"packed"}]})",
       "v_layout"},
      {std::string(100000, '['), "nested more than 16"},
  };
  for (const auto& [text, part] : cases) {
    EXPECT_NE(refusal(text).find(part), std::string::npos) << text << "\nsays: " << refusal(text);
  }
  EXPECT_NE(message_of([] { load_cases("nothing"); }).find("cpu, prefill, quantize, quick, table"), std::string::npos);
}

}  // namespace
}  // namespace fp8attn::cli
