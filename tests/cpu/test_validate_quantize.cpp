// Every bad argument of quantize() and pack_v(): which one the reason names, what it says, that nothing is written.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "bad_case.h"
#include "fp8attn/error.h"
#include "fp8attn/quantize.h"

namespace fp8attn::test {
namespace {

constexpr std::int64_t kB = 2, kS = 5, kH = 3, kD = 8;
constexpr std::uint8_t kUntouched = 0xA5;
constexpr Device kGpu = {DeviceKind::kCuda, 0};

// A valid problem and its memory. `problem.input` is also the input of pack_v() once it is e4m3.
struct Arguments {
  std::vector<float> input = std::vector<float>(kB * kS * kH * kD, 1.0f);
  std::vector<std::uint8_t> output = std::vector<std::uint8_t>(kB * 16 * kH * kD, kUntouched);
  std::vector<float> scale = std::vector<float>(kB * kS * kH * kD, 123.0f);
  QuantizeProblem problem;

  Arguments() {
    problem.input = TensorView::contiguous(input.data(), DType::kF32, {kB, kS, kH, kD});
    problem.output = MutableTensorView::contiguous(output.data(), DType::kE4M3, {kB, kS, kH, kD});
    problem.scale = MutableTensorView::contiguous(scale.data(), DType::kF32, {kH});
  }
  void pack() {
    problem.layout = VLayout::kPacked;
    problem.output = MutableTensorView::contiguous(output.data(), DType::kE4M3, {kB, kH, kD, 16});
  }
  void set_scale(ScaleGranularity granularity, std::initializer_list<std::int64_t> shape) {
    problem.granularity = granularity;
    problem.scale = MutableTensorView::contiguous(scale.data(), DType::kF32, shape);
  }
  bool untouched() const {
    return std::ranges::count(output, kUntouched) == std::ssize(output) &&
           std::ranges::count(scale, 123.0f) == std::ssize(scale);
  }
};

using BadQuantizeCase = BadCase<Arguments>;

template <class Call>
void expect_error(const char* operation, const BadQuantizeCase& bad, Call call) {
  try {
    call();
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.operation(), operation);
    EXPECT_EQ(error.argument(), bad.argument) << error.what();
    for (const char* text : bad.texts)
      EXPECT_NE(std::string(error.what()).find(text), std::string::npos) << error.what();
  }
}

class BadQuantize : public testing::TestWithParam<BadQuantizeCase> {};

TEST_P(BadQuantize, IsReportedBySupportsAndThrownBeforeAnythingIsWritten) {
  Arguments arguments;
  GetParam().spoil(arguments);
  const Support support = supports(arguments.problem);
  EXPECT_FALSE(support.ok);
  expect_only_reason(support.reasons, GetParam());
  expect_error("quantize", GetParam(), [&] { quantize(arguments.problem); });
  expect_error("workspace_size", GetParam(), [&] { workspace_size(arguments.problem); });
  EXPECT_TRUE(arguments.untouched());
}

const BadQuantizeCase kBadQuantize[] = {
    {"InputRank",
     [](Arguments& s) {
       s.problem.input = TensorView::contiguous(s.input.data(), DType::kF32, {2, 5, 3});
     },
     "input.shape",
     {"[2, 5, 3],", "rank 4, [b, s, h, d]"}},
    {"InputDtype", [](Arguments& s) { s.problem.input.dtype = DType::kE4M3; }, "input.dtype", {"bf16, fp16 or f32"}},
    {"InputNull", [](Arguments& s) { s.problem.input.data = nullptr; }, "input.data", {"null"}},
    {"InputStride", [](Arguments& s) { s.problem.input.strides[3] = 2; }, "input.strides", {"contiguous last dim"}},
    {"InputNegativeStride",
     [](Arguments& s) { s.problem.input.strides[1] = -8; },
     "input.strides",
     {"-8", "no negative"}},
    {"NoSuchDevice",
     [](Arguments& s) {
       for (Device* device : {&s.problem.input.device, &s.problem.output.device, &s.problem.scale.device}) {
         device->kind = static_cast<DeviceKind>(2);
       }
     },
     "input.device",
     {"a device of kind 2", "cpu or cuda"}},
    {"NoSuchInputDtype",
     [](Arguments& s) { s.problem.input.dtype = static_cast<DType>(7); },
     "input.dtype",
     {"got 7 (not", "bf16, fp16 or f32"}},
    {"NoSuchGranularity",
     [](Arguments& s) { s.problem.granularity = static_cast<ScaleGranularity>(5); },
     "granularity",
     {"got 5 (not", "tensor, head, batch-head, token-head or channel"}},
    {"NoSuchLayout",
     [](Arguments& s) { s.problem.layout = static_cast<VLayout>(77); },
     "layout",
     {"got 77 (not", "row-major or packed"}},
    {"OutputShape",
     [](Arguments& s) { s.problem.output.shape[1] = 4; },
     "output.shape",
     {"[2, 4, 3, 8]", "[2, 5, 3, 8]"}},
    {"OutputDtype", [](Arguments& s) { s.problem.output.dtype = DType::kBF16; }, "output.dtype", {"bf16", "e4m3"}},
    {"OutputDevice",
     [](Arguments& s) { s.problem.output.device = kGpu; },
     "output.device",
     {"cpu, the device of input"}},
    {"OutputNull", [](Arguments& s) { s.problem.output.data = nullptr; }, "output.data", {"null"}},
    {"OutputExpanded", [](Arguments& s) { s.problem.output.strides[0] = 0; }, "output.strides", {"not overlap"}},
    {"PackedShape",
     [](Arguments& s) { s.problem.layout = VLayout::kPacked; },
     "output.shape",
     {"[2, 5, 3, 8]", "[2, 3, 8, 16]", "input [2, 5, 3, 8]"}},
    {"PackedStrides",
     [](Arguments& s) {
       s.pack();
       s.problem.output.strides[0] = 400;
     },
     "output.strides",
     {"400", "contiguous row-major"}},
    {"ScaleShape",
     [](Arguments& s) { s.set_scale(ScaleGranularity::kHead, {kD}); },
     "scale.shape",
     {"got [8]", "[3], granularity head for input [2, 5, 3, 8]"}},
    {"ScaleOfTensor",
     [](Arguments& s) { s.set_scale(ScaleGranularity::kTensor, {kH}); },
     "scale.shape",
     {"[3]", "[1]"}},
    {"ScaleOfBatchHead",
     [](Arguments& s) {
       s.set_scale(ScaleGranularity::kBatchHead, {kH, kB});
     },
     "scale.shape",
     {"[3, 2]", "[2, 3]"}},
    {"ScaleOfTokenHead",
     [](Arguments& s) {
       s.set_scale(ScaleGranularity::kTokenHead, {kB, kH, kS});
     },
     "scale.shape",
     {"[2, 3, 5]", "[2, 5, 3]"}},
    {"ScaleOfChannel",
     [](Arguments& s) {
       s.set_scale(ScaleGranularity::kChannel, {kB, kS, kH});
     },
     "scale.shape",
     {"[2, 5, 3]", "[2, 3, 8]"}},
    {"ScaleRankZeroOfHead",
     [](Arguments& s) { s.set_scale(ScaleGranularity::kHead, {}); },
     "scale.shape",
     {"[]", "[3]"}},
    {"ScaleDtype", [](Arguments& s) { s.problem.scale.dtype = DType::kBF16; }, "scale.dtype", {"bf16", "f32"}},
    {"ScaleDevice", [](Arguments& s) { s.problem.scale.device = kGpu; }, "scale.device", {"cpu, the device of input"}},
    {"ScaleNull", [](Arguments& s) { s.problem.scale.data = nullptr; }, "scale.data", {"null"}},
    {"ScaleStride", [](Arguments& s) { s.problem.scale.strides[0] = 2; }, "scale.strides", {"contiguous row-major"}},
};
INSTANTIATE_TEST_SUITE_P(All, BadQuantize, testing::ValuesIn(kBadQuantize), CaseName());

class BadPackV : public testing::TestWithParam<BadQuantizeCase> {};

TEST_P(BadPackV, IsThrownBeforeAnythingIsWritten) {
  Arguments arguments;
  arguments.pack();
  arguments.problem.input.dtype = DType::kE4M3;
  GetParam().spoil(arguments);
  expect_error("pack_v", GetParam(), [&] { pack_v(arguments.problem.input, arguments.problem.output); });
  EXPECT_TRUE(arguments.untouched());
}

const BadQuantizeCase kBadPackV[] = {
    {"InputRank", [](Arguments& s) { s.problem.input.rank = 5; }, "input.shape", {"rank 4, [b, s, h, d]"}},
    {"InputDtype",
     [](Arguments& s) { s.problem.input.dtype = DType::kBF16; },
     "input.dtype",
     {"bf16", "expected e4m3"}},
    {"InputNull", [](Arguments& s) { s.problem.input.data = nullptr; }, "input.data", {"null"}},
    {"InputStride", [](Arguments& s) { s.problem.input.strides[3] = 2; }, "input.strides", {"contiguous last dim"}},
    {"OutputShape",
     [](Arguments& s) { s.problem.output.shape[3] = 5; },
     "output.shape",
     {"[2, 3, 8, 5]", "[2, 3, 8, 16]", "input [2, 5, 3, 8]"}},
    {"OutputStrides",
     [](Arguments& s) { s.problem.output.strides[0] = 400; },
     "output.strides",
     {"contiguous row-major"}},
    {"OutputDtype", [](Arguments& s) { s.problem.output.dtype = DType::kBF16; }, "output.dtype", {"bf16", "e4m3"}},
    {"OutputDevice",
     [](Arguments& s) { s.problem.output.device = kGpu; },
     "output.device",
     {"cpu, the device of input"}},
    {"OutputNull", [](Arguments& s) { s.problem.output.data = nullptr; }, "output.data", {"null"}},
};
INSTANTIATE_TEST_SUITE_P(All, BadPackV, testing::ValuesIn(kBadPackV), CaseName());

TEST(GoodQuantize, NothingToDoNeedsNoMemory) {
  for (const std::array<std::int64_t, 3> n : {std::array<std::int64_t, 3>{0, 5, 3}, {2, 0, 3}, {2, 5, 0}}) {
    const auto [b, s, h] = n;
    QuantizeProblem problem;
    problem.input = TensorView::contiguous(nullptr, DType::kBF16, {b, s, h, kD});
    problem.output = MutableTensorView::contiguous(nullptr, DType::kE4M3, {b, s, h, kD});
    problem.scale = MutableTensorView::contiguous(nullptr, DType::kF32, {b, s, h});
    problem.granularity = ScaleGranularity::kTokenHead;
    EXPECT_EQ(supports(problem).reasons, std::vector<std::string>());
    EXPECT_NO_THROW(quantize(problem));
  }
}

}  // namespace
}  // namespace fp8attn::test
