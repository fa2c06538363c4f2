// Every bad argument of mla_decode(), append_mla(), gather_mla() and rotate_rope(): which one the reason names, what it
// says, that nothing is written.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "api/mla_decode_variants.h"
#include "api/select_mla_variant.h"
#include "api/validate.h"
#include "bad_case.h"
#include "fp8attn/error.h"
#include "fp8attn/mla_decode.h"

namespace fp8attn::test {
namespace {

constexpr std::int64_t kB = 2, kSQ = 3, kHQ = 5, kPages = 4, kPageSize = 16, kTopk = 6, kN = 3;

// A valid problem of each kind and their memory.
struct MlaArguments {
  alignas(16) std::uint8_t q[kB * kSQ * kHQ * kMlaDim * 2] = {};
  alignas(16) std::uint8_t cache[kPages * kPageSize * 1152] = {};
  alignas(16) std::uint16_t tokens[kN * kMlaDim] = {};
  std::vector<std::uint16_t> out = std::vector<std::uint16_t>(kB * kSQ * kHQ * kLatentDim, 0xA5A5);
  std::vector<float> lse = std::vector<float>(kB * kSQ * kHQ, 456.0f);
  std::vector<std::int32_t> integers = std::vector<std::int32_t>(64, 0);
  std::vector<float> scales = std::vector<float>(64, 1.0f);
  MlaDecodeProblem problem;
  AppendMlaProblem append;
  GatherMlaProblem gather;

  explicit MlaArguments(Device device = {}) {
    problem.q = TensorView::contiguous(q, DType::kBF16, {kB, kSQ, kHQ, kMlaDim}, device);
    problem.cache = TensorView::contiguous(cache, DType::kU8, {kPages, kPageSize, 656}, device);
    problem.out = MutableTensorView::contiguous(out.data(), DType::kBF16, {kB, kSQ, kHQ, kLatentDim}, device);
    problem.lse = MutableTensorView::contiguous(lse.data(), DType::kF32, {kB, kHQ, kSQ}, device);
    problem.block_table = TensorView::contiguous(integers.data(), DType::kI32, {kB, 2}, device);
    problem.lengths = TensorView::contiguous(integers.data(), DType::kI32, {kB}, device);
    append.latent = TensorView::contiguous(tokens, DType::kBF16, {kN, kLatentDim}, device);
    append.rope = TensorView::contiguous(tokens, DType::kBF16, {kN, kRopeDim}, device);
    append.slots = TensorView::contiguous(integers.data(), DType::kI32, {kN}, device);
    append.cache = MutableTensorView::contiguous(cache, DType::kU8, {kPages, kPageSize, 656}, device);
    gather.cache = append.cache;
    gather.slots = append.slots;
    gather.out = MutableTensorView::contiguous(out.data(), DType::kBF16, {kN, kMlaDim}, device);
  }
  void go_sparse() {
    problem.block_table.reset();
    problem.lengths.reset();
    problem.indices = TensorView::contiguous(integers.data(), DType::kI32, {kB, kSQ, kTopk}, problem.q.device);
  }
  void go_tensor() {
    problem.format = append.format = gather.format = CacheFormat::kTensor;
    problem.cache = TensorView::contiguous(cache, DType::kE4M3, {kPages, kPageSize, 576}, problem.q.device);
    append.cache = MutableTensorView::contiguous(cache, DType::kE4M3, {kPages, kPageSize, 576}, problem.q.device);
    gather.cache = append.cache;
  }
  TensorView scale(std::initializer_list<std::int64_t> shape) const {
    return TensorView::contiguous(scales.data(), DType::kF32, shape, problem.q.device);
  }
  bool untouched() const {
    return std::ranges::count(out, 0xA5A5) == std::ssize(out) && std::ranges::count(lse, 456.0f) == std::ssize(lse) &&
           std::ranges::count(cache, std::uint8_t{0}) == std::ssize(cache);
  }
};

using Bad = BadCase<MlaArguments>;

template <class Call>
void expect_error(const char* operation, const Bad& bad, Call call) {
  try {
    call();
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.operation(), operation);
    EXPECT_EQ(error.argument(), bad.argument) << error.what();
  }
}

class BadMlaDecode : public testing::TestWithParam<Bad> {};

TEST_P(BadMlaDecode, IsReportedBySupportsAndThrownBeforeAnythingIsWritten) {
  MlaArguments arguments;
  GetParam().spoil(arguments);
  const Support support = supports(arguments.problem);
  EXPECT_FALSE(support.ok);
  expect_only_reason(support.reasons, GetParam());
  expect_error("mla_decode", GetParam(), [&] { mla_decode(arguments.problem); });
  expect_error("workspace_size", GetParam(), [&] { workspace_size(arguments.problem); });
  EXPECT_TRUE(arguments.untouched());
}

using A = MlaArguments;

const Bad kBadDecode[] = {
    {"QueryChannels", [](A& a) { a.problem.q.shape[3] = 512; }, "q.shape", {"[2, 3, 5, 512]", "[*, *, *, 576]"}},
    {"QueryTokens",
     [](A& a) {
       a.problem.q = TensorView::contiguous(a.q, DType::kBF16, {1, 17, 1, kMlaDim});
       a.problem.out = MutableTensorView::contiguous(a.out.data(), DType::kBF16, {1, 17, 1, kLatentDim});
       a.problem.lse = MutableTensorView::contiguous(a.lse.data(), DType::kF32, {1, 1, 17});
       a.problem.block_table->shape[0] = a.problem.lengths->shape[0] = 1;
     },
     "q.shape",
     {"17 query tokens", "from 1 to 16"}},
    {"QueryHeads",
     [](A& a) { a.problem.q.shape[2] = a.problem.out.shape[2] = a.problem.lse->shape[1] = 0; },
     "q.shape",
     {"0 query heads", "from 1 to 128"}},
    {"QueryDtype", [](A& a) { a.problem.q.dtype = DType::kF32; }, "q.dtype", {"f32 q", "bf16 q with a token128 cache"}},
    {"RecordBytes", [](A& a) { a.problem.cache.shape[2] = 576; }, "cache.shape", {"[4, 16, 576]", "[*, *, 656]"}},
    {"CacheDtype", [](A& a) { a.problem.cache.dtype = DType::kE4M3; }, "cache.dtype", {"e4m3", "u8"}},
    {"PageSize",
     [](A& a) {
       a.problem.cache.shape = {1, 257, 656};
       a.problem.cache.strides = {0, 0, 1};
     },
     "cache.shape",
     {"page size 257", "1 to 256"}},
    {"NoPageSize", [](A& a) { a.problem.cache.shape[1] = 0; }, "cache.shape", {"page size 0", "1 to 256"}},
    {"TooManySlots",
     [](A& a) {
       a.problem.cache.shape[0] = std::int64_t{1} << 28;
       a.problem.cache.strides[0] = 0;
     },
     "cache.shape",
     {"[268435456, 16, 656]", "slots"}},
    {"Format", [](A& a) { a.problem.format = static_cast<CacheFormat>(9); }, "format", {"9", "token128"}},
    {"OutShape", [](A& a) { a.problem.out.shape[3] = 511; }, "out.shape", {"[2, 3, 5, 511]", "[2, 3, 5, 512]"}},
    {"OutDtype", [](A& a) { a.problem.out.dtype = DType::kE4M3; }, "out.dtype", {"e4m3", "bf16, fp16 or f32"}},
    {"OutOverlaps", [](A& a) { a.problem.out.strides[2] = 0; }, "out.strides", {"do not overlap"}},
    {"OutInQuery", [](A& a) { a.problem.out.data = a.q; }, "out.data", {"in the memory of q"}},
    {"LseShape", [](A& a) { a.problem.lse->shape[1] = 4; }, "lse.shape", {"[2, 4, 3]", "[2, 5, 3]"}},
    {"LseInOut", [](A& a) { a.problem.lse->data = a.out.data(); }, "lse.data", {"in the memory of out"}},
    {"NoTable", [](A& a) { a.problem.block_table.reset(); }, "block_table", {"none", "block_table and lengths"}},
    {"NoLengths", [](A& a) { a.problem.lengths.reset(); }, "lengths", {"none", "lengths beside block_table"}},
    {"TableBatch", [](A& a) { a.problem.block_table->shape[0] = 1; }, "block_table.shape", {"[1, 2]", "[2, *]"}},
    {"TableDtype", [](A& a) { a.problem.block_table->dtype = DType::kF32; }, "block_table.dtype", {"int32 or int64"}},
    {"TableStride",
     [](A& a) { a.problem.block_table->strides[1] = 2; },
     "block_table.strides",
     {"contiguous last dim"}},
    {"TableTooLong",
     [](A& a) { a.problem.block_table->shape[1] = std::int64_t{1} << 28; },
     "block_table.shape",
     {"pages of 16", "tokens"}},
    {"LengthsShape", [](A& a) { a.problem.lengths->shape[0] = 3; }, "lengths.shape", {"[3]", "[2]"}},
    {"LengthsNull", [](A& a) { a.problem.lengths->data = nullptr; }, "lengths.data", {"null pointer"}},
    {"TableBesideIndices",
     [](A& a) {
       const auto table = a.problem.block_table;
       a.go_sparse();
       a.problem.block_table = table;
     },
     "block_table",
     {"beside indices"}},
    {"LengthsBesideIndices",
     [](A& a) {
       const auto lengths = a.problem.lengths;
       a.go_sparse();
       a.problem.lengths = lengths;
     },
     "lengths",
     {"beside indices", "topk_length"}},
    {"TopkLengthAlone",
     [](A& a) {
       a.problem.topk_length = TensorView::contiguous(a.integers.data(), DType::kI32, {kB, kSQ});
     },
     "topk_length",
     {"without indices"}},
    {"IndicesShape",
     [](A& a) {
       a.go_sparse();
       a.problem.indices->shape[1] = 2;
     },
     "indices.shape",
     {"[2, 2, 6]", "[2, 3, *]"}},
    {"TopkLengthShape",
     [](A& a) {
       a.go_sparse();
       a.problem.topk_length = TensorView::contiguous(a.integers.data(), DType::kI32, {kB});
     },
     "topk_length.shape",
     {"rank 2"}},
    {"CausalSparse",
     [](A& a) {
       a.go_sparse();
       a.problem.causal = true;
     },
     "causal",
     {"true with indices", "false"}},
    {"QueryScaleOfBf16", [](A& a) { a.problem.q_scale = a.scale({1}); }, "q_scale", {"bf16 q", "only e4m3"}},
    {"QueryScaleShape",
     [](A& a) {
       a.problem.q.dtype = DType::kE4M3;
       a.problem.q_scale = a.scale({2, 3});
     },
     "q_scale.shape",
     {"[2, 3]", "[5] (head)", "[2, 3, 5] (token-head)"}},
    {"CacheScaleOfToken128", [](A& a) { a.problem.cache_scale = a.scale({1}); }, "cache_scale", {"token128", "tensor"}},
    {"CacheScaleShape",
     [](A& a) {
       a.go_tensor();
       a.problem.cache_scale = a.scale({2});
     },
     "cache_scale.shape",
     {"[2]", "[1]"}},
    {"SinkShape", [](A& a) { a.problem.attention_sink = a.scale({4}); }, "attention_sink.shape", {"[4]", "[5]"}},
    {"SoftmaxScale", [](A& a) { a.problem.softmax_scale = INFINITY; }, "softmax_scale", {"inf", "finite"}},
    {"Arithmetic",
     [](A& a) { a.problem.cpu_arithmetic = static_cast<CpuArithmetic>(8); },
     "cpu_arithmetic",
     {"8", "emulated13"}},
};

INSTANTIATE_TEST_SUITE_P(All, BadMlaDecode, testing::ValuesIn(kBadDecode), CaseName{});

class BadCacheAccess : public testing::TestWithParam<Bad> {};

TEST_P(BadCacheAccess, OfAppend) {
  MlaArguments arguments;
  GetParam().spoil(arguments);
  expect_only_reason(supports(arguments.append).reasons, GetParam());
  expect_error("append_mla", GetParam(), [&] { append_mla(arguments.append); });
  EXPECT_TRUE(arguments.untouched());
}

const Bad kBadAppend[] = {
    {"LatentChannels", [](A& a) { a.append.latent.shape[1] = 576; }, "latent.shape", {"[3, 576]", "[3, 512]"}},
    {"RopeTokens", [](A& a) { a.append.rope.shape[0] = 2; }, "rope.shape", {"[2, 64]", "[3, 64]"}},
    {"RopeDtype", [](A& a) { a.append.rope.dtype = DType::kFP16; }, "rope.dtype", {"fp16", "bf16"}},
    {"SlotsRank", [](A& a) { a.append.slots.rank = 2; }, "slots.shape", {"rank 1"}},
    {"SlotsDtype", [](A& a) { a.append.slots.dtype = DType::kF32; }, "slots.dtype", {"int32 or int64"}},
    {"CacheShape", [](A& a) { a.append.cache.shape[2] = 640; }, "cache.shape", {"[4, 16, 640]", "[*, *, 656]"}},
    {"CacheOverlaps", [](A& a) { a.append.cache.strides[0] = 0; }, "cache.strides", {"do not overlap"}},
    {"CacheInLatent",
     [](A& a) {
       a.append.cache.data = a.tokens;
       a.append.cache.shape[0] = a.append.cache.shape[1] = 1;
       a.append.rope.data = a.q;
     },
     "cache.data",
     {"in the memory of latent"}},
    {"CacheScale", [](A& a) { a.append.cache_scale = a.scale({}); }, "cache_scale", {"token128", "tensor"}},
    {"Device", [](A& a) { a.append.slots.device.index = 1; }, "slots.device", {"cpu:1", "the device of cache"}},
};

INSTANTIATE_TEST_SUITE_P(All, BadCacheAccess, testing::ValuesIn(kBadAppend),
                         [](const auto& info) { return std::string(info.param.name); });

class BadGather : public testing::TestWithParam<Bad> {};

TEST_P(BadGather, IsReported) {
  MlaArguments arguments;
  GetParam().spoil(arguments);
  expect_only_reason(supports(arguments.gather).reasons, GetParam());
  expect_error("gather_mla", GetParam(), [&] { gather_mla(arguments.gather); });
  EXPECT_TRUE(arguments.untouched());
}

const Bad kBadGather[] = {
    {"OutShape", [](A& a) { a.gather.out.shape[0] = 4; }, "out.shape", {"[4, 576]", "[3, 576]"}},
    {"OutDtype", [](A& a) { a.gather.out.dtype = DType::kF32; }, "out.dtype", {"f32", "bf16"}},
    {"OutInCache", [](A& a) { a.gather.out.data = a.cache; }, "out.data", {"in the memory of cache"}},
    {"CacheDtype", [](A& a) { a.gather.cache.dtype = DType::kI32; }, "cache.dtype", {"int32", "u8"}},
};

INSTANTIATE_TEST_SUITE_P(All, BadGather, testing::ValuesIn(kBadGather), CaseName{});

TEST(BadRotateRope, IsReported) {
  MlaArguments a;
  const auto argument_of = [](const TensorView& input, const MutableTensorView& output) {
    try {
      rotate_rope(input, output);
    } catch (const Error& error) {
      return error.argument();
    }
    return std::string("none");
  };
  const TensorView q = a.problem.q;
  const auto same = MutableTensorView::contiguous(a.q, DType::kBF16, {kB, kSQ, kHQ, kMlaDim});
  EXPECT_EQ(argument_of(q, same), "none");
  MutableTensorView wrong = same;
  wrong.shape[3] = 64;
  EXPECT_EQ(argument_of(q, wrong), "output.shape");
  wrong = same;
  wrong.dtype = DType::kE4M3;
  EXPECT_EQ(argument_of(q, wrong), "output.dtype");
  wrong = same;
  wrong.data = a.q + 2;
  EXPECT_EQ(argument_of(q, wrong), "output.data");
}

// Rules of CUDA tensors, which need no GPU to be checked.
TEST(ValidateMla, CudaWantsSixteenByteGranules) {
  const Device gpu{DeviceKind::kCuda, 0};
  const auto first_argument = [](const std::vector<Reason>& reasons) {
    return reasons.empty() ? std::string("none") : reasons.front().argument;
  };
  MlaArguments good(gpu);
  EXPECT_EQ(first_argument(validate(good.problem)), "none");
  EXPECT_EQ(first_argument(validate(good.append)), "none");
  EXPECT_EQ(first_argument(validate(good.gather)), "none");
  MlaArguments bad(gpu);
  bad.problem.cache.strides[1] = 656 + 8;
  EXPECT_EQ(first_argument(validate(bad.problem)), "cache.strides");
  bad.append.cache.strides[1] = 656 + 8;
  bad.append.cache.strides[0] = kPageSize * (656 + 8);
  EXPECT_EQ(first_argument(validate(bad.append)), "cache.strides");
  bad = MlaArguments(gpu);
  bad.problem.out.dtype = DType::kF32;
  EXPECT_EQ(first_argument(validate(bad.problem)), "out.dtype");
}

TEST(SelectMlaVariant, SaysWhatExists) {
  const MlaDecodeVariant rows[] = {
      {"a", DeviceKind::kCuda, DType::kBF16, CacheFormat::kToken, Addressing::kDense, nullptr, nullptr, nullptr},
      {"b", DeviceKind::kCuda, DType::kBF16, CacheFormat::kToken128, Addressing::kDense, "FP8ATTN_X", nullptr, nullptr},
  };
  MlaArguments a({DeviceKind::kCuda, 0});
  a.problem.format = CacheFormat::kToken;
  EXPECT_STREQ(select_mla_variant(a.problem, rows).variant->name, "a");
  a.go_sparse();
  EXPECT_EQ(
      select_mla_variant(a.problem, rows).reasons.front().text(),
      "q.dtype: got bf16 q with a token cache, sparse on cuda, expected bf16 q with a token cache, dense or bf16 q "
      "with a token128 cache, dense");
  MlaArguments b({DeviceKind::kCuda, 0});
  EXPECT_EQ(select_mla_variant(b.problem, rows).reasons.front().argument, "variant");
  EXPECT_EQ(select_mla_variant(b.problem, {}).reasons.front().expected, "a device that has kernels of MLA decode");
}

TEST(MlaVariants, CpuRowsComeFirstAndRowsWithoutALauncherSayWhy) {
  bool cuda_seen = false;
  for (const MlaDecodeVariant& variant : mla_decode_variants()) {
    cuda_seen |= variant.device == DeviceKind::kCuda;
    EXPECT_EQ(cuda_seen, variant.device == DeviceKind::kCuda) << variant.name;
    EXPECT_EQ(variant.launch == nullptr, variant.left_out_by != nullptr) << variant.name;
  }
}

TEST(MlaDecode, B_NothingToDoReturns) {
  MlaArguments a;
  a.problem.q.shape[0] = a.problem.out.shape[0] = a.problem.lse->shape[0] = 0;
  a.problem.block_table->shape[0] = a.problem.lengths->shape[0] = 0;
  EXPECT_NO_THROW(mla_decode(a.problem));
  a.append.slots.shape[0] = a.append.latent.shape[0] = a.append.rope.shape[0] = 0;
  EXPECT_NO_THROW(append_mla(a.append));
  EXPECT_TRUE(a.untouched());
}

}  // namespace
}  // namespace fp8attn::test
