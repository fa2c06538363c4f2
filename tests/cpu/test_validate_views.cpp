// The rules of CUDA tensors, and what has to be accepted on either device: tested on views, without a device.
#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "api/validate.h"
#include "api/view_checks.h"
#include "bad_case.h"
#include "fp8attn/prefill.h"
#include "prefill_arguments.h"

namespace fp8attn::test {
namespace {

using BadPrefillCase = BadCase<PrefillArguments>;

std::vector<std::string> texts_of(const std::vector<Reason>& reasons) { return to_support(reasons).reasons; }

// Views of CUDA tensors.
class BadCudaPrefill : public testing::TestWithParam<BadPrefillCase> {};

TEST_P(BadCudaPrefill, IsReported) {
  PrefillArguments arguments(kGpu);
  GetParam().spoil(arguments);
  expect_only_reason(texts_of(validate(arguments.problem)), GetParam());
}

const BadPrefillCase kBadCuda[] = {
    {"QueryBase", [](PrefillArguments& s) { shift(s.problem.q, 8); }, "q.data", {"multiple of 16 bytes"}},
    {"KeyBase", [](PrefillArguments& s) { shift(s.problem.k, 1); }, "k.data", {"multiple of 16 bytes"}},
    {"ValueBase", [](PrefillArguments& s) { shift(s.problem.v, 4); }, "v.data", {"multiple of 16 bytes"}},
    {"OutBase", [](PrefillArguments& s) { shift(s.problem.out, 2); }, "out.data", {"multiple of 16 bytes"}},
    {"LseBase", [](PrefillArguments& s) { shift(*s.problem.lse, 2); }, "lse.data", {"multiple of 4 bytes"}},
    {"QueryStride",
     [](PrefillArguments& s) { s.problem.q.strides[2] = 72; },
     "q.strides",
     {"72, 1]", "multiple of 16 elements"}},
    {"KeyStrideOf16Bit",
     [](PrefillArguments& s) {
       set_dtype(s.problem, DType::kBF16);
       s.problem.k.strides[1] = 196;
     },
     "k.strides",
     {"196", "multiple of 8 elements"}},
    {"OutStride",
     [](PrefillArguments& s) {
       s.problem.out.strides = {kSQ * kHQ * 36, kHQ * 36, 36, 1};
     },
     "out.strides",
     {"36, 1]", "multiple of 8 elements"}},
    {"PackedValueStride",
     [](PrefillArguments& s) {
       s.problem.v_layout = VLayout::kPacked;
       s.problem.v = TensorView::contiguous(s.v, DType::kE4M3, {kB, kHKV, kDV, 32}, kGpu);
       s.problem.v.strides[2] = 40;
     },
     "v.strides",
     {"40, 1]", "multiple of 16 elements"}},
    {"HugeStride",
     [](PrefillArguments& s) { s.problem.v.strides[0] = std::int64_t{1} << 40; },
     "v.strides",
     {"1099511627776", "below 1099511627776 elements"}},
    {"OutStrideOfBytes",
     [](PrefillArguments& s) {
       s.problem.out.dtype = DType::kE4M3;
       s.problem.out.strides = {kSQ * kHQ * 40, kHQ * 40, 40, 1};
     },
     "out.strides",
     {"40, 1]", "multiple of 16 elements"}},
    {"RecipeValueChannels",
     [](PrefillArguments& s) {
       set_dtype(s.problem, DType::kBF16);
       s.problem.quantize.emplace();
     },
     "v.shape",
     {"32 channels beside quantize", "a multiple of 64 on cuda"}},
    {"OtherDevice",
     [](PrefillArguments& s) { s.problem.k.device.index = 1; },
     "k.device",
     {"cuda:1", "cuda:0, the device of q"}},
    {"KeyScalePerToken",
     [](PrefillArguments& s) {
       s.problem.k_scale = s.scale({kB, kSKV, kHKV});
     },
     "k_scale.shape",
     {"[1] (tensor), [3] (head) or [2, 3] (batch-head) for k on cuda"}},
};
INSTANTIATE_TEST_SUITE_P(Rules, BadCudaPrefill, testing::ValuesIn(kBadCuda), CaseName());

// What has to be accepted.
class GoodPrefill : public testing::TestWithParam<Device> {
 protected:
  PrefillArguments arguments{GetParam()};
  void expect_valid() { EXPECT_EQ(texts_of(validate(arguments.problem)), std::vector<std::string>()); }
};

TEST_P(GoodPrefill, NothingToDoNeedsNoMemory) {
  const PrefillProblem valid = arguments.problem;
  for (int dim = 0; dim < 3; ++dim) {
    PrefillProblem& p = arguments.problem = valid;
    p.q.shape[dim] = p.out.shape[dim] = p.lse->shape[std::array{0, 2, 1}[dim]] = 0;
    if (dim != 1) p.k.shape[dim] = p.v.shape[dim] = 0;
    p.q.data = p.out.data = p.lse->data = nullptr;
    expect_valid();
  }
}

TEST_P(GoodPrefill, NoKeys) {
  arguments.problem.k.shape[1] = arguments.problem.v.shape[1] = 0;
  arguments.problem.k.data = arguments.problem.v.data = nullptr;
  expect_valid();
}

TEST_P(GoodPrefill, StridesOfSizeOneDimsAreNotLookedAt) {
  PrefillProblem& p = arguments.problem;
  p.q.shape[0] = p.k.shape[0] = p.v.shape[0] = p.out.shape[0] = p.lse->shape[0] = 1;
  p.q.strides[0] = -7;
  p.k.strides[0] = 3;
  p.out.strides[0] = p.lse->strides[0] = 0;
  p.v.shape[3] = p.out.shape[3] = 1;
  p.v.strides[3] = p.out.strides[3] = 77;
  expect_valid();
}

TEST_P(GoodPrefill, ExpandedInputsAndScales) {
  arguments.problem.q.strides[0] = arguments.problem.k.strides[2] = arguments.problem.v.strides[1] = 0;
  arguments.problem.k_scale = arguments.scale({kB, kHKV});
  arguments.problem.k_scale->strides = {};
  expect_valid();
}

TEST_P(GoodPrefill, ScaleShapes) {
  for (const TensorView& scale :
       {arguments.scale({}), arguments.scale({1}), arguments.scale({kHQ}), arguments.scale({kB, kHQ})}) {
    arguments.problem.q_scale = scale;
    expect_valid();
  }
  arguments.problem.q_scale = arguments.scale({kB, kSQ, kHQ});
  arguments.problem.v_scale = arguments.scale({kB, kHKV, kDV});
  if (GetParam().kind == DeviceKind::kCpu) arguments.problem.k_scale = arguments.scale({kB, kSKV, kHKV});
  expect_valid();
}

TEST_P(GoodPrefill, Dtypes) {
  using enum DType;
  for (DType out : {kBF16, kFP16, kF32, kE4M3}) {
    for (DType q : {kE4M3, kBF16, kFP16}) {
      arguments.problem.q.dtype = q;
      arguments.problem.out.dtype = out;
      arguments.problem.out_scale.reset();
      if (out == kE4M3) arguments.problem.out_scale = arguments.scale({1});
      arguments.problem.k_scale = arguments.scale({kHKV});  // the keys are e4m3 whatever the query is
      arguments.problem.v_mean = arguments.scale({kB, kHKV, kDV});
      arguments.problem.lse_bias = arguments.scale({kB, kHQ, kSQ});
      expect_valid();
    }
  }
}

TEST_P(GoodPrefill, LongestLengthsAndInterleavedOutputs) {
  PrefillProblem& p = arguments.problem;
  p.k.shape[1] = p.v.shape[1] = kMaxDim;
  // Beyond all other memory, which such tensors would span.
  p.k.data = p.v.data = reinterpret_cast<const void*>(std::uintptr_t{1} << 56);
  // Heads outside tokens, and the gap between two rows used by nothing; likewise at an address of its own.
  p.out.data = reinterpret_cast<void*>(std::uintptr_t{1} << 57);
  p.out.strides = {kSQ * kHQ * kDV * 2, kDV * 2, kSQ * kDV * 2, 1};
  expect_valid();
}

INSTANTIATE_TEST_SUITE_P(Devices, GoodPrefill, testing::Values(Device{}, kGpu),
                         [](const auto& info) { return std::string(name_of(info.param.kind)); });

}  // namespace
}  // namespace fp8attn::test
