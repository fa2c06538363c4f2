// What the shapes of a prefill say about its sequences.
#include <gtest/gtest.h>

#include "api/prefill_batch.h"
#include "batch_arguments.h"

namespace fp8attn::test {
namespace {

TEST(PrefillBatch, Dense) {
  BatchArguments arguments;
  EXPECT_FALSE(is_uneven(arguments.problem));
  const PrefillBatch batch = batch_of(arguments.problem);
  EXPECT_EQ(batch.queries, QueryLayout::kDense);
  EXPECT_EQ(batch.keys, KeyLayout::kDense);
  EXPECT_EQ(batch.b, kB);
  EXPECT_EQ(batch.query_capacity, kSQ);
  EXPECT_EQ(batch.query_rows, kB * kSQ);
  EXPECT_EQ(batch.key_capacity, kSKV);
  EXPECT_EQ(batch.key_rows, kB * kSKV);
  EXPECT_EQ(batch.pages, 0);
  EXPECT_EQ(batch.h_q, kHQ);
  EXPECT_EQ(batch.h_kv, kHKV);
  EXPECT_EQ(batch.d_qk, kDQK);
  EXPECT_EQ(batch.d_v, kDV);
  arguments.give_lengths();
  EXPECT_TRUE(is_uneven(arguments.problem));
  EXPECT_EQ(batch_of(arguments.problem).key_capacity, kSKV);
}

TEST(PrefillBatch, Ragged) {
  BatchArguments arguments;
  arguments.make_queries_ragged();
  arguments.make_keys_ragged();
  EXPECT_TRUE(is_uneven(arguments.problem));
  const PrefillBatch batch = batch_of(arguments.problem);
  EXPECT_EQ(batch.queries, QueryLayout::kRagged);
  EXPECT_EQ(batch.keys, KeyLayout::kRagged);
  EXPECT_EQ(batch.b, kB);
  EXPECT_EQ(batch.query_capacity, kTotalQ);
  EXPECT_EQ(batch.query_rows, kTotalQ);
  EXPECT_EQ(batch.key_capacity, kTotalKV);
  EXPECT_EQ(batch.key_rows, kTotalKV);
  EXPECT_EQ(batch.h_q, kHQ);
  EXPECT_EQ(batch.h_kv, kHKV);
  EXPECT_EQ(batch.d_qk, kDQK);
  EXPECT_EQ(batch.d_v, kDV);
}

TEST(PrefillBatch, PagedAndPacked) {
  BatchArguments arguments;
  arguments.make_keys_paged(16);
  arguments.pack_values();
  const PrefillBatch batch = batch_of(arguments.problem);
  EXPECT_EQ(batch.keys, KeyLayout::kPaged);
  EXPECT_EQ(batch.pages, kPages);
  EXPECT_EQ(batch.page_size, 16);
  EXPECT_EQ(batch.key_rows, kPages * 16);
  EXPECT_EQ(batch.key_capacity, kMaxPages * 16);
  EXPECT_EQ(batch.h_kv, kHKV);
  EXPECT_EQ(batch.d_v, kDV);
}

TEST(PrefillBatch, ScaleGranularities) {
  using enum ScaleGranularity;
  BatchArguments arguments;
  PrefillBatch batch = batch_of(arguments.problem);
  for (const TensorView& scale : {arguments.scale({}), arguments.scale({1})}) {
    EXPECT_EQ(query_scale_granularity(batch, scale), kTensor);
    EXPECT_EQ(key_scale_granularity(batch, scale), kTensor);
  }
  EXPECT_EQ(query_scale_granularity(batch, arguments.scale({kHQ})), kHead);
  EXPECT_EQ(key_scale_granularity(batch, arguments.scale({kHKV})), kHead);
  EXPECT_EQ(query_scale_granularity(batch, arguments.scale({kB, kHQ})), kBatchHead);
  EXPECT_EQ(query_scale_granularity(batch, arguments.scale({kB, kSQ, kHQ})), kTokenHead);
  EXPECT_EQ(key_scale_granularity(batch, arguments.scale({kB, kHKV})), kBatchHead);
  EXPECT_EQ(key_scale_granularity(batch, arguments.scale({kB, kSKV, kHKV})), kTokenHead);

  arguments.make_queries_ragged();
  arguments.make_keys_ragged();
  batch = batch_of(arguments.problem);
  EXPECT_EQ(query_scale_granularity(batch, arguments.scale({kB, kHQ})), kBatchHead);
  EXPECT_EQ(query_scale_granularity(batch, arguments.scale({kTotalQ, kHQ})), kTokenHead);
  EXPECT_EQ(key_scale_granularity(batch, arguments.scale({kB, kHKV})), kBatchHead);
  EXPECT_EQ(key_scale_granularity(batch, arguments.scale({kTotalKV, kHKV})), kTokenHead);
  // As many rows as sequences: a token's of q, a sequence's of k.
  batch.query_rows = batch.key_rows = kB;
  EXPECT_EQ(query_scale_granularity(batch, arguments.scale({kB, kHQ})), kTokenHead);
  EXPECT_EQ(key_scale_granularity(batch, arguments.scale({kB, kHKV})), kBatchHead);
}

}  // namespace
}  // namespace fp8attn::test
