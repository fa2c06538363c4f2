// Ragged and paged batches, masks: every bad argument, and what has to be accepted, on either device.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "api/validate.h"
#include "bad_case.h"
#include "batch_arguments.h"
#include "fp8attn/error.h"
#include "fp8attn/prefill.h"

namespace fp8attn::test {
namespace {

using BadBatchCase = BadCase<BatchArguments>;
using Texts = std::vector<std::string>;

Texts texts_of(const PrefillProblem& problem) { return to_support(validate(problem)).reasons; }

class BadBatch : public testing::TestWithParam<BadBatchCase> {};

TEST_P(BadBatch, IsReportedAndThrownBeforeAnythingIsWritten) {
  BatchArguments arguments;
  GetParam().spoil(arguments);
  expect_only_reason(supports(arguments.problem).reasons, GetParam());
  EXPECT_THROW(prefill(arguments.problem), Error);
  EXPECT_THROW(workspace_size(arguments.problem), Error);
  EXPECT_TRUE(arguments.untouched());
}

const BadBatchCase kBadLayouts[] = {
    {"OffsetsBesideTable",
     [](BatchArguments& s) {
       s.make_keys_paged(16);
       s.problem.kv_offsets = s.view(s.kv_offsets, DType::kI32, {kB + 1});
     },
     "kv_offsets",
     {"beside block_table", "ragged or paged"}},
    {"TableWithoutLengths",
     [](BatchArguments& s) {
       s.make_keys_paged(16);
       s.problem.kv_lengths.reset();
     },
     "kv_lengths",
     {"none beside block_table", "expected lengths"}},
    {"LengthsBesideOffsets",
     [](BatchArguments& s) {
       s.make_keys_ragged();
       s.give_lengths();
     },
     "kv_lengths",
     {"beside kv_offsets", "expected none"}},
    {"PackedValueOfRaggedKeys",
     [](BatchArguments& s) {
       s.make_keys_ragged();
       s.problem.v_layout = VLayout::kPacked;
       s.problem.v = s.view(s.v, DType::kE4M3, {kHKV, kDV, packed_length(kTotalKV)});
     },
     "v_layout",
     {"packed beside kv_offsets", "row-major"}},
    {"PackedPages",
     [](BatchArguments& s) {
       s.make_keys_paged(24);
       s.pack_values();
     },
     "v_layout",
     {"packed with a page size of 24", "row-major, or a page size that is a multiple of 16 on cpu"}},
    {"RecipeForRaggedQueries",
     [](BatchArguments& s) {
       set_dtype(s.problem, DType::kBF16);
       s.make_queries_ragged();
       s.problem.quantize.emplace();
     },
     "q_offsets",
     {"beside quantize", "dense batches of even lengths"}},
    {"RecipeForRaggedKeys",
     [](BatchArguments& s) {
       set_dtype(s.problem, DType::kBF16);
       s.make_keys_ragged();
       s.problem.quantize.emplace();
     },
     "kv_offsets",
     {"beside quantize"}},
    {"RecipeForPages",
     [](BatchArguments& s) {
       set_dtype(s.problem, DType::kBF16);
       s.make_keys_paged(16);
       s.problem.quantize.emplace();
     },
     "block_table",
     {"beside quantize"}},
    {"RecipeForLengths",
     [](BatchArguments& s) {
       set_dtype(s.problem, DType::kBF16);
       s.give_lengths();
       s.problem.quantize.emplace();
     },
     "kv_lengths",
     {"beside quantize"}},
};
INSTANTIATE_TEST_SUITE_P(Layouts, BadBatch, testing::ValuesIn(kBadLayouts), CaseName());

const BadBatchCase kBadShapes[] = {
    {"RaggedQueryOfFourDims",
     [](BatchArguments& s) {
       s.make_queries_ragged();
       s.problem.q = s.view(s.q, DType::kE4M3, {1, kTotalQ, kHQ, kDQK});
     },
     "q.shape",
     {"[1, 9, 6, 64],", "rank 3", "[total_q, h_q, d_qk] with q_offsets"}},
    {"RowsWithoutOffsets",
     [](BatchArguments& s) {
       s.make_queries_ragged();
       s.make_keys_ragged();
       s.problem.q_offsets.reset();
       s.problem.out = s.written(s.out.data(), DType::kF32, {1, kTotalQ, kHQ, kDV});
       s.problem.lse.reset();
     },
     "q.shape",
     {"[9, 6, 64],", "rank 4", "[b, s_q, h_q, d_qk] without q_offsets"}},
    {"NoOffsets",
     [](BatchArguments& s) {
       s.make_queries_ragged();
       s.problem.q_offsets->shape[0] = 0;
     },
     "q_offsets.shape",
     {"[0]", "at least one offset"}},
    {"QueryOffsetsRank",
     [](BatchArguments& s) {
       s.make_queries_ragged();
       s.problem.q_offsets = s.view(s.q_offsets, DType::kI64, {kB + 1, 1});
     },
     "q_offsets.shape",
     {"[3, 1]", "rank 1, [b + 1]"}},
    {"QueryOffsetsAgainstDenseKeys",
     [](BatchArguments& s) {
       s.make_queries_ragged();
       s.problem.q_offsets->shape[0] = 2;
     },
     "k.shape",
     {"[2, 20, 3, 64]", "[1, *, *, 64]", "q_offsets [2]"}},
    {"KeyOffsetsOfAnotherBatch",
     [](BatchArguments& s) {
       s.make_keys_ragged();
       s.problem.kv_offsets->shape[0] = kB;
     },
     "kv_offsets.shape",
     {"[2]", "[3], which is [b + 1] for q [2, 7, 6, 64]"}},
    {"LengthsOfAnotherBatch",
     [](BatchArguments& s) {
       s.make_queries_ragged();
       s.give_lengths();
       s.problem.kv_lengths->shape[0] = 1;
     },
     "kv_lengths.shape",
     {"[1]", "[2], which is [b] for q_offsets [3]"}},
    {"TableOfAnotherBatch",
     [](BatchArguments& s) {
       s.make_keys_paged(16);
       s.problem.block_table->shape[0] = 1;
     },
     "block_table.shape",
     {"[1, 3]", "[2, *]", "[b, max_pages]"}},
    {"TableRank",
     [](BatchArguments& s) {
       s.make_keys_paged(16);
       s.problem.block_table = s.view(s.block_table, DType::kI32, {6});
     },
     "block_table.shape",
     {"[6]", "rank 2, [b, max_pages]"}},
    {"TableOfTooManyTokens",
     [](BatchArguments& s) {
       s.make_keys_paged(16);
       s.problem.block_table->shape[1] = 134217728;
       s.problem.block_table->strides = {};
     },
     "block_table.shape",
     {"[2, 134217728] for pages of 16", "at most 2147482623 tokens"}},
    {"RaggedKeysOfFourDims",
     [](BatchArguments& s) {
       s.make_keys_ragged();
       s.problem.k = s.view(s.problem.k.data, DType::kE4M3, {1, kTotalKV, kHKV, kDQK});
     },
     "k.shape",
     {"[1, 33, 3, 64]", "rank 3, [total_kv, h_kv, d_qk] with kv_offsets"}},
    {"PagesOfThreeDims",
     [](BatchArguments& s) {
       s.make_keys_paged(16);
       s.problem.k = s.view(s.problem.k.data, DType::kE4M3, {kPages * 16, kHKV, kDQK});
     },
     "k.shape",
     {"[80, 3, 64]", "rank 4, [pages, page_size, h_kv, d_qk] with block_table"}},
    {"EmptyPages", [](BatchArguments& s) { s.make_keys_paged(0); }, "k.shape", {"page size 0", "from 1"}},
    {"PagedValuePages",
     [](BatchArguments& s) {
       s.make_keys_paged(16);
       s.problem.v.shape[0] = 4;
     },
     "v.shape",
     {"[4, 16, 3, 32]", "[5, 16, 3, *]", "[pages, page_size, h_kv, d_v]"}},
    {"PackedPagedValueShape",
     [](BatchArguments& s) {
       s.make_keys_paged(16);
       s.pack_values();
       s.problem.v.shape[3] = 32;
     },
     "v.shape",
     {"[5, 3, 32, 32]", "[5, 3, *, 16]", "packed [pages, h_kv, d_v, page_size]"}},
    {"RaggedValueTokens",
     [](BatchArguments& s) {
       s.make_keys_ragged();
       s.problem.v.shape[0] = 32;
     },
     "v.shape",
     {"[32, 3, 32]", "[33, 3, *]", "[total_kv, h_kv, d_v]"}},
    {"RaggedHeadGroups",
     [](BatchArguments& s) {
       s.make_keys_ragged();
       s.problem.k.shape[1] = s.problem.v.shape[1] = 4;
     },
     "k.shape",
     {"4 heads in [33, 4, 64]", "divisor of the 6 heads of q"}},
    {"RaggedOut",
     [](BatchArguments& s) {
       s.make_queries_ragged();
       s.problem.out.shape[0] = 8;
     },
     "out.shape",
     {"[8, 6, 32]", "[9, 6, 32]", "[total_q, h_q, d_v]"}},
    {"RaggedLse",
     [](BatchArguments& s) {
       s.make_queries_ragged();
       s.problem.lse = s.written(s.lse.data(), DType::kF32, {kTotalQ, kHQ});
     },
     "lse.shape",
     {"[9, 6]", "[6, 9]", "[h_q, total_q]"}},
    {"RaggedLseBias",
     [](BatchArguments& s) {
       s.make_queries_ragged();
       s.problem.lse_bias = s.scale({kTotalQ, kHQ});
     },
     "lse_bias.shape",
     {"[9, 6]", "[6, 9]", "[h_q, total_q]"}},
    {"RaggedQueryScale",
     [](BatchArguments& s) {
       s.make_queries_ragged();
       s.problem.q_scale = s.scale({8, kHQ});
     },
     "q_scale.shape",
     {"[8, 6]", "[1] (tensor), [6] (head), [2, 6] (batch-head) or [9, 6] (token-head)"}},
    {"PagedKeyScale",
     [](BatchArguments& s) {
       s.make_keys_paged(16);
       s.problem.k_scale = s.scale({kB, kMaxPages * 16, kHKV});
     },
     "k_scale.shape",
     {"[2, 48, 3]", "[5, 16, 3] (token-head)"}},
};
INSTANTIATE_TEST_SUITE_P(Shapes, BadBatch, testing::ValuesIn(kBadShapes), CaseName());

const BadBatchCase kBadIndices[] = {
    {"OffsetsDtype",
     [](BatchArguments& s) {
       s.make_queries_ragged();
       s.problem.q_offsets->dtype = DType::kF32;
     },
     "q_offsets.dtype",
     {"f32", "int32 or int64"}},
    {"KeyOffsetsDtype",
     [](BatchArguments& s) {
       s.make_keys_ragged();
       s.problem.kv_offsets->dtype = DType::kU8;
     },
     "kv_offsets.dtype",
     {"u8", "int32 or int64"}},
    {"LengthsDtype",
     [](BatchArguments& s) {
       s.give_lengths();
       s.problem.kv_lengths->dtype = DType::kE4M3;
     },
     "kv_lengths.dtype",
     {"e4m3", "int32 or int64"}},
    {"TableDtype",
     [](BatchArguments& s) {
       s.make_keys_paged(16);
       s.problem.block_table->dtype = static_cast<DType>(99);
     },
     "block_table.dtype",
     {"99 (not", "int32 or int64"}},
    {"OffsetsDevice",
     [](BatchArguments& s) {
       s.make_queries_ragged();
       s.problem.q_offsets->device = kGpu;
     },
     "q_offsets.device",
     {"cuda:0", "cpu, the device of q"}},
    {"KeyOffsetsDevice",
     [](BatchArguments& s) {
       s.make_keys_ragged();
       s.problem.kv_offsets->device = kGpu;
     },
     "kv_offsets.device",
     {"cuda:0", "cpu, the device of q"}},
    {"LengthsDevice",
     [](BatchArguments& s) {
       s.give_lengths();
       s.problem.kv_lengths->device = kGpu;
     },
     "kv_lengths.device",
     {"cuda:0"}},
    {"TableDevice",
     [](BatchArguments& s) {
       s.make_keys_paged(16);
       s.problem.block_table->device = kGpu;
     },
     "block_table.device",
     {"cuda:0"}},
    {"NullOffsets",
     [](BatchArguments& s) {
       s.make_queries_ragged();
       s.problem.q_offsets->data = nullptr;
     },
     "q_offsets.data",
     {"null", "[3]"}},
    {"NullTable",
     [](BatchArguments& s) {
       s.make_keys_paged(16);
       s.problem.block_table->data = nullptr;
     },
     "block_table.data",
     {"null", "[2, 3]"}},
    {"MisalignedOffsets",
     [](BatchArguments& s) {
       s.make_queries_ragged();
       shift(*s.problem.q_offsets, 4);
     },
     "q_offsets.data",
     {"multiple of 8 bytes"}},
    {"NegativeStride",
     [](BatchArguments& s) {
       s.give_lengths();
       s.problem.kv_lengths->strides[0] = -1;
     },
     "kv_lengths.strides",
     {"[-1]", "no negative"}},
    {"OutHasQueryOffsets",
     [](BatchArguments& s) {
       s.make_queries_ragged();
       s.problem.q_offsets->data = s.out.data();
     },
     "out.data",
     {"in the memory of q_offsets"}},
    {"OutHasKeyOffsets",
     [](BatchArguments& s) {
       s.make_keys_ragged();
       s.problem.kv_offsets->data = s.out.data();
     },
     "out.data",
     {"in the memory of kv_offsets"}},
    {"LseHasLengths",
     [](BatchArguments& s) {
       s.give_lengths();
       s.problem.kv_lengths->data = s.lse.data();
     },
     "lse.data",
     {"in the memory of kv_lengths"}},
    {"LseHasTable",
     [](BatchArguments& s) {
       s.make_keys_paged(16);
       s.problem.block_table->data = s.lse.data();
     },
     "lse.data",
     {"in the memory of block_table"}},
};
INSTANTIATE_TEST_SUITE_P(Indices, BadBatch, testing::ValuesIn(kBadIndices), CaseName());

const BadBatchCase kBadMasks[] = {
    {"Window", [](BatchArguments& s) { s.problem.window_left = -2; }, "window_left", {"-2", "-1 for no limit"}},
    {"SoftcapBelowZero", [](BatchArguments& s) { s.problem.softcap = -1.0f; }, "softcap", {"-1", "from 0"}},
    {"SoftcapNaN", [](BatchArguments& s) { s.problem.softcap = NAN; }, "softcap", {"nan", "finite"}},
    {"SoftcapInfinite", [](BatchArguments& s) { s.problem.softcap = INFINITY; }, "softcap", {"inf", "finite"}},
    {"SinkShape",
     [](BatchArguments& s) { s.problem.attention_sink = s.scale({kHKV}); },
     "attention_sink.shape",
     {"[3]", "[6], which is [h_q]"}},
    {"SinkDtype",
     [](BatchArguments& s) {
       s.problem.attention_sink = s.scale({kHQ});
       s.problem.attention_sink->dtype = DType::kBF16;
     },
     "attention_sink.dtype",
     {"bf16", "f32"}},
    {"SinkDevice",
     [](BatchArguments& s) {
       s.problem.attention_sink = s.scale({kHQ});
       s.problem.attention_sink->device = kGpu;
     },
     "attention_sink.device",
     {"cuda:0"}},
    {"LseBiasBesideSoftcap",
     [](BatchArguments& s) {
       s.problem.lse_bias = s.scale({kB, kHQ, kSQ});
       s.problem.softcap = 30.0f;
     },
     "lse_bias",
     {"beside softcap", "logits themselves"}},
    {"LseBiasBesideSink",
     [](BatchArguments& s) {
       s.problem.lse_bias = s.scale({kB, kHQ, kSQ});
       s.problem.attention_sink = s.scale({kHQ});
     },
     "lse_bias",
     {"beside attention_sink", "logits themselves"}},
    {"ValueMeanBesideSink",
     [](BatchArguments& s) {
       s.problem.v_mean = s.scale({kB, kHKV, kDV});
       s.problem.attention_sink = s.scale({kHQ});
     },
     "v_mean",
     {"beside attention_sink", "do not sum to 1"}},
    {"SmoothKeysBesideSoftcap",
     [](BatchArguments& s) {
       set_dtype(s.problem, DType::kBF16);
       s.problem.quantize = QuantizeRecipe{.smooth_k = true};
       s.problem.softcap = 30.0f;
     },
     "quantize.smooth_k",
     {"true beside softcap"}},
    {"SmoothKeysBesideSink",
     [](BatchArguments& s) {
       set_dtype(s.problem, DType::kBF16);
       s.problem.quantize = QuantizeRecipe{.smooth_k = true};
       s.problem.attention_sink = s.scale({kHQ});
     },
     "quantize.smooth_k",
     {"true beside attention_sink"}},
    {"CenteredValueBesideSink",
     [](BatchArguments& s) {
       set_dtype(s.problem, DType::kBF16);
       s.problem.quantize = QuantizeRecipe{.center_v = true};
       s.problem.attention_sink = s.scale({kHQ});
     },
     "quantize.center_v",
     {"true beside attention_sink"}},
};
INSTANTIATE_TEST_SUITE_P(Masks, BadBatch, testing::ValuesIn(kBadMasks), CaseName());

class GoodBatch : public testing::TestWithParam<Device> {
 protected:
  BatchArguments arguments{GetParam()};
  void expect_valid() { EXPECT_EQ(texts_of(arguments.problem), Texts()); }
};

TEST_P(GoodBatch, H_AnyPageSizeAndSpareTables) {
  for (std::int64_t page_size : {1, 7, 16, 60, 64, 256}) {
    arguments.make_keys_paged(page_size);
    expect_valid();
  }
  arguments.problem.block_table->shape[1] = 0;
  expect_valid();
  arguments.problem.k.shape[0] = arguments.problem.v.shape[0] = 0;
  expect_valid();
}

TEST_P(GoodBatch, H_PackedPages) {
  const std::int64_t smallest = GetParam().kind == DeviceKind::kCuda ? 64 : 16;
  for (std::int64_t page_size : {smallest, 2 * smallest}) {
    arguments.problem.v_layout = VLayout::kRowMajor;
    arguments.make_keys_paged(page_size);
    arguments.pack_values();
    expect_valid();
  }
  arguments.make_keys_paged(smallest / 2);
  arguments.pack_values();
  EXPECT_EQ(texts_of(arguments.problem).size(), 1u);
}

TEST_P(GoodBatch, I_IndicesOfAnyStrides) {
  arguments.make_queries_ragged();
  arguments.make_keys_paged(16);
  arguments.problem.q_offsets->strides[0] = 0;
  arguments.problem.kv_lengths->strides[0] = 7;
  arguments.problem.block_table->strides = {1, kB};
  expect_valid();
}

TEST_P(GoodBatch, F_ScaleShapes) {
  const auto accepts = [&](std::optional<TensorView>& scale, std::initializer_list<std::int64_t> shape) {
    scale = arguments.scale(shape);
    expect_valid();
  };
  PrefillProblem& p = arguments.problem;
  arguments.make_queries_ragged();
  accepts(p.q_scale, {kTotalQ, kHQ});
  accepts(p.q_scale, {kB, kHQ});
  accepts(p.v_mean, {kB, kHKV, kDV});
  accepts(p.lse_bias, {kHQ, kTotalQ});
  const bool cpu = GetParam().kind == DeviceKind::kCpu;
  accepts(p.k_scale, {kB, kHKV});
  if (cpu) accepts(p.k_scale, {kB, kSKV, kHKV});
  p.k_scale.reset();
  arguments.make_keys_ragged();
  accepts(p.k_scale, {kB, kHKV});
  if (cpu) accepts(p.k_scale, {kTotalKV, kHKV});
  accepts(p.v_scale, {kB, kHKV, kDV});
  p.k_scale.reset();
  p.kv_offsets.reset();
  arguments.make_keys_paged(16);
  if (cpu) accepts(p.k_scale, {kPages, 16, kHKV});
}

TEST_P(GoodBatch, B_NothingToDo) {
  arguments.make_queries_ragged();
  arguments.make_keys_ragged();
  PrefillProblem& p = arguments.problem;
  p.q_offsets->shape[0] = p.kv_offsets->shape[0] = 1;  // no sequence
  expect_valid();
  p.q.shape[0] = p.out.shape[0] = p.lse->shape[1] = p.k.shape[0] = p.v.shape[0] = 0;  // no row
  p.q.data = p.k.data = p.v.data = p.out.data = p.lse->data = nullptr;
  expect_valid();
}

TEST_P(GoodBatch, L_Masks) {
  PrefillProblem& p = arguments.problem;
  p.attention_sink = arguments.scale({kHQ});
  p.attention_sink->strides[0] = 0;
  p.softcap = 30.0f;
  p.lse_base = LseBase::k2;
  for (std::int64_t window : {std::int64_t{-1}, std::int64_t{0}, std::int64_t{1} << 62}) {
    p.window_left = window;
    p.causal = !p.causal;
    expect_valid();
  }
}

INSTANTIATE_TEST_SUITE_P(Devices, GoodBatch, testing::Values(Device{}, kGpu),
                         [](const auto& info) { return std::string(name_of(info.param.kind)); });

TEST(PackedCudaPages, H_AreOf64Tokens) {
  BatchArguments arguments(kGpu);
  arguments.make_keys_paged(48);
  arguments.pack_values();
  const Texts reasons = texts_of(arguments.problem);
  ASSERT_EQ(reasons.size(), 1u);
  EXPECT_EQ(reasons.front(),
            "v_layout: got packed with a page size of 48, expected row-major, or a page size that is a multiple of 64 "
            "on cuda");
}

// No sequence, so no row of out belongs to one.
TEST(NoSequence, B_LeavesOutAlone) {
  BatchArguments arguments;
  arguments.make_queries_ragged();
  arguments.make_keys_ragged();
  arguments.problem.q_offsets->shape[0] = arguments.problem.kv_offsets->shape[0] = 1;
  prefill(arguments.problem);
  EXPECT_TRUE(arguments.untouched());
}

}  // namespace
}  // namespace fp8attn::test
