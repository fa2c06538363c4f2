#include <bit>
#include <cmath>

#include "cli/host_tensor.h"
#include "cli_test.h"

namespace fp8attn::cli {
namespace {

HostTensor floats(const std::vector<float>& values) {
  HostTensor tensor(DType::kF32, {static_cast<std::int64_t>(values.size())});
  std::copy(values.begin(), values.end(), reinterpret_cast<float*>(tensor.bytes.data()));
  return tensor;
}

std::uint16_t bits_of(float value, DType dtype) {
  return reinterpret_cast<const std::uint16_t*>(convert(floats({value}), dtype).bytes.data())[0];
}

// The compiler's half type rounds by itself.
TEST(HostTensor, HalfConversionsAgreeWithTheCompiler) {
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    const auto half = std::bit_cast<_Float16>(static_cast<std::uint16_t>(bits));
    HostTensor tensor(DType::kFP16, {1});
    reinterpret_cast<std::uint16_t*>(tensor.bytes.data())[0] = static_cast<std::uint16_t>(bits);
    const float value = element(tensor.bytes.data(), DType::kFP16, 0);
    const auto expected = static_cast<float>(half);
    ASSERT_TRUE(value == expected || (std::isnan(value) && std::isnan(expected))) << bits;
  }
  for (std::uint64_t bits = 0; bits < 0x100000000; bits += 65521) {
    const float value = std::bit_cast<float>(static_cast<std::uint32_t>(bits));
    if (std::isnan(value)) continue;
    ASSERT_EQ(bits_of(value, DType::kFP16), std::bit_cast<std::uint16_t>(static_cast<_Float16>(value))) << value;
  }
}

TEST(HostTensor, Bf16RoundsToNearestEven) {
  EXPECT_EQ(bits_of(1.0f, DType::kBF16), 0x3F80);
  EXPECT_EQ(bits_of(1.0f + 0x1p-8f, DType::kBF16), 0x3F80);             // a tie, to even
  EXPECT_EQ(bits_of(1.0f + 0x1.8p-7f, DType::kBF16), 0x3F82);           // a tie, to even
  EXPECT_EQ(bits_of(1.0f + 0x1p-8f + 0x1p-20f, DType::kBF16), 0x3F81);  // past it
  EXPECT_EQ(bits_of(3.4e38f, DType::kBF16), 0x7F80);
  EXPECT_EQ(bits_of(-INFINITY, DType::kBF16), 0xFF80);
  HostTensor nan(DType::kBF16, {1});
  reinterpret_cast<std::uint16_t*>(nan.bytes.data())[0] = bits_of(std::bit_cast<float>(0x7F800001u), DType::kBF16);
  EXPECT_TRUE(std::isnan(element(nan.bytes.data(), DType::kBF16, 0)));
}

TEST(HostTensor, DequantizesEveryCode) {
  HostTensor codes(DType::kE4M3, {2, 128});
  for (int code = 0; code < 256; ++code) codes.bytes[code] = static_cast<std::byte>(code);
  const HostTensor values = dequantized(codes, 1.0f / 64);
  EXPECT_EQ(values.shape, codes.shape);
  ASSERT_EQ(values.dtype, DType::kBF16);
  for (int code = 0; code < 256; ++code) {
    const float expected = element(codes.bytes.data(), DType::kE4M3, code) / 64;
    const float got = element(values.bytes.data(), DType::kBF16, code);
    EXPECT_TRUE(got == expected || (std::isnan(got) && std::isnan(expected))) << code;
  }
}

}  // namespace
}  // namespace fp8attn::cli
