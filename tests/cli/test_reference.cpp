#include <cmath>
#include <limits>

#include "cli/reference.h"
#include "cli_test.h"

namespace fp8attn::cli {
namespace {

Layer layer_of(std::int64_t s_q, std::int64_t s_kv, DType dtype = DType::kF32) {
  Layer layer;
  layer.q = normal({2, s_q, 4, 16}, dtype, 1);
  layer.k = normal({2, s_kv, 2, 16}, dtype, 2);
  layer.v = normal({2, s_kv, 2, 16}, dtype, 3);
  return layer;
}

float* values(HostTensor& tensor) { return reinterpret_cast<float*>(tensor.bytes.data()); }

TEST(Reference, SampleSpansAllRows) {
  const auto all = sample_rows(4096, 4096, 16, 16);
  ASSERT_EQ(all.size(), 1u);
  EXPECT_EQ(all[0].end, 4096);
  const auto some = sample_rows(4097, 4096, 16, 16);
  ASSERT_EQ(some.size(), 16u);
  EXPECT_EQ(some.front().begin, 0);
  EXPECT_EQ(some.back().end, 4097);
  for (std::size_t i = 0; i < some.size(); ++i) {
    EXPECT_EQ(some[i].end - some[i].begin, 16);
    if (i > 0) {
      EXPECT_GE(some[i].begin, some[i - 1].end);
    }
  }
}

// The sampled rows of a problem are the rows of the whole, whatever the lengths and the mask.
TEST(Reference, SampledRowsAreRowsOfTheWhole) {
  for (const bool causal : {false, true}) {
    for (const auto& [s_q, s_kv] : {std::pair{60, 60}, {60, 100}, {60, 40}}) {
      SCOPED_TRACE(testing::Message() << s_q << " queries, " << s_kv << " keys, causal " << causal);
      Layer layer = layer_of(s_q, s_kv);
      // e4m3 with a scale per token shows whether scales are cut as their tensors are.
      Attention attention(layer, &find_recipe("token"), {});
      layer = attention.stored();
      AttentionOptions options;
      options.causal = causal;
      Reference whole = exact_attention(layer, options, {{0, s_q}});
      const Reference sample = exact_attention(layer, options, sample_rows(s_q, 10, 4, 3));
      ASSERT_EQ(sample.parts.size(), 4u);
      const Errors errors = errors_of(sample, whole.parts[0].out, &whole.parts[0].lse);
      EXPECT_LT(errors.rel_l2, 1e-6);
      EXPECT_LT(errors.worst_row, 1e-6);
      EXPECT_LT(errors.lse, 1e-5);
      // Shifted by one row, they are not.
      Reference shifted = sample;
      for (auto& part : shifted.parts) {
        if (part.rows.begin > 0) part.rows = {part.rows.begin - 1, part.rows.end - 1};
      }
      EXPECT_GT(errors_of(shifted, whole.parts[0].out, nullptr).rel_l2, 1e-2);
    }
  }
}

TEST(Reference, ErrorsSeeWhatIsWrong) {
  const Layer layer = layer_of(20, 20);
  const Reference exact = exact_attention(layer, {}, {{0, 20}});
  const HostTensor &out = exact.parts[0].out, &lse = exact.parts[0].lse;
  const Errors none = errors_of(exact, out, &lse);
  EXPECT_EQ(none.rel_l2, 0);
  EXPECT_EQ(none.cosine, 1);
  EXPECT_EQ(none.worst_row, 0);
  EXPECT_EQ(none.lse, 0);

  EXPECT_DOUBLE_EQ(errors_of(exact, HostTensor(DType::kF32, out.shape), &lse).rel_l2, 1);

  HostTensor doubled = out;  // one head of one token
  for (int i = 0; i < 16; ++i) values(doubled)[16 * 5 + i] *= 2;
  EXPECT_NEAR(errors_of(exact, doubled, &lse).worst_row, 1, 1e-6);
  EXPECT_LT(errors_of(exact, doubled, &lse).rel_l2, 0.5);

  HostTensor negated = out;
  for (int i = 0; i < negated.count(); ++i) values(negated)[i] *= -1;
  EXPECT_NEAR(errors_of(exact, negated, &lse).cosine, -1, 1e-9);

  HostTensor off = lse;
  values(off)[7] += std::log(448.0f);
  EXPECT_NEAR(errors_of(exact, out, &off).lse, std::log(448.0), 1e-5);

  HostTensor poisoned = out, poisoned_lse = lse;
  values(poisoned)[3] = values(poisoned_lse)[3] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_TRUE(std::isnan(errors_of(exact, poisoned, &lse).rel_l2));
  EXPECT_TRUE(std::isnan(errors_of(exact, poisoned, &lse).worst_row));
  EXPECT_TRUE(std::isnan(errors_of(exact, poisoned, &lse).cosine));
  EXPECT_TRUE(std::isnan(errors_of(exact, out, &poisoned_lse).lse));
}

TEST(Reference, RowsWithoutAKeyMatchAsZeroAndMinusInfinity) {
  const Layer layer = layer_of(20, 5);
  AttentionOptions options;
  options.causal = true;
  const Reference exact = exact_attention(layer, options, {{0, 20}});
  const Errors errors = errors_of(exact, exact.parts[0].out, &exact.parts[0].lse);
  EXPECT_EQ(errors.worst_row, 0);
  EXPECT_EQ(errors.lse, 0);
  HostTensor finite = exact.parts[0].lse;
  values(finite)[0] = 0;
  EXPECT_EQ(errors_of(exact, exact.parts[0].out, &finite).lse, std::numeric_limits<double>::infinity());
}

}  // namespace
}  // namespace fp8attn::cli
