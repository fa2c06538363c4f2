// append_mla(), gather_mla() and rotate_rope() on the CPU: the bytes of a record, what is skipped, and the way back.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "codec.h"
#include "fp8attn/kv_cache.h"
#include "random.h"

namespace fp8attn::test {
namespace {

using Bytes = std::vector<std::uint8_t>;

std::uint16_t bf16(float value) {
  std::uint8_t bytes[2];
  encode(DType::kBF16, value, bytes);
  return static_cast<std::uint16_t>(bytes[0] | bytes[1] << 8);
}

float from_bf16(std::uint16_t code) { return std::bit_cast<float>(std::uint32_t{code} << 16); }

// Tokens [n, 576], and a cache of two pages of three.
struct Cache {
  explicit Cache(CacheFormat format, std::uint8_t fill = 0xA5)
      : format(format), bytes(6 * record_bytes(format), fill) {}

  MutableTensorView view() {
    return MutableTensorView::contiguous(bytes.data(), record_dtype(format), {2, 3, record_elements(format)});
  }
  void append(const std::vector<std::uint16_t>& tokens, const std::vector<std::int64_t>& slots, bool rotated = false) {
    AppendMlaProblem problem;
    const auto count = static_cast<std::int64_t>(slots.size());
    problem.latent = TensorView::contiguous(tokens.data(), DType::kBF16, {count, kMlaDim});
    problem.latent.shape[1] = kLatentDim;
    problem.rope = problem.latent;
    problem.rope.data = tokens.data() + kLatentDim;
    problem.rope.shape[1] = kRopeDim;
    problem.slots = TensorView::contiguous(slots.data(), DType::kI64, {count});
    problem.cache = view();
    problem.format = format;
    problem.rotate_rope = rotated;
    if (format == CacheFormat::kTensor) problem.cache_scale = scale_view();
    append_mla(problem);
  }
  std::vector<std::uint16_t> gather(const std::vector<std::int32_t>& slots, bool rotated = false) {
    GatherMlaProblem problem;
    const auto count = static_cast<std::int64_t>(slots.size());
    std::vector<std::uint16_t> out(count * kMlaDim, 0xA5A5);
    problem.cache = view();
    problem.slots = TensorView::contiguous(slots.data(), DType::kI32, {count});
    problem.out = MutableTensorView::contiguous(out.data(), DType::kBF16, {count, kMlaDim});
    problem.format = format;
    problem.rotate_rope = rotated;
    if (format == CacheFormat::kTensor) problem.cache_scale = scale_view();
    gather_mla(problem);
    return out;
  }
  TensorView scale_view() const { return TensorView::contiguous(&scale, DType::kF32, {}); }
  Bytes record(int slot) const {
    return {bytes.begin() + slot * record_bytes(format), bytes.begin() + (slot + 1) * record_bytes(format)};
  }

  CacheFormat format;
  Bytes bytes;
  float scale = 0.0137f;
};

constexpr CacheFormat kFormats[] = {CacheFormat::kBF16, CacheFormat::kTensor, CacheFormat::kToken128,
                                    CacheFormat::kToken};

// Latents between -3 and 3, -0.8125 and 0.8125, -11 and 11, and zeros; a RoPE part of quarters.
std::vector<std::uint16_t> golden_token() {
  const float amplitude[] = {3.0f, 0.8125f, 11.0f, 0.0f};
  std::vector<std::uint16_t> token;
  for (int c = 0; c < 512; ++c) {
    token.push_back(bf16(amplitude[c / 128] * static_cast<float>(c % 128 * 37 % 128 - 64) / 64.0f));
  }
  for (int i = 0; i < 64; ++i) token.push_back(bf16(static_cast<float>(i - 20) * 0.25f));
  return token;
}

// Computed outside of this library, from the definitions of e4m3 and of the record.
constexpr const char* kGoldenRecord =
    "fef4697afae475fdf26b7bf9de76fdf16e7cf8ce78fcf0707cf75679fbed727df66179fbea737ef5667afae874fef36a7af9e276"
    "fdf26c7bf9da77fcf16f7cf80078fcef717cf75a79fbec727df66279faea737ef4687afae675fef36a7bf9e176fdf26d7bf9d677"
    "fcf0707cf84e78fcee717df65e79fbeb727df5647afae974fef4697afae475fdf36b7bf9de76fdf16e7cf8ce78fcf0707cf75679"
    "fbed727df66179fbeb737ef5667afae874fef36a7bf9e376fdf26c7bf9db77fcf16f7cf80078fcef717cf75b79fbec727df66379"
    "fbea737ef4687afae675fef36b7bf9e176fdf26d7bf9d677fcf0707cf84e78fcee717df65e79fbeb737df5647afae974fef4697a"
    "fae475fdf26b7bf9de76fdf16e7cf8ce78fcf0707cf75679fbed727df66179fbea737ef5667afae874fef36a7af9e276fdf26c7b"
    "f9da77fcf16f7cf80078fcef717cf75a79fbec727df66279faea737ef4687afae675fef36a7bf9e176fdf26d7bf9d677fcf0707c"
    "f84e78fcee717df65e79fbeb727df5647afae9748080000080800080800000808000808000008080008080000080000080800000"
    "80000080800000800000808000808000008080008080000080800080800000800000808000008000008080000080000080800000"
    "8000008080008080000080800080800000808000808000008000008080000080000080800000800000808000b76ddb3bdbb6ed3a"
    "9224c93c0000800da0c098c090c088c080c070c060c050c040c030c020c010c000c0e0bfc0bfa0bf80bf40bf00bf80be0000803e"
    "003f403f803fa03fc03fe03f004010402040304040405040604070408040884090409840a040a840b040b840c040c840d040d840"
    "e040e840f040f8400041044108410c411041144118411c412041244128412c41";

std::string hex(const Bytes& bytes) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (std::uint8_t byte : bytes) text += {kDigits[byte >> 4], kDigits[byte & 15]};
  return text;
}

std::vector<std::uint16_t> random_tokens(std::int64_t count, std::uint64_t seed) {
  const Random random(seed, 0);
  std::vector<std::uint16_t> tokens(count * kMlaDim);
  for (std::size_t i = 0; i < tokens.size(); ++i) tokens[i] = bf16(random.normal(i));
  return tokens;
}

TEST(AppendMla, F_GoldenRecord) {
  Cache cache(CacheFormat::kToken128);
  cache.append(golden_token(), {4});
  EXPECT_EQ(hex(cache.record(4)), kGoldenRecord);
}

TEST(AppendMla, F_TokenFormatHasFourEqualScalesOfAllChannels) {
  Cache token(CacheFormat::kToken), token128(CacheFormat::kToken128);
  token.append(golden_token(), {0});
  float scales[4];
  std::memcpy(scales, &token.bytes[512], sizeof scales);
  for (float scale : scales) EXPECT_EQ(scale, 11.0f / 448.0f);
  // Group 2 holds the largest value, so that both formats store it alike.
  token128.append(golden_token(), {0});
  EXPECT_TRUE(std::equal(&token.bytes[256], &token.bytes[384], &token128.bytes[256]));
  EXPECT_TRUE(std::equal(&token.bytes[528], &token.bytes[656], &token128.bytes[528]));
  token128.bytes = token.bytes;
  EXPECT_EQ(token128.gather({0}), token.gather({0}));
}

TEST(AppendMla, F_TensorFormatUsesTheGivenScale) {
  Cache cache(CacheFormat::kTensor);
  const std::vector<std::uint16_t> token = golden_token();
  cache.append(token, {1});
  for (std::int64_t c = 0; c < kMlaDim; ++c) {
    std::uint8_t code;
    encode(DType::kE4M3, from_bf16(token[c]) * (1.0f / cache.scale), &code);
    ASSERT_EQ(cache.record(1)[c], code) << "channel " << c;
  }
}

TEST(AppendMla, F_SpecialNumbers) {
  std::vector<std::uint16_t> token(kMlaDim, 0);
  token[3] = bf16(std::numeric_limits<float>::infinity());
  token[4] = bf16(-std::numeric_limits<float>::infinity());
  token[5] = 0x7FC1;  // NaN
  token[6] = bf16(2.0f);
  token[7] = 0x8000;  // -0
  Cache cache(CacheFormat::kToken128);
  cache.append(token, {0});
  const Bytes record = cache.record(0);
  EXPECT_EQ(Bytes(record.begin() + 3, record.begin() + 8), (Bytes{0x7E, 0xFE, 0x7F, 0x7E, 0x80}));
  float scales[4];
  std::memcpy(scales, &record[512], sizeof scales);
  EXPECT_EQ(scales[0], 2.0f / 448.0f);
  EXPECT_EQ(scales[1], 0x1p-100f);
  EXPECT_EQ(std::count(record.begin() + 128, record.begin() + 512, 0), 384);
}

TEST(AppendMla, A_WritesItsSlotsAndNothingElse) {
  for (CacheFormat format : kFormats) {
    Cache cache(format), one(format);
    const std::vector<std::uint16_t> tokens = random_tokens(5, 1);
    cache.append(tokens, {-1, 4, 6, std::int64_t{1} << 40, 0});
    Bytes want(6 * record_bytes(format), 0xA5);
    for (const auto& [token, slot] : {std::pair{1, 4}, std::pair{4, 0}}) {
      one.append({tokens.begin() + token * kMlaDim, tokens.begin() + (token + 1) * kMlaDim}, {2});
      std::ranges::copy(one.record(2), want.begin() + slot * record_bytes(format));
    }
    EXPECT_TRUE(cache.bytes == want) << name_of(format);
  }
}

TEST(AppendMla, I_StridedCacheAndTokens) {
  const std::vector<std::uint16_t> tokens = random_tokens(6, 2);
  Cache dense(CacheFormat::kToken128);
  dense.append({tokens.begin(), tokens.begin() + kMlaDim}, {5});
  dense.append({tokens.begin() + 3 * kMlaDim, tokens.begin() + 4 * kMlaDim}, {0});
  // Every third token; 7 bytes behind a record, 11 behind a page.
  const std::int64_t token_stride = 656 + 7, page_stride = 3 * token_stride + 11;
  Bytes bytes(2 * page_stride, 0xA5);
  const std::int32_t slots[] = {5, -1, 0};
  AppendMlaProblem problem;
  problem.latent = TensorView::contiguous(tokens.data(), DType::kBF16, {2, kMlaDim});
  problem.latent.shape[1] = kLatentDim;
  problem.latent.strides[0] = 3 * kMlaDim;
  problem.rope = problem.latent;
  problem.rope.data = tokens.data() + kLatentDim;
  problem.rope.shape[1] = kRopeDim;
  problem.slots = TensorView::contiguous(slots, DType::kI32, {2});
  problem.slots.strides[0] = 2;
  problem.cache = MutableTensorView::contiguous(bytes.data(), DType::kU8, {2, 3, 656});
  problem.cache.strides = {page_stride, token_stride, 1};
  append_mla(problem);
  Bytes want(2 * page_stride, 0xA5);
  std::ranges::copy(dense.record(5), want.begin() + page_stride + 2 * token_stride);
  std::ranges::copy(dense.record(0), want.begin());
  EXPECT_TRUE(bytes == want);
}

TEST(GatherMla, ReadsBackWhatWasStored) {
  const std::vector<std::uint16_t> tokens = random_tokens(2, 3);
  for (CacheFormat format : kFormats) {
    Cache cache(format);
    cache.append(tokens, {3, 1});
    const std::vector<std::uint16_t> back = cache.gather({1, -1, 3, 6});
    ASSERT_EQ(back.size(), 4u * kMlaDim);
    for (std::int64_t i = 0; i < 4 * kMlaDim; ++i) {
      const std::int64_t row = i / kMlaDim, channel = i % kMlaDim;
      if (row == 1 || row == 3) {
        ASSERT_EQ(back[i], 0) << name_of(format);
        continue;
      }
      const float want = from_bf16(tokens[(row == 0 ? 1 : 0) * kMlaDim + channel]), got = from_bf16(back[i]);
      const bool exact = format == CacheFormat::kBF16 || (format != CacheFormat::kTensor && channel >= kLatentDim);
      // Half a last place of e4m3, of its subnormals (the largest scale is 0.014), and of bf16.
      const float tolerance = exact ? 0.0f : std::abs(want) * (0x1p-4f + 0x1p-8f) + 0.014f * 0x1p-10f;
      ASSERT_NEAR(got, want, tolerance) << name_of(format) << ", channel " << channel;
    }
  }
}

TEST(GatherMla, F_AllCodes) {
  Cache cache(CacheFormat::kToken128);
  const float scales[] = {0.0137f, 1.7f, 33.3f, 1e-6f};
  for (int c = 0; c < 512; ++c) cache.bytes[c] = static_cast<std::uint8_t>(c % 256);
  std::memcpy(&cache.bytes[512], scales, sizeof scales);
  const std::vector<std::uint16_t> back = cache.gather({0});
  for (int c = 0; c < 512; ++c) {
    const auto code = static_cast<std::uint8_t>(c % 256);
    const float value = decode(DType::kE4M3, &code) * scales[c / 128];
    ASSERT_EQ(back[c], std::isnan(value) ? 0x7FFF : bf16(value)) << "channel " << c;
  }
}

// The matrix, entry by entry.
TEST(RotateRope, L_IsTheSignedHadamardMatrix) {
  for (int j = 0; j < 64; ++j) {
    std::vector<std::uint16_t> row(kMlaDim, 0), out(kMlaDim, 0xA5A5);
    row[512 + j] = bf16(3.0f);
    row[17] = 0x1234;
    const TensorView input = TensorView::contiguous(row.data(), DType::kBF16, {1, 1, 1, kMlaDim});
    rotate_rope(input, MutableTensorView::contiguous(out.data(), DType::kBF16, {1, 1, 1, kMlaDim}));
    const float sign = (kRotationSigns >> j & 1) != 0 ? -1.0f : 1.0f;
    for (int i = 0; i < 64; ++i) {
      const float entry = std::popcount(static_cast<unsigned>(i & j)) % 2 == 0 ? 1.0f : -1.0f;
      ASSERT_EQ(from_bf16(out[512 + i]), 3.0f * sign * entry / 8.0f) << i << ", " << j;
    }
    EXPECT_TRUE(std::equal(row.begin(), row.begin() + 512, out.begin()));
  }
}

TEST(RotateRope, StoredRotatedAndTurnedBack) {
  const std::vector<std::uint16_t> tokens = random_tokens(1, 4);
  for (CacheFormat format : {CacheFormat::kBF16, CacheFormat::kToken128, CacheFormat::kToken}) {
    Cache cache(format);
    cache.append(tokens, {2}, true);
    const std::vector<std::uint16_t> rotated = cache.gather({2}), back = cache.gather({2}, true);
    std::vector<std::uint16_t> query = tokens;
    const auto view = MutableTensorView::contiguous(query.data(), DType::kBF16, {1, 1, 1, kMlaDim});
    rotate_rope(view, view);
    for (std::int64_t i = kLatentDim; i < kMlaDim; ++i) {
      ASSERT_EQ(rotated[i], query[i]) << name_of(format);
      ASSERT_NEAR(from_bf16(back[i]), from_bf16(tokens[i]), 0.03f) << name_of(format);
    }
  }
}

TEST(RotateRope, I_StridesOfHeads) {
  const std::vector<std::uint16_t> rows = random_tokens(6, 5);
  std::vector<std::uint16_t> dense = rows, swapped(rows.size(), 0);
  const auto view = MutableTensorView::contiguous(dense.data(), DType::kBF16, {1, 2, 3, kMlaDim});
  rotate_rope(view, view);
  MutableTensorView out = MutableTensorView::contiguous(swapped.data(), DType::kBF16, {1, 2, 3, kMlaDim});
  out.strides = {6 * kMlaDim, kMlaDim, 2 * kMlaDim, 1};
  rotate_rope(TensorView::contiguous(rows.data(), DType::kBF16, {1, 2, 3, kMlaDim}), out);
  for (int token = 0; token < 2; ++token) {
    for (int head = 0; head < 3; ++head) {
      EXPECT_TRUE(std::equal(&dense[(token * 3 + head) * kMlaDim], &dense[(token * 3 + head + 1) * kMlaDim - 1],
                             &swapped[(head * 2 + token) * kMlaDim]));
    }
  }
}

}  // namespace
}  // namespace fp8attn::test
