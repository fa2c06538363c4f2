// Every bad argument of prefill(), on the CPU: which one the reason names, what it says, that nothing is written.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>

#include "bad_case.h"
#include "fp8attn/error.h"
#include "fp8attn/prefill.h"
#include "prefill_arguments.h"

namespace fp8attn::test {
namespace {

using BadPrefillCase = BadCase<PrefillArguments>;

// Problems that no device takes, on the CPU.
class BadPrefill : public testing::TestWithParam<BadPrefillCase> {};

TEST_P(BadPrefill, IsReportedBySupportsAndThrownBeforeAnythingIsWritten) {
  PrefillArguments arguments;
  GetParam().spoil(arguments);
  const Support support = supports(arguments.problem);
  EXPECT_FALSE(support.ok);
  expect_only_reason(support.reasons, GetParam());
  try {
    prefill(arguments.problem);
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.operation(), "prefill");
    EXPECT_EQ(error.argument(), GetParam().argument);
    EXPECT_EQ("prefill: " + support.reasons.front(), error.what());
  }
  EXPECT_THROW(workspace_size(arguments.problem), Error);
  EXPECT_TRUE(arguments.untouched());
}

const BadPrefillCase kBadShapes[] = {
    {"QueryRank",
     [](PrefillArguments& s) {
       s.problem.q = TensorView::contiguous(s.q, DType::kE4M3, {2, 7, 6});
     },
     "q.shape",
     {"[2, 7, 6],", "rank 4", "[b, s_q, h_q, d_qk]"}},
    {"QueryRankOutOfRange", [](PrefillArguments& s) { s.problem.q.rank = 9; }, "q.shape", {"rank 9", "rank 4"}},
    {"NegativeRank", [](PrefillArguments& s) { s.problem.v.rank = -1; }, "v.shape", {"rank -1", "rank 4"}},
    {"NegativeDim",
     [](PrefillArguments& s) { s.problem.q.shape[1] = -1; },
     "q.shape",
     {"[2, -1, 6, 64]", "dims from 0"}},
    {"TooManyKeys",
     [](PrefillArguments& s) { s.problem.k.shape[1] = 2147482624; },
     "k.shape",
     {"2147482624", "0 to 2147482623"}},
    {"KeyBatch",
     [](PrefillArguments& s) { s.problem.k.shape[0] = 3; },
     "k.shape",
     {"[3, 20, 3, 64]", "[2, *, *, 64]", "[b, s_kv, h_kv, d_qk]", "q [2, 7, 6, 64]"}},
    {"KeyHeadDim",
     [](PrefillArguments& s) { s.problem.k.shape[3] = 32; },
     "k.shape",
     {"[2, 20, 3, 32]", "[2, *, *, 64]"}},
    {"ValueTokens",
     [](PrefillArguments& s) { s.problem.v.shape[1] = 21; },
     "v.shape",
     {"[2, 21, 3, 32]", "[2, 20, 3, *]", "k [2, 20, 3, 64]"}},
    {"ValueHeads",
     [](PrefillArguments& s) { s.problem.v.shape[2] = 6; },
     "v.shape",
     {"[2, 20, 6, 32]", "[2, 20, 3, *]"}},
    {"PackedValueShape",
     [](PrefillArguments& s) { s.problem.v_layout = VLayout::kPacked; },
     "v.shape",
     {"[2, 20, 3, 32]", "[2, 3, *, 32]", "rounded up to 16"}},
    {"HeadGroups",
     [](PrefillArguments& s) { s.problem.k.shape[2] = s.problem.v.shape[2] = 4; },
     "k.shape",
     {"4 heads", "divisor of the 6 heads of q"}},
    {"NoKeyHeads",
     [](PrefillArguments& s) { s.problem.k.shape[2] = s.problem.v.shape[2] = 0; },
     "k.shape",
     {"0 heads", "divisor of the 6 heads of q"}},
    {"NoQueryChannels",
     [](PrefillArguments& s) { s.problem.q.shape[3] = s.problem.k.shape[3] = 0; },
     "q.shape",
     {"[2, 7, 6, 0]", "at least one channel"}},
    {"NoValueChannels",
     [](PrefillArguments& s) { s.problem.v.shape[3] = s.problem.out.shape[3] = 0; },
     "v.shape",
     {"[2, 20, 3, 0]", "at least one channel"}},
    {"OutShape",
     [](PrefillArguments& s) { s.problem.out.shape[3] = 31; },
     "out.shape",
     {"[2, 7, 6, 31]", "[2, 7, 6, 32]", "q [2, 7, 6, 64] and v [2, 20, 3, 32]"}},
    {"LseShape", [](PrefillArguments& s) { s.problem.lse->shape[2] = 6; }, "lse.shape", {"[2, 6, 6]", "[2, 6, 7]"}},
    {"LseRank",
     [](PrefillArguments& s) {
       s.problem.lse = MutableTensorView::contiguous(s.lse.data(), DType::kF32, {2, 6});
     },
     "lse.shape",
     {"[2, 6],", "rank 3, [b, h_q, s_q]"}},
    {"ValueMeanShape",
     [](PrefillArguments& s) {
       s.problem.v_mean = s.scale({2, 6, 32});
     },
     "v_mean.shape",
     {"[2, 6, 32]", "[2, 3, 32]", "[b, h_kv, d_v]"}},
    {"LseBiasShape",
     [](PrefillArguments& s) {
       s.problem.lse_bias = s.scale({2, 7, 6});
     },
     "lse_bias.shape",
     {"[2, 7, 6]", "[2, 6, 7]", "[b, h_q, s_q]"}},
    {"LseBiasWithoutLse",
     [](PrefillArguments& s) {
       s.problem.lse_bias = s.scale({2, 6, 7});
       s.problem.lse.reset();
     },
     "lse_bias",
     {"no lse", "an lse to add it to"}},
    {"ValueMeanOf16Bits",
     [](PrefillArguments& s) {
       set_dtype(s.problem, DType::kBF16);
       s.problem.v_mean = s.scale({2, 3, 32});
     },
     "v_mean",
     {"bf16", "only e4m3"}},
    {"ValueMeanDtype",
     [](PrefillArguments& s) {
       s.problem.v_mean = s.scale({2, 3, 32});
       s.problem.v_mean->dtype = DType::kBF16;
     },
     "v_mean.dtype",
     {"bf16", "f32"}},
    {"RecipeForE4M3",
     [](PrefillArguments& s) { s.problem.quantize.emplace(); },
     "quantize",
     {"e4m3", "quantised already"}},
    {"RecipeForIntegers",
     [](PrefillArguments& s) {
       set_dtype(s.problem, DType::kI32);
       s.problem.quantize.emplace();
     },
     "q.dtype",
     {"int32", "bf16 or fp16"}},
    {"RecipeForE4M3Keys",
     [](PrefillArguments& s) {
       s.problem.q.dtype = DType::kBF16;
       s.problem.quantize.emplace();
     },
     "quantize",
     {"e4m3", "quantised already"}},
    {"RecipeWithPackedValue",
     [](PrefillArguments& s) {
       set_dtype(s.problem, DType::kBF16);
       s.problem.quantize.emplace();
       s.problem.v_layout = VLayout::kPacked;
       s.problem.v = TensorView::contiguous(s.v, DType::kBF16, {2, 3, 32, 32});
     },
     "v_layout",
     {"packed beside quantize", "row-major"}},
    {"RecipeQueryScale",
     [](PrefillArguments& s) {
       set_dtype(s.problem, DType::kBF16);
       s.problem.quantize = QuantizeRecipe{.q_scale = ScaleGranularity::kTensor};
     },
     "quantize.q_scale",
     {"tensor", "token-head or batch-head"}},
    {"RecipeValueScale",
     [](PrefillArguments& s) {
       set_dtype(s.problem, DType::kBF16);
       s.problem.quantize = QuantizeRecipe{.v_scale = static_cast<ScaleGranularity>(17)};
     },
     "quantize.v_scale",
     {"17 (not a value", "batch-head or channel"}},
    {"RecipeRotation",
     [](PrefillArguments& s) {
       set_dtype(s.problem, DType::kBF16);
       s.problem.q.shape[3] = s.problem.k.shape[3] = 48;
       s.problem.quantize = QuantizeRecipe{.hadamard = true};
     },
     "quantize.hadamard",
     {"head dim 48", "64, 128, 192 or 256"}},
    {"RecipeWithScale",
     [](PrefillArguments& s) {
       set_dtype(s.problem, DType::kBF16);
       s.problem.quantize.emplace();
       s.problem.k_scale = s.scale({3});
     },
     "k_scale",
     {"only e4m3 tensors have scales"}},
};
INSTANTIATE_TEST_SUITE_P(Shapes, BadPrefill, testing::ValuesIn(kBadShapes), CaseName());

const BadPrefillCase kBadTypes[] = {
    {"QueryDtype",
     [](PrefillArguments& s) { set_dtype(s.problem, DType::kI32); },
     "q.dtype",
     {"int32 on cpu", "e4m3, bf16, fp16 or f32"}},
    {"QueryDtypeAlone",
     [](PrefillArguments& s) { s.problem.q.dtype = DType::kI32; },
     "q.dtype",
     {"int32", "e4m3, bf16, fp16 or f32"}},
    {"KeyDtype",
     [](PrefillArguments& s) { s.problem.k.dtype = DType::kBF16; },
     "k.dtype",
     {"bf16", "e4m3, the dtype of q"}},
    {"ValueDtype",
     [](PrefillArguments& s) { s.problem.v.dtype = DType::kFP16; },
     "v.dtype",
     {"fp16", "e4m3, the dtype of k"}},
    {"KeyAndValueDtype",
     [](PrefillArguments& s) { s.problem.k.dtype = s.problem.v.dtype = DType::kBF16; },
     "k.dtype",
     {"bf16", "e4m3, the dtype of q"}},
    {"KeyDtypeOf16BitQuery",
     [](PrefillArguments& s) {
       set_dtype(s.problem, DType::kBF16);
       s.problem.k.dtype = DType::kFP16;
     },
     "k.dtype",
     {"fp16", "bf16, the dtype of q, or e4m3"}},
    {"ValueDtypeBesideE4M3Keys",
     [](PrefillArguments& s) { s.problem.q.dtype = s.problem.v.dtype = DType::kBF16; },
     "v.dtype",
     {"bf16", "e4m3, the dtype of k"}},
    {"E4M3KeysOfFloatQuery",
     [](PrefillArguments& s) { s.problem.q.dtype = DType::kF32; },
     "k.dtype",
     {"e4m3", "f32, the dtype of q"}},
    {"OutDtype",
     [](PrefillArguments& s) { s.problem.out.dtype = DType::kI32; },
     "out.dtype",
     {"int32", "bf16, fp16, f32 or e4m3"}},
    {"LseDtype", [](PrefillArguments& s) { s.problem.lse->dtype = DType::kBF16; }, "lse.dtype", {"bf16", "f32"}},
    {"PackedNeedsE4M3",
     [](PrefillArguments& s) {
       set_dtype(s.problem, DType::kBF16);
       s.problem.v_layout = VLayout::kPacked;
       s.problem.v = TensorView::contiguous(s.v, DType::kBF16, {kB, kHKV, kDV, 32});
     },
     "v_layout",
     {"packed with bf16 on cpu", "expected row-major"}},
    {"SoftmaxScaleNaN", [](PrefillArguments& s) { s.problem.softmax_scale = NAN; }, "softmax_scale", {"nan", "finite"}},
    {"SoftmaxScaleInfinite",
     [](PrefillArguments& s) { s.problem.softmax_scale = -INFINITY; },
     "softmax_scale",
     {"-inf", "finite"}},
    {"NoSuchQueryDtype",
     [](PrefillArguments& s) { set_dtype(s.problem, static_cast<DType>(9)); },
     "q.dtype",
     {"got 9 (not a value of the enum) on cpu", "e4m3, bf16, fp16 or f32"}},
    {"NoSuchKeyDtype",
     [](PrefillArguments& s) { s.problem.k.dtype = static_cast<DType>(9); },
     "k.dtype",
     {"got 9 (not", "e4m3, the dtype of q"}},
    {"NoSuchOutDtype",
     [](PrefillArguments& s) { s.problem.out.dtype = static_cast<DType>(255); },
     "out.dtype",
     {"got 255 (not", "bf16, fp16, f32 or e4m3"}},
    {"NoSuchValueLayout",
     [](PrefillArguments& s) { s.problem.v_layout = static_cast<VLayout>(2); },
     "v_layout",
     {"got 2 (not", "row-major or packed"}},
    {"NoSuchPMode",
     [](PrefillArguments& s) { s.problem.p_mode = static_cast<PMode>(3); },
     "p_mode",
     {"got 3 (not", "exact, default or fast"}},
    {"NoSuchLseBase",
     [](PrefillArguments& s) { s.problem.lse_base = static_cast<LseBase>(2); },
     "lse_base",
     {"got 2 (not", "e or 2"}},
    {"NoSuchArithmetic",
     [](PrefillArguments& s) { s.problem.cpu_arithmetic = static_cast<CpuArithmetic>(4); },
     "cpu_arithmetic",
     {"got 4 (not", "float32, float64, emulated or emulated13"}},
    {"NoSuchDevice",
     [](PrefillArguments& s) {
       for (Device* device : {&s.problem.q.device, &s.problem.k.device, &s.problem.v.device, &s.problem.out.device,
                              &s.problem.lse->device}) {
         device->kind = static_cast<DeviceKind>(7);
       }
     },
     "q.device",
     {"a device of kind 7", "expected cpu or cuda"}},
    {"CpuIndex",
     [](PrefillArguments& s) {
       for (Device* device : {&s.problem.q.device, &s.problem.k.device, &s.problem.v.device, &s.problem.out.device,
                              &s.problem.lse->device}) {
         device->index = 1;
       }
     },
     "q.device",
     {"cpu:1"}},
    {"KeyDevice",
     [](PrefillArguments& s) { s.problem.k.device = kGpu; },
     "k.device",
     {"cuda:0", "cpu, the device of q"}},
    {"ValueDevice",
     [](PrefillArguments& s) { s.problem.v.device = kGpu; },
     "v.device",
     {"cuda:0", "cpu, the device of q"}},
    {"OutDevice",
     [](PrefillArguments& s) { s.problem.out.device = kGpu; },
     "out.device",
     {"cuda:0", "cpu, the device of q"}},
    {"LseDevice",
     [](PrefillArguments& s) { s.problem.lse->device = kGpu; },
     "lse.device",
     {"cuda:0", "cpu, the device of q"}},
};
INSTANTIATE_TEST_SUITE_P(Types, BadPrefill, testing::ValuesIn(kBadTypes), CaseName());

const BadPrefillCase kBadMemory[] = {
    {"LastDimStride",
     [](PrefillArguments& s) { s.problem.q.strides[3] = 2; },
     "q.strides",
     {"2] with shape", "contiguous"}},
    {"NegativeStride",
     [](PrefillArguments& s) { s.problem.k.strides[1] = -192; },
     "k.strides",
     {"-192", "no negative"}},
    {"NullQuery", [](PrefillArguments& s) { s.problem.q.data = nullptr; }, "q.data", {"null", "[2, 7, 6, 64]"}},
    {"NullKey", [](PrefillArguments& s) { s.problem.k.data = nullptr; }, "k.data", {"null"}},
    {"NullValue", [](PrefillArguments& s) { s.problem.v.data = nullptr; }, "v.data", {"null"}},
    {"NullOut", [](PrefillArguments& s) { s.problem.out.data = nullptr; }, "out.data", {"null"}},
    {"NullLse", [](PrefillArguments& s) { s.problem.lse->data = nullptr; }, "lse.data", {"null"}},
    {"MisalignedOut", [](PrefillArguments& s) { shift(s.problem.out, 2); }, "out.data", {"multiple of 4 bytes"}},
    {"ExpandedOut",
     [](PrefillArguments& s) { s.problem.out.strides[0] = 0; },
     "out.strides",
     {"[0, 192", "not overlap"}},
    {"OverlappingRows",
     [](PrefillArguments& s) { s.problem.out.strides[2] = 31; },
     "out.strides",
     {"31, 1]", "not overlap"}},
    {"OverlappingBatches", [](PrefillArguments& s) { s.problem.out.strides[0] = 192; }, "out.strides", {"not overlap"}},
    {"ExpandedLse", [](PrefillArguments& s) { s.problem.lse->strides[1] = 0; }, "lse.strides", {"not overlap"}},
    {"LseStride",
     [](PrefillArguments& s) {
       s.problem.lse->strides = {kHQ * kSQ * 3, kSQ * 3, 3};
     },
     "lse.strides",
     {"contiguous"}},
};
INSTANTIATE_TEST_SUITE_P(Memory, BadPrefill, testing::ValuesIn(kBadMemory), CaseName());

const BadPrefillCase kBadScales[] = {
    {"QueryShape",
     [](PrefillArguments& s) { s.problem.q_scale = s.scale({5}); },
     "q_scale.shape",
     {"got [5]", "[1] (tensor), [6] (head), [2, 6] (batch-head) or [2, 7, 6] (token-head) for q on cpu"}},
    {"KeyPerChannel",
     [](PrefillArguments& s) {
       s.problem.k_scale = s.scale({kB, kHKV, kDQK});
     },
     "k_scale.shape",
     {"got [2, 3, 64]", "[2, 20, 3] (token-head) for k"}},
    {"ValuePerToken",
     [](PrefillArguments& s) {
       s.problem.v_scale = s.scale({kB, kSKV, kHKV});
     },
     "v_scale.shape",
     {"got [2, 20, 3]", "[2, 3, 32] (channel) for v"}},
    {"ValueRank",
     [](PrefillArguments& s) {
       s.problem.v_scale = s.scale({1, 1, 1, 1});
     },
     "v_scale.shape",
     {"got [1, 1, 1, 1]"}},
    {"Dtype",
     [](PrefillArguments& s) {
       s.problem.q_scale = s.scale({1});
       s.problem.q_scale->dtype = DType::kBF16;
     },
     "q_scale.dtype",
     {"bf16", "f32"}},
    {"Device",
     [](PrefillArguments& s) {
       s.problem.k_scale = s.scale({1});
       s.problem.k_scale->device = kGpu;
     },
     "k_scale.device",
     {"cuda:0", "cpu, the device of q"}},
    {"Null",
     [](PrefillArguments& s) {
       s.problem.v_scale = s.scale({});
       s.problem.v_scale->data = nullptr;
     },
     "v_scale.data",
     {"null"}},
    {"NegativeStride",
     [](PrefillArguments& s) {
       s.problem.q_scale = s.scale({kHQ});
       s.problem.q_scale->strides[0] = -1;
     },
     "q_scale.strides",
     {"[-1]", "no negative"}},
    {"Misaligned",
     [](PrefillArguments& s) {
       s.problem.q_scale = s.scale({kHQ});
       shift(*s.problem.q_scale, 1);
     },
     "q_scale.data",
     {"multiple of 4 bytes"}},
    {"OfBf16",
     [](PrefillArguments& s) {
       set_dtype(s.problem, DType::kBF16);
       s.problem.v_scale = s.scale({1});
     },
     "v_scale",
     {"a scale of bf16 v", "only e4m3"}},
    {"Of16BitQuery",
     [](PrefillArguments& s) {
       s.problem.q.dtype = DType::kBF16;
       s.problem.q_scale = s.scale({1});
     },
     "q_scale",
     {"a scale of bf16 q", "only e4m3"}},
    {"OutOfFloats",
     [](PrefillArguments& s) { s.problem.out_scale = s.scale({1}); },
     "out_scale",
     {"a scale of f32 out", "only e4m3"}},
    {"OutPerHead",
     [](PrefillArguments& s) {
       s.problem.out.dtype = DType::kE4M3;
       s.problem.out_scale = s.scale({kHQ});
     },
     "out_scale.shape",
     {"got [6]", "[1] or rank 0"}},
    {"OutDevice",
     [](PrefillArguments& s) {
       s.problem.out.dtype = DType::kE4M3;
       s.problem.out_scale = s.scale({});
       s.problem.out_scale->device = kGpu;
     },
     "out_scale.device",
     {"cuda:0", "cpu, the device of q"}},
};
INSTANTIATE_TEST_SUITE_P(Scales, BadPrefill, testing::ValuesIn(kBadScales), CaseName());

TEST(BadPrefillTogether, SupportsGivesEveryReason) {
  PrefillArguments arguments;
  arguments.problem.k.shape[0] = 3;
  arguments.problem.v.dtype = DType::kBF16;
  arguments.problem.out.data = nullptr;
  arguments.problem.softmax_scale = NAN;
  arguments.problem.q_scale = arguments.scale({5});
  const Support support = supports(arguments.problem);
  ASSERT_EQ(support.reasons.size(), 5u) << testing::PrintToString(support.reasons);
  for (const char* argument : {"k.shape", "v.dtype", "out.data", "softmax_scale", "q_scale.shape"}) {
    EXPECT_TRUE(std::ranges::any_of(support.reasons, [&](auto& reason) { return reason.starts_with(argument); }))
        << argument;
  }
}

}  // namespace
}  // namespace fp8attn::test
