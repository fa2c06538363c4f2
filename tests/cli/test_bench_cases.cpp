#include <cmath>
#include <map>
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
  for (const char* name : {"prefill", "table", "batches", "quantize", "quick", "cpu"}) {
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
  EXPECT_EQ(cases[1].flop(), 2.0 * 2 * 4 * (9 + 10 + 11 + 12 + 13 + 14 + 15 + 16) * (64 + 32));
  EXPECT_EQ(cases[0].bytes(), 2.0 * (8 * 4 * 64 + 16 * (64 + 32) + 2 * 8 * 4 * 32));
  EXPECT_EQ(cases[1].name(), "e4m3 b2 h4/1 s8/16 d64/32 causal row-major default");
}

TEST_F(BenchCases, CausalCasesWithAsManyQueriesAsKeysCountHalf) {
  const auto cases = load_cases(write("c", R"({"groups":[{"dtype":"e4m3","batch":2,"heads_q":4,"seqlen_q":8,
      "head_dim_qk":64,"layout":"ragged","causal":[false,true]}]})"));
  ASSERT_EQ(cases.size(), 2u);
  EXPECT_EQ(cases[0].flop(), 2.0 * 2 * 4 * 8 * 8 * (64 + 64));
  EXPECT_EQ(cases[1].flop(), cases[0].flop() / 2);
}

TEST_F(BenchCases, CountsWhatAWindowShows) {
  const auto cases = load_cases(
      write("c", R"({"groups":[{"dtype":"bf16","kv_dtype":"e4m3","batch":2,"heads_q":4,"heads_kv":2,"seqlen_q":3,
               "seqlen_kv":8,"head_dim_qk":64,"causal":true,"window_left":[0,4,6]}]})"));
  ASSERT_EQ(cases.size(), 3u);
  const double pairs[] = {3, 5 + 5 + 5, 6 + 7 + 7}, keys[] = {3, 7, 8};
  for (std::size_t i = 0; i < cases.size(); ++i) {
    EXPECT_EQ(cases[i].flop(), 2.0 * 2 * 4 * pairs[i] * (64 + 64)) << i;
    EXPECT_EQ(cases[i].bytes(), 2.0 * (3 * 4 * (64 + 64) * 2 + keys[i] * 2 * (64 + 64))) << i;
  }
  EXPECT_EQ(cases[1].name(), "bf16/e4m3 b2 h4/2 s3/8 d64 causal window4 row-major default");
}

TEST_F(BenchCases, LogUniformLengthsAreTheSameAtEveryCall) {
  const auto cases = load_cases(
      write("c", R"({"groups":[{"dtype":"e4m3","batch":2000,"heads_q":1,"seqlen_q":[16,1024],"seqlen_kv":1024,
               "head_dim_qk":64,"layout":"ragged","lengths":"log-uniform","causal":true}]})"));
  ASSERT_EQ(cases.size(), 2u);
  const std::vector<std::int64_t> lengths = cases[1].kv_lengths();
  ASSERT_EQ(lengths.size(), 2000u);
  EXPECT_EQ(lengths, cases[0].kv_lengths());
  EXPECT_EQ(lengths, load_cases(path("c"))[1].kv_lengths());
  double pairs = 0, few_pairs = 0;
  std::map<int, int> octaves;
  for (const std::int64_t length : lengths) {
    ASSERT_TRUE(length >= 1 && length <= 1024) << length;
    ++octaves[static_cast<int>(std::log2(length))];
    pairs += static_cast<double>(length * (length + 1)) / 2;
    for (std::int64_t row = std::max<std::int64_t>(0, length - 16); row < length; ++row) few_pairs += double(row) + 1;
  }
  for (int octave = 0; octave < 10; ++octave) EXPECT_NEAR(octaves[octave], 200, 50) << octave;
  EXPECT_EQ(cases[1].flop(), 2 * pairs * (64 + 64));
  EXPECT_EQ(cases[0].flop(), 2 * few_pairs * (64 + 64));
  EXPECT_EQ(cases[0].name(), "e4m3 b2000 h1 s<=16/1024 d64 causal ragged log-uniform row-major default");
}

TEST_F(BenchCases, EqualLengthsOfBatchesHaveTheWorkOfUnevenOnes) {
  double uneven = 0;
  int equal = 0;
  const auto cases = load_cases("batches");
  for (const BenchCase& item : cases) {
    if (item.lengths == Lengths::kLogUniform) uneven = item.flop();
  }
  for (const BenchCase& item : cases) {
    if (item.batch != 64 || item.seqlen_q == 1 || item.lengths == Lengths::kLogUniform) continue;
    EXPECT_NEAR(item.flop() / uneven, 1, 1e-3) << item.name();
    ++equal;
  }
  EXPECT_EQ(equal, 2);
}

TEST_F(BenchCases, NamesOfTensorsTellLayoutsApart) {
  const auto cases = load_cases(
      write("c", R"({"groups":[{"dtype":"e4m3","batch":3,"heads_q":1,"seqlen_q":64,"head_dim_qk":64,"layout":"paged",
               "page_size":[64,128],"lengths":["equal","log-uniform"],"v_layout":"packed"}]})"));
  ASSERT_EQ(cases.size(), 4u);
  EXPECT_EQ(cases[0].tensors(), "e4m3 b3 h1 s64 d64 paged64");
  EXPECT_EQ(cases[1].tensors(), "e4m3 b3 h1 s<=64 d64 paged64 log-uniform");
  EXPECT_EQ(cases[3].name(), "e4m3 b3 h1 s<=64 d64 full paged128 log-uniform packed default");
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
      {R"({"groups":[{)" + rest + R"(,"layout":"sparse"}]})", "one of dense, ragged, paged"},
      {R"({"groups":[{)" + rest + R"(,"layout":"paged"}]})", "page_size: got nothing"},
      {R"({"groups":[{)" + rest + R"(,"page_size":16}]})", "none beside dense and ragged"},
      {R"({"groups":[{)" + rest + R"(,"lengths":"equal"}]})", "none beside dense"},
      {R"({"groups":[{)" + rest + R"(,"layout":"ragged","lengths":"even"}]})", "one of equal, log-uniform"},
      {R"({"groups":[{)" + rest + R"(,"layout":"ragged","lengths":"log-uniform","seqlen_kv":7}]})",
       "at most seqlen_kv 7"},
      {R"({"groups":[{)" + rest + R"(,"layout":"ragged","v_layout":"packed"}]})", "row-major beside ragged"},
      {R"({"groups":[{)" + rest + R"(,"layout":"paged","page_size":96,"v_layout":"packed"}]})", "no multiple of 64"},
      {R"({"groups":[{)" + rest + R"(,"layout":"ragged","library":"cudnn"}]})", "dense beside cudnn"},
      {R"({"groups":[{)" + rest + R"(,"window_left":4,"causal":true,"library":"cudnn"}]})", "-1 beside cudnn"},
      {R"({"groups":[{)" + rest + R"(,"window_left":4}]})", "-1 beside a mask that is not causal"},
      {R"({"groups":[{)" + rest + R"(,"window_left":8,"causal":true}]})", "below seqlen_kv 8"},
      {R"({"groups":[{)" + rest + R"(,"window_left":-2,"causal":true}]})", "a number of keys"},
      {R"({"groups":[{)" + rest + R"(,"window_left":18446744073709551615,"causal":true}]})", "a number of keys"},
      {R"({"groups":[{)" + rest + R"(,"kv_dtype":"e4m3"}]})", "none beside e4m3"},
      {R"({"groups":[{)" + rest + R"(,"op":"pack_v","layout":"dense"}]})", "none beside pack_v"},
      {R"({"groups":[{"dtype":"bf16","kv_dtype":"bf16","batch":1,"heads_q":1,"seqlen_q":8,"head_dim_qk":64}]})",
       "kv_dtype: got \"bf16\", expected e4m3"},
      {R"({"groups":[{"dtype":"bf16","kv_dtype":"e4m3","batch":1,"heads_q":1,"seqlen_q":8,"head_dim_qk":64,
           "recipe":"smooth-k"}]})",
       "none beside a recipe"},
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
  EXPECT_NE(message_of([] { load_cases("nothing"); }).find("cpu, decode, prefill, quantize, quick, table"),
            std::string::npos);
}

}  // namespace
}  // namespace fp8attn::cli
