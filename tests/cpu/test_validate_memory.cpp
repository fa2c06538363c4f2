// Memory that outputs must not share, with themselves and with other arguments, and layouts that look like it and are
// legal.
#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "api/validate.h"
#include "bad_case.h"
#include "fp8attn/prefill.h"
#include "fp8attn/quantize.h"
#include "prefill_arguments.h"

namespace fp8attn::test {
namespace {

using Texts = std::vector<std::string>;
using BadPrefillCase = BadCase<PrefillArguments>;

Texts reasons_of(const PrefillProblem& problem) { return supports(problem).reasons; }

class SharedMemory : public testing::TestWithParam<BadPrefillCase> {};

TEST_P(SharedMemory, I_IsReported) {
  PrefillArguments arguments;
  GetParam().spoil(arguments);
  expect_only_reason(reasons_of(arguments.problem), GetParam());
  EXPECT_THROW(prefill(arguments.problem), Error);
  EXPECT_TRUE(arguments.untouched());
}

void use_memory_of(auto& view, const TensorView& other, int bytes = 0) {
  view.data = const_cast<void*>(other.data);
  shift(view, bytes);
}

const BadPrefillCase kShared[] = {
    {"OutIsQuery",
     [](PrefillArguments& s) { use_memory_of(s.problem.out, s.problem.q); },
     "out.data",
     {"in the memory of q", "[2, 7, 6, 32]", "memory that q does not use"}},
    {"OutEndsAfterKeyBegins",
     [](PrefillArguments& s) {
       s.problem.lse = {};
       use_memory_of(s.problem.k, s.problem.out, kB * kSQ * kHQ * kDV * 4 - 1);
     },
     "out.data",
     {"in the memory of k,"}},
    {"OutBeginsBeforeValueEnds",
     [](PrefillArguments& s) {
       s.problem.lse = {};
       use_memory_of(s.problem.v, s.problem.out, 1 - kB * kSKV * kHKV * kDV);
     },
     "out.data",
     {"memory that v does not use"}},
    {"OutHasQueryScale",
     [](PrefillArguments& s) {
       s.problem.q_scale = s.scale({1});
       use_memory_of(*s.problem.q_scale, s.problem.out, kB * kSQ * kHQ * kDV * 4 - 4);
     },
     "out.data",
     {"in the memory of q_scale"}},
    {"OutHasKeyScale",
     [](PrefillArguments& s) {
       s.problem.k_scale = s.scale({});
       use_memory_of(*s.problem.k_scale, s.problem.out);
     },
     "out.data",
     {"in the memory of k_scale"}},
    {"LseHasValueScale",
     [](PrefillArguments& s) {
       s.problem.v_scale = s.scale({kHKV});
       use_memory_of(*s.problem.v_scale, *s.problem.lse);
     },
     "lse.data",
     {"in the memory of v_scale"}},
    {"OutHasOutScale",
     [](PrefillArguments& s) {
       s.problem.out.dtype = DType::kE4M3;
       s.problem.out_scale = s.scale({});
       use_memory_of(*s.problem.out_scale, s.problem.out);
     },
     "out.data",
     {"in the memory of out_scale"}},
    {"LseHasSink",
     [](PrefillArguments& s) {
       s.problem.attention_sink = s.scale({kHQ});
       use_memory_of(*s.problem.attention_sink, *s.problem.lse);
     },
     "lse.data",
     {"in the memory of attention_sink"}},
    {"LseHasLseBias",
     [](PrefillArguments& s) {
       s.problem.lse_bias = s.scale({kB, kHQ, kSQ});
       use_memory_of(*s.problem.lse_bias, *s.problem.lse);
     },
     "lse.data",
     {"in the memory of lse_bias"}},
    {"LseIsKey",
     [](PrefillArguments& s) { use_memory_of(*s.problem.lse, s.problem.k, 16); },
     "lse.data",
     {"in the memory of k,"}},
    {"LseIsOut",
     [](PrefillArguments& s) { use_memory_of(*s.problem.lse, s.problem.out, 64); },
     "lse.data",
     {"in the memory of out"}},
    {"SlicesThatOverlapByAnElement",
     [](PrefillArguments& s) {
       set_dtype(s.problem, DType::kF32);
       static std::array<float, 2 * 4 * 3 * 16> buffer;
       const auto slice = [&](int head) {
         TensorView view = TensorView::contiguous(&buffer[head * 16], DType::kF32, {2, 4, 1, 16});
         view.strides = {4 * 48, 48, 16, 1};
         return view;
       };
       s.problem.q = slice(0), s.problem.k = slice(1);
       s.problem.v = TensorView::contiguous(s.v, DType::kF32, {2, 4, 1, 16});
       s.problem.out = MutableTensorView::contiguous(&buffer[31], DType::kF32, {2, 4, 1, 16});
       s.problem.out.strides = s.problem.q.strides;
       s.problem.lse = {};
     },
     "out.data",
     {"in the memory of k"}},
};
INSTANTIATE_TEST_SUITE_P(Rules, SharedMemory, testing::ValuesIn(kShared), CaseName());

// q, k, v and out as slices of one buffer: over heads of packed rows, with heads outside of tokens, over batch entries.
TEST(SeparateMemory, I_SlicesOfOneBuffer) {
  constexpr std::int64_t b = 2, s = 5, d = 16;
  const std::array<std::array<std::int64_t, 4>, 3> layouts = {{
      {s * 8 * d, 8 * d, d, 1},  // [b, s, 8 heads, d]
      {8 * s * d, d, s * d, 1},  // [b, 8 heads, s, d]
      {d, b * d * 8, b * d, 1},  // [s, 8 heads, b, d]
  }};
  for (const auto& strides : layouts) {
    std::vector<float> buffer(b * s * 8 * d);
    const auto slice = [&](std::int64_t first_head, std::int64_t heads) {
      MutableTensorView view =
          MutableTensorView::contiguous(&buffer[first_head * strides[2]], DType::kF32, {b, s, heads, d});
      for (int i = 0; i < 4; ++i) view.strides[i] = strides[i];
      return view;
    };
    PrefillProblem problem;
    problem.q = slice(0, 2);
    problem.k = slice(5, 1);
    problem.v = slice(4, 1);
    problem.out = slice(6, 2);
    EXPECT_EQ(reasons_of(problem), Texts());
    problem.out = slice(2, 2);
    EXPECT_EQ(reasons_of(problem), Texts());
    problem.out = slice(3, 2);
    EXPECT_EQ(reasons_of(problem).size(), 1u);
  }
}

TEST(SeparateMemory, I_NeighboursAndEmptyTensors) {
  PrefillArguments arguments;
  PrefillProblem& p = arguments.problem;
  std::vector<float> both(kB * kSQ * kHQ * kDV + kB * kHQ * kSQ);
  p.out.data = both.data();
  p.lse->data = both.data() + kB * kSQ * kHQ * kDV;
  EXPECT_EQ(reasons_of(p), Texts());
  p.k.shape[1] = p.v.shape[1] = 0;
  p.k.data = p.v.data = p.out.data;
  EXPECT_EQ(reasons_of(p), Texts());
}

struct OutLayout {
  const char* name;
  std::array<std::int64_t, 4> shape, strides;
  bool legal;
};

void PrintTo(const OutLayout& layout, std::ostream* stream) { *stream << layout.name; }

class OutDims : public testing::TestWithParam<OutLayout> {};

TEST_P(OutDims, I_DoNotOverlap) {
  const OutLayout& layout = GetParam();
  const auto& [b, s, h, d] = layout.shape;
  static std::array<float, 4096> q, k, v, out;
  PrefillProblem problem;
  problem.q = TensorView::contiguous(q.data(), DType::kF32, {b, s, h, d});
  problem.k = TensorView::contiguous(k.data(), DType::kF32, {b, 1, h, d});
  problem.v = TensorView::contiguous(v.data(), DType::kF32, {b, 1, h, d});
  problem.out = MutableTensorView::contiguous(out.data(), DType::kF32, {b, s, h, d});
  for (int i = 0; i < 4; ++i) problem.out.strides[i] = layout.strides[i];
  const Texts reasons = to_support(validate(problem)).reasons;
  EXPECT_EQ(reasons.size(), layout.legal ? 0u : 1u) << testing::PrintToString(reasons);
  if (layout.legal || reasons.empty()) return;
  EXPECT_TRUE(reasons.front().starts_with("out.strides: got [")) << reasons.front();
  EXPECT_NE(reasons.front().find("dims that do not overlap"), std::string::npos) << reasons.front();
}

const OutLayout kOutLayouts[] = {
    {"ThreeDimsTogether", {1, 2, 2, 16}, {0, 16, 24, 1}, false},
    {"SumOfTwoIsAThird", {2, 2, 2, 16}, {48, 16, 32, 1}, false},
    {"FourDimsTogether", {2, 2, 2, 8}, {27, 9, 18, 1}, false},
    {"StrideZero", {2, 2, 2, 8}, {0, 16, 8, 1}, false},
    {"Dense", {2, 3, 4, 8}, {96, 32, 8, 1}, true},
    {"TransposedHeads", {2, 3, 4, 8}, {96, 8, 24, 1}, true},
    {"BatchInside", {2, 3, 4, 8}, {8, 64, 16, 1}, true},
    {"PackedSlice", {2, 3, 4, 8}, {3 * 96, 3 * 32, 8, 1}, true},
    {"OddRowPadding", {2, 3, 4, 8}, {9 * 12, 9 * 4, 9, 1}, true},
    {"SizeOneDims", {1, 3, 1, 8}, {-5, 8, 0, 1}, true},
    {"OneChannel", {2, 3, 4, 1}, {12, 4, 1, 0}, true},
};
INSTANTIATE_TEST_SUITE_P(Layouts, OutDims, testing::ValuesIn(kOutLayouts),
                         [](const auto& info) { return info.param.name; });

class SharedQuantizeMemory : public testing::Test {
 protected:
  SharedQuantizeMemory() {
    problem.input = TensorView::contiguous(memory.data(), DType::kF32, {2, 5, 3, 8});
    problem.output = MutableTensorView::contiguous(memory.data() + 240, DType::kE4M3, {2, 5, 3, 8});
    problem.scale = MutableTensorView::contiguous(memory.data() + 300, DType::kF32, {3});
  }
  void expect_reason(const char* beginning, const char* other) {
    const Texts reasons = supports(problem).reasons;
    ASSERT_EQ(reasons.size(), 1u) << testing::PrintToString(reasons);
    EXPECT_TRUE(reasons.front().starts_with(beginning)) << reasons.front();
    EXPECT_NE(reasons.front().find(other), std::string::npos) << reasons.front();
    EXPECT_THROW(quantize(problem), Error);
  }

  std::vector<float> memory = std::vector<float>(400, 1.0f);
  QuantizeProblem problem;
};

TEST_F(SharedQuantizeMemory, I_NeighboursAreAccepted) { EXPECT_EQ(supports(problem).reasons, Texts()); }

TEST_F(SharedQuantizeMemory, I_OutputInInput) {
  problem.output.data = memory.data();
  expect_reason("output.data: got address ", "memory that input does not use");
}

TEST_F(SharedQuantizeMemory, I_ScaleInInput) {
  problem.scale.data = memory.data() + 100;
  expect_reason("scale.data: got address ", "memory that input does not use");
}

TEST_F(SharedQuantizeMemory, I_ScaleInOutput) {
  problem.scale.data = memory.data() + 299;
  expect_reason("scale.data: got address ", "memory that output does not use");
}

TEST(SharedPackMemory, I_OutputInInput) {
  std::vector<std::uint8_t> memory(2 * 3 * 8 * 16 + 240, 0x38);
  const TensorView input = TensorView::contiguous(memory.data(), DType::kE4M3, {2, 5, 3, 8});
  MutableTensorView output = MutableTensorView::contiguous(memory.data() + 240, DType::kE4M3, {2, 3, 8, 16});
  EXPECT_NO_THROW(pack_v(input, output));
  output.data = memory.data() + 239;
  try {
    pack_v(input, output);
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.argument(), "output.data");
  }
}

TEST(WorkspaceMemory, I_IsNotThatOfATensor) {
  constexpr std::int64_t kTokens = 64;
  std::vector<float> q(kTokens * 64, 1.0f), k = q, v = q;
  alignas(256) static std::array<float, 1 << 20> memory;
  memory.fill(7.0f);
  PrefillProblem problem;
  problem.q = TensorView::contiguous(q.data(), DType::kF32, {1, kTokens, 1, 64});
  problem.k = TensorView::contiguous(k.data(), DType::kF32, {1, kTokens, 1, 64});
  problem.v = TensorView::contiguous(v.data(), DType::kF32, {1, kTokens, 1, 64});
  problem.out = MutableTensorView::contiguous(memory.data(), DType::kF32, {1, kTokens, 1, 64});
  problem.quantize = QuantizeRecipe{};
  const std::size_t size = workspace_size(problem);
  ASSERT_LT(size, sizeof memory / 2);
  try {
    prefill(problem, {memory.data(), size});
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("workspace.data: got"), std::string::npos) << error.what();
    EXPECT_NE(std::string(error.what()).find("in the memory of out"), std::string::npos) << error.what();
  }
  EXPECT_EQ(memory[0], 7.0f);
  prefill(problem, {memory.data() + memory.size() / 2, size});
  EXPECT_EQ(memory[0], 1.0f);
}

TEST(StrideRange, I_SpansWhatMemoryCanHold) {
  PrefillArguments arguments;
  arguments.problem.q.strides[0] = std::int64_t{1} << 61;
  const Texts reasons = reasons_of(arguments.problem);
  ASSERT_EQ(reasons.size(), 1u);
  EXPECT_NE(reasons[0].find("q.strides"), std::string::npos) << reasons[0];
  EXPECT_NE(reasons[0].find("at most 2^57 bytes"), std::string::npos) << reasons[0];
}

}  // namespace
}  // namespace fp8attn::test
