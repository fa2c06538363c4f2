// Every bad argument of merge_attention(), and what has to be accepted, on either device.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "api/validate.h"
#include "bad_case.h"
#include "fp8attn/error.h"
#include "fp8attn/merge.h"
#include "prefill_arguments.h"

namespace fp8attn::test {
namespace {

constexpr std::int64_t kParts = 3;

// A valid problem and its memory.
struct MergeArguments {
  alignas(16) float outs[kParts * kB * kSQ * kHQ * kDV] = {};
  alignas(16) float lses[kParts * kB * kHQ * kSQ] = {};
  std::vector<float> out = std::vector<float>(kB * kSQ * kHQ * kDV, 123.0f);
  std::vector<float> lse = std::vector<float>(kB * kHQ * kSQ, 456.0f);
  MergeAttentionProblem problem;

  explicit MergeArguments(Device device = {}) {
    problem.outs = TensorView::contiguous(outs, DType::kF32, {kParts, kB, kSQ, kHQ, kDV}, device);
    problem.lses = TensorView::contiguous(lses, DType::kF32, {kParts, kB, kHQ, kSQ}, device);
    problem.out = MutableTensorView::contiguous(out.data(), DType::kF32, {kB, kSQ, kHQ, kDV}, device);
    problem.lse = MutableTensorView::contiguous(lse.data(), DType::kF32, {kB, kHQ, kSQ}, device);
  }
  void make_ragged() {
    const Device device = problem.out.device;
    constexpr std::int64_t rows = kB * kSQ;
    problem.outs = TensorView::contiguous(outs, DType::kF32, {kParts, rows, kHQ, kDV}, device);
    problem.lses = TensorView::contiguous(lses, DType::kF32, {kParts, kHQ, rows}, device);
    problem.out = MutableTensorView::contiguous(out.data(), DType::kF32, {rows, kHQ, kDV}, device);
    problem.lse = MutableTensorView::contiguous(lse.data(), DType::kF32, {kHQ, rows}, device);
  }
  bool untouched() const {
    return std::ranges::count(out, 123.0f) == std::ssize(out) && std::ranges::count(lse, 456.0f) == std::ssize(lse);
  }
};

using BadMergeCase = BadCase<MergeArguments>;

class BadMerge : public testing::TestWithParam<BadMergeCase> {};

TEST_P(BadMerge, IsReportedAndThrownBeforeAnythingIsWritten) {
  MergeArguments arguments;
  GetParam().spoil(arguments);
  const Support support = supports(arguments.problem);
  expect_only_reason(support.reasons, GetParam());
  try {
    merge_attention(arguments.problem);
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ("merge_attention: " + support.reasons.front(), error.what());
  }
  EXPECT_TRUE(arguments.untouched());
}

const BadMergeCase kBad[] = {
    {"OutRank",
     [](MergeArguments& s) {
       s.problem.out = MutableTensorView::contiguous(s.out.data(), DType::kF32, {2, 7});
     },
     "out.shape",
     {"[2, 7]", "[b, s_q, h_q, d_v]", "[total_q, h_q, d_v]"}},
    {"NegativeOut",
     [](MergeArguments& s) { s.problem.out.shape[1] = -1; },
     "out.shape",
     {"[2, -1, 6, 32]", "dims from 0"}},
    {"NoChannels",
     [](MergeArguments& s) { s.problem.out.shape[3] = s.problem.outs.shape[4] = 0; },
     "out.shape",
     {"at least one channel"}},
    {"OutsRank",
     [](MergeArguments& s) {
       s.problem.outs = TensorView::contiguous(s.outs, DType::kF32, {3, 2, 7, 6});
     },
     "outs.shape",
     {"[3, 2, 7, 6]", "rank 5, [parts, b, s_q, h_q, d_v] for out [2, 7, 6, 32]"}},
    {"OutsChannels",
     [](MergeArguments& s) { s.problem.outs.shape[4] = 16; },
     "outs.shape",
     {"[3, 2, 7, 6, 16]", "[*, 2, 7, 6, 32]"}},
    {"RaggedOuts",
     [](MergeArguments& s) {
       s.make_ragged();
       s.problem.outs.shape[1] = 7;
     },
     "outs.shape",
     {"[3, 7, 6, 32]", "[*, 14, 6, 32], which is [parts, total_q, h_q, d_v]"}},
    {"Parts", [](MergeArguments& s) { s.problem.lses.shape[0] = 2; }, "lses.shape", {"[2, 2, 6, 7]", "[3, 2, 6, 7]"}},
    {"LsesOrder",
     [](MergeArguments& s) {
       s.problem.lses = TensorView::contiguous(s.lses, DType::kF32, {kParts, kB, kSQ, kHQ});
     },
     "lses.shape",
     {"[3, 2, 7, 6]", "[3, 2, 6, 7], which is [parts, b, h_q, s_q]"}},
    {"RaggedLses",
     [](MergeArguments& s) {
       s.make_ragged();
       s.problem.lses = TensorView::contiguous(s.lses, DType::kF32, {kParts, kB * kSQ, kHQ});
     },
     "lses.shape",
     {"[3, 14, 6]", "[3, 6, 14], which is [parts, h_q, total_q]"}},
    {"LseShape", [](MergeArguments& s) { s.problem.lse->shape[2] = 6; }, "lse.shape", {"[2, 6, 6]", "[2, 6, 7]"}},
    {"OutsDtype",
     [](MergeArguments& s) { s.problem.outs.dtype = DType::kE4M3; },
     "outs.dtype",
     {"e4m3", "bf16, fp16 or f32"}},
    {"OutDtype",
     [](MergeArguments& s) { s.problem.out.dtype = DType::kI32; },
     "out.dtype",
     {"int32", "bf16, fp16 or f32"}},
    {"LsesDtype", [](MergeArguments& s) { s.problem.lses.dtype = DType::kBF16; }, "lses.dtype", {"bf16", "f32"}},
    {"LseDtype", [](MergeArguments& s) { s.problem.lse->dtype = DType::kBF16; }, "lse.dtype", {"bf16", "f32"}},
    {"Base", [](MergeArguments& s) { s.problem.lse_base = static_cast<LseBase>(9); }, "lse_base", {"9 (not", "e or 2"}},
    {"OutsDevice",
     [](MergeArguments& s) { s.problem.outs.device = kGpu; },
     "outs.device",
     {"cuda:0", "cpu, the device of out"}},
    {"LsesDevice", [](MergeArguments& s) { s.problem.lses.device = kGpu; }, "lses.device", {"cuda:0", "cpu"}},
    {"LseDevice", [](MergeArguments& s) { s.problem.lse->device = kGpu; }, "lse.device", {"cuda:0", "cpu"}},
    {"NullOuts", [](MergeArguments& s) { s.problem.outs.data = nullptr; }, "outs.data", {"null"}},
    {"NullOut", [](MergeArguments& s) { s.problem.out.data = nullptr; }, "out.data", {"null"}},
    {"LastDim", [](MergeArguments& s) { s.problem.outs.strides[4] = 2; }, "outs.strides", {"contiguous last dim"}},
    {"NegativeStride", [](MergeArguments& s) { s.problem.lses.strides[0] = -84; }, "lses.strides", {"no negative"}},
    {"ExpandedOut", [](MergeArguments& s) { s.problem.out.strides[0] = 0; }, "out.strides", {"not overlap"}},
    {"OutInOuts",
     [](MergeArguments& s) { s.problem.out.data = s.outs + kB * kSQ * kHQ * kDV; },
     "out.data",
     {"in the memory of outs"}},
    {"LseInLses", [](MergeArguments& s) { s.problem.lse->data = s.lses; }, "lse.data", {"in the memory of lses"}},
    {"LseInOut", [](MergeArguments& s) { s.problem.lse->data = s.out.data(); }, "lse.data", {"in the memory of out"}},
};
INSTANTIATE_TEST_SUITE_P(Rules, BadMerge, testing::ValuesIn(kBad), CaseName());

class GoodMerge : public testing::TestWithParam<Device> {
 protected:
  MergeArguments arguments{GetParam()};
  void expect_valid() { EXPECT_EQ(to_support(validate(arguments.problem)).reasons, std::vector<std::string>()); }
};

TEST_P(GoodMerge, DenseAndRaggedWithAndWithoutLse) {
  expect_valid();
  arguments.problem.lse.reset();
  expect_valid();
  arguments.make_ragged();
  expect_valid();
}

TEST_P(GoodMerge, B_NothingToMerge) {
  arguments.problem.outs.shape[0] = arguments.problem.lses.shape[0] = 0;
  expect_valid();
  arguments.problem.outs.data = arguments.problem.lses.data = nullptr;
  expect_valid();
}

TEST_P(GoodMerge, I_ExpandedParts) {
  arguments.problem.outs.strides[0] = arguments.problem.lses.strides[0] = 0;
  expect_valid();
}

INSTANTIATE_TEST_SUITE_P(Devices, GoodMerge, testing::Values(Device{}, kGpu),
                         [](const auto& info) { return std::string(name_of(info.param.kind)); });

TEST(CudaMerge, I_RowsAreOf16Bytes) {
  MergeArguments arguments(kGpu);
  arguments.problem.outs.strides[3] = kDV + 1;
  arguments.problem.out.strides = {kSQ * kHQ * (kDV + 2), kHQ * (kDV + 2), kDV + 2, 1};
  const std::vector<std::string> reasons = to_support(validate(arguments.problem)).reasons;
  ASSERT_EQ(reasons.size(), 2u) << testing::PrintToString(reasons);
  EXPECT_TRUE(reasons[0].starts_with("outs.strides: got [")) << reasons[0];
  EXPECT_TRUE(reasons[1].starts_with("out.strides: got [")) << reasons[1];
  for (const std::string& reason : reasons)
    EXPECT_TRUE(reason.ends_with("a multiple of 4 elements (16 bytes) on cuda"));
}

}  // namespace
}  // namespace fp8attn::test
