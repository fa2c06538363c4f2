// The CPU quantisers and pack_v() against loops that do what the header says, bit for bit.
#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <map>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include "fp8attn/e4m3.h"
#include "fp8attn/quantize.h"

namespace fp8attn {
namespace {

using Index = std::array<std::int64_t, 4>;  // b, s, h, d
constexpr std::uint8_t kUntouched = 0xA5;

double value_of_bits(std::uint16_t bits, int exponent_bits) {
  const int mantissa_bits = 15 - exponent_bits, bias = (1 << (exponent_bits - 1)) - 1;
  const int exponent = (bits & 0x7FFF) >> mantissa_bits, mantissa = bits & ((1 << mantissa_bits) - 1);
  double magnitude =
      std::ldexp(mantissa + (exponent == 0 ? 0 : 1 << mantissa_bits), std::max(exponent, 1) - bias - mantissa_bits);
  if (exponent == (1 << exponent_bits) - 1) magnitude = mantissa == 0 ? INFINITY : NAN;
  return bits & 0x8000 ? -magnitude : magnitude;
}

// Storage of an input tensor. What no element addresses is large, so that reading it raises a scale.
struct Input {
  std::vector<std::uint8_t> bytes;
  TensorView view;

  std::int64_t offset(const Index& i) const {
    std::int64_t offset = 0;
    for (int dim = 0; dim < 4; ++dim) offset += i[dim] * view.strides[dim];
    return offset * size_of(view.dtype);
  }
  float at(const Index& i) const {
    if (view.dtype == DType::kF32) {
      float value;
      std::memcpy(&value, &bytes[offset(i)], sizeof(value));
      return value;
    }
    std::uint16_t bits;
    std::memcpy(&bits, &bytes[offset(i)], sizeof(bits));
    return static_cast<float>(value_of_bits(bits, view.dtype == DType::kBF16 ? 8 : 5));
  }
  void set_bits(const Index& i, std::uint32_t bits) { std::memcpy(&bytes[offset(i)], &bits, size_of(view.dtype)); }
};

template <class Work>
void for_each(const TensorView& view, Work work) {
  Index i;
  for (i[0] = 0; i[0] < view.shape[0]; ++i[0]) {
    for (i[1] = 0; i[1] < view.shape[1]; ++i[1]) {
      for (i[2] = 0; i[2] < view.shape[2]; ++i[2]) {
        for (i[3] = 0; i[3] < view.shape[3]; ++i[3]) work(i);
      }
    }
  }
}

enum class Strides { kContiguous, kHeadsFirst, kSliceOfThree, kExpandedBatch, kExpandedHeads };

std::array<std::int64_t, 4> strides_of(Strides kind, const Index& n) {
  const auto [b, s, h, d] = n;
  switch (kind) {
    case Strides::kContiguous: return {s * h * d, h * d, d, 1};
    case Strides::kHeadsFirst: return {h * s * d, d, s * d, 1};
    case Strides::kSliceOfThree: return {s * h * 3 * d, h * 3 * d, 3 * d, 1};
    case Strides::kExpandedBatch: return {0, h * d, d, 1};
    case Strides::kExpandedHeads: return {s * d, d, 0, 1};
  }
  return {};
}

Input make_input(DType dtype, const Index& n, Strides kind) {
  Input input;
  input.view = TensorView::contiguous(nullptr, dtype, {n[0], n[1], n[2], n[3]});
  const auto strides = strides_of(kind, n);
  std::copy(strides.begin(), strides.end(), input.view.strides.begin());
  const std::int64_t elements = 3 * n[0] * n[1] * n[2] * n[3];
  for (std::int64_t i = 0; i < elements * size_of(dtype); ++i) input.bytes.push_back(0x7B);  // 1e36, 1e36, 61000
  input.view.data = input.bytes.data();
  return input;
}

// Values of many magnitudes; subnormal ones too for fp16.
void fill_random(Input& input, unsigned seed) {
  std::mt19937 random(seed);
  for_each(input.view, [&](const Index& i) {
    const std::uint32_t sign = random() & 1, exponent = random() % 12, mantissa = random();
    std::uint32_t bits = 0;
    switch (input.view.dtype) {
      case DType::kF32: bits = sign << 31 | (115 + exponent) << 23 | (mantissa & 0x7FFFFF); break;
      case DType::kBF16: bits = sign << 15 | (115 + exponent) << 7 | (mantissa & 0x7F); break;
      default: bits = sign << 15 | 2 * exponent << 10 | (mantissa & 0x3FF);
    }
    input.set_bits(i, bits);
  });
}

std::array<std::int64_t, 4> group_of(ScaleGranularity granularity, const Index& i) {
  switch (granularity) {
    case ScaleGranularity::kTensor: return {};
    case ScaleGranularity::kHead: return {i[2]};
    case ScaleGranularity::kBatchHead: return {i[0], i[2]};
    case ScaleGranularity::kTokenHead: return {i[0], i[1], i[2]};
    case ScaleGranularity::kChannel: return {i[0], i[2], i[3]};
  }
  return {};
}

MutableTensorView scale_view(ScaleGranularity granularity, const Index& n, std::vector<float>& scale) {
  MutableTensorView view;
  switch (granularity) {
    case ScaleGranularity::kTensor: view = MutableTensorView::contiguous(nullptr, DType::kF32, {1}); break;
    case ScaleGranularity::kHead: view = MutableTensorView::contiguous(nullptr, DType::kF32, {n[2]}); break;
    case ScaleGranularity::kBatchHead: view = MutableTensorView::contiguous(nullptr, DType::kF32, {n[0], n[2]}); break;
    case ScaleGranularity::kTokenHead:
      view = MutableTensorView::contiguous(nullptr, DType::kF32, {n[0], n[1], n[2]});
      break;
    case ScaleGranularity::kChannel:
      view = MutableTensorView::contiguous(nullptr, DType::kF32, {n[0], n[2], n[3]});
      break;
  }
  scale.assign(view.count(), NAN);
  view.data = scale.data();
  return view;
}

// An output and what is expected of every byte of it.
struct Output {
  std::vector<std::uint8_t> bytes, expected;
  MutableTensorView view;
};

Output make_output(const Index& n, VLayout layout, bool gaps) {
  const auto [b, s, h, d] = n;
  Output output;
  if (layout == VLayout::kPacked) {
    output.view = MutableTensorView::contiguous(nullptr, DType::kE4M3, {b, h, d, packed_length(s)});
    output.expected.assign(output.view.count(), 0);  // padding
  } else {
    output.view = MutableTensorView::contiguous(nullptr, DType::kE4M3, {b, s, h, d});
    for (int dim = 0; gaps && dim < 3; ++dim) output.view.strides[dim] *= 2;
    output.expected.assign(2 * output.view.count(), kUntouched);
  }
  output.bytes.assign(output.expected.size(), kUntouched);
  output.view.data = output.bytes.data();
  return output;
}

std::int64_t output_offset(const Output& output, VLayout layout, const Index& i) {
  const auto& strides = output.view.strides;
  if (layout == VLayout::kRowMajor) return i[0] * strides[0] + i[1] * strides[1] + i[2] * strides[2] + i[3];
  // Token 8*j + 2*i + k of a group of 16 lies at 4*i + 2*j + k.
  const std::int64_t within = i[1] % 16, j = within / 8, pair = within % 8 / 2, k = within % 2;
  return i[0] * strides[0] + i[2] * strides[1] + i[3] * strides[2] + i[1] - within + 4 * pair + 2 * j + k;
}

// The scale of every element, by the rule of the header.
std::map<Index, float> expected_scales(const Input& input, ScaleGranularity granularity) {
  std::map<Index, float> scales;
  for_each(input.view, [&](const Index& i) {
    float& amax = scales[group_of(granularity, i)];
    const float magnitude = std::fabs(input.at(i));
    if (std::isfinite(magnitude) && magnitude > amax) amax = magnitude;
  });
  for (auto& [group, value] : scales) value = value == 0 ? 1.0f : std::max(value / 448.0f, std::ldexp(1.0f, -100));
  return scales;
}

void expect_as_specified(const Input& input, ScaleGranularity granularity, VLayout layout, bool gaps = false) {
  const Index n = {input.view.shape[0], input.view.shape[1], input.view.shape[2], input.view.shape[3]};
  Output output = make_output(n, layout, gaps);
  std::vector<float> scale;
  quantize({.input = input.view,
            .output = output.view,
            .scale = scale_view(granularity, n, scale),
            .granularity = granularity,
            .layout = layout});

  const auto scales = expected_scales(input, granularity);
  // Groups come in the order of their indices, which is that of the scale tensor.
  ASSERT_EQ(scale.size(), scales.size());
  std::size_t position = 0;
  for (const auto& [group, value] : scales) EXPECT_EQ(scale[position++], value) << "scale " << position - 1;
  for_each(input.view, [&](const Index& i) {
    const float inverse = 1.0f / scales.at(group_of(granularity, i));
    output.expected[output_offset(output, layout, i)] = e4m3_from_float(input.at(i) * inverse);
  });
  EXPECT_TRUE(output.bytes == output.expected);
}

using Parameters = std::tuple<ScaleGranularity, VLayout, DType>;

class Quantize : public testing::TestWithParam<Parameters> {};

TEST_P(Quantize, OddShapesAndStrides) {
  const auto [granularity, layout, dtype] = GetParam();
  unsigned seed = 1;
  for (const Index& n :
       {Index{1, 1, 1, 1}, Index{1, 17, 1, 5}, Index{2, 65, 5, 24}, Index{3, 31, 1, 129}, Index{1, 130, 2, 66}}) {
    for (Strides strides : {Strides::kContiguous, Strides::kHeadsFirst, Strides::kSliceOfThree, Strides::kExpandedBatch,
                            Strides::kExpandedHeads}) {
      SCOPED_TRACE(testing::Message() << "shape " << testing::PrintToString(n) << ", strides kind "
                                      << static_cast<int>(strides));
      Input input = make_input(dtype, n, strides);
      fill_random(input, seed++);
      expect_as_specified(input, granularity, layout, strides == Strides::kSliceOfThree);
    }
  }
}

TEST_P(Quantize, InfinitiesAndNaNDoNotCountForTheScale) {
  const auto [granularity, layout, dtype] = GetParam();
  Input input = make_input(dtype, {2, 33, 3, 65}, Strides::kContiguous);
  fill_random(input, 99);
  const std::uint32_t infinity = dtype == DType::kF32 ? 0x7F800000 : dtype == DType::kBF16 ? 0x7F80 : 0x7C00;
  const std::uint32_t sign = dtype == DType::kF32 ? 0x80000000 : 0x8000;
  input.set_bits({0, 3, 1, 7}, infinity);
  input.set_bits({0, 3, 1, 8}, infinity | sign);
  input.set_bits({1, 32, 2, 64}, infinity | 1);
  for (std::int64_t token = 0; token < 33; ++token) {  // head 0 of batch entry 1 has no finite value
    for (std::int64_t channel = 0; channel < 65; ++channel) {
      input.set_bits({1, token, 0, channel}, channel % 2 == 0 ? infinity | sign | 1 : infinity);
    }
  }
  expect_as_specified(input, granularity, layout);
}

TEST_P(Quantize, ZerosGiveScaleOneAndZeros) {
  const auto [granularity, layout, dtype] = GetParam();
  const Index n = {2, 18, 5, 66};
  Input input = make_input(dtype, n, Strides::kSliceOfThree);
  for_each(input.view, [&](const Index& i) { input.set_bits(i, 0); });
  Output output = make_output(n, layout, false);
  std::vector<float> scale;
  quantize({input.view, output.view, scale_view(granularity, n, scale), granularity, layout});
  for (float value : scale) EXPECT_EQ(value, 1.0f);
  for_each(input.view, [&](const Index& i) { ASSERT_EQ(output.bytes[output_offset(output, layout, i)], 0); });
}

std::string parameter_name(const testing::TestParamInfo<Parameters>& info) {
  const auto [granularity, layout, dtype] = info.param;
  std::string name = std::string(name_of(granularity)) + "_" + name_of(layout) + "_" + name_of(dtype);
  for (char& c : name) c = c == '-' ? '_' : c;
  return name;
}

INSTANTIATE_TEST_SUITE_P(All, Quantize,
                         testing::Combine(testing::Values(ScaleGranularity::kTensor, ScaleGranularity::kHead,
                                                          ScaleGranularity::kBatchHead, ScaleGranularity::kTokenHead,
                                                          ScaleGranularity::kChannel),
                                          testing::Values(VLayout::kRowMajor, VLayout::kPacked),
                                          testing::Values(DType::kBF16, DType::kFP16, DType::kF32)),
                         parameter_name);

struct OneValue {
  float input, scale;
  std::uint8_t stored;
};

class QuantizeExtremes : public testing::TestWithParam<OneValue> {};

TEST_P(QuantizeExtremes, ScaleAndCode) {
  const OneValue& expected = GetParam();
  float scale = NAN;
  std::uint8_t stored = kUntouched;
  quantize({TensorView::contiguous(&expected.input, DType::kF32, {1, 1, 1, 1}),
            MutableTensorView::contiguous(&stored, DType::kE4M3, {1, 1, 1, 1}),
            MutableTensorView::contiguous(&scale, DType::kF32, {}), ScaleGranularity::kTensor});
  EXPECT_EQ(scale, expected.scale);
  EXPECT_EQ(stored, expected.stored);
}

constexpr float kHuge = std::numeric_limits<float>::max();
INSTANTIATE_TEST_SUITE_P(Extremes, QuantizeExtremes,
                         testing::Values(OneValue{448.0f, 1.0f, 0x7E}, OneValue{-448.0f, 1.0f, 0xFE},
                                         OneValue{kHuge, kHuge / 448.0f, 0x7E}, OneValue{-kHuge, kHuge / 448.0f, 0xFE},
                                         OneValue{std::numeric_limits<float>::denorm_min(), 0x1p-100f, 0x00},
                                         OneValue{448 * 0x1p-100f, 0x1p-100f, 0x7E},  // the smallest scale
                                         OneValue{0x1p-100f, 0x1p-100f, 0x38},        // 1.0 of it
                                         OneValue{-0.0f, 1.0f, 0x80},
                                         OneValue{std::numeric_limits<float>::infinity(), 1.0f, 0x7E},
                                         OneValue{std::numeric_limits<float>::quiet_NaN(), 1.0f, 0x7F}));

TEST(QuantizeEmpty, NoTokensGiveScaleOne) {
  std::vector<float> scale(3, NAN);
  quantize({TensorView::contiguous(nullptr, DType::kBF16, {2, 0, 3, 64}),
            MutableTensorView::contiguous(nullptr, DType::kE4M3, {2, 0, 3, 64}),
            MutableTensorView::contiguous(scale.data(), DType::kF32, {3}), ScaleGranularity::kHead});
  EXPECT_EQ(scale, std::vector<float>(3, 1.0f));
}

TEST(PackV, MovesEveryTokenToItsPositionAndPadsWithZeros) {
  for (const Index& n : {Index{1, 1, 1, 1}, Index{2, 16, 5, 64}, Index{1, 77, 3, 130}, Index{2, 64, 1, 65}}) {
    for (Strides strides : {Strides::kContiguous, Strides::kSliceOfThree, Strides::kExpandedHeads}) {
      SCOPED_TRACE(testing::PrintToString(n));
      Input input = make_input(DType::kE4M3, n, strides);
      std::mt19937 random(7);
      for (std::uint8_t& byte : input.bytes) byte = static_cast<std::uint8_t>(random());
      Output output = make_output(n, VLayout::kPacked, false);
      pack_v(input.view, output.view);
      for_each(input.view, [&](const Index& i) {
        output.expected[output_offset(output, VLayout::kPacked, i)] = input.bytes[input.offset(i)];
      });
      EXPECT_TRUE(output.bytes == output.expected);
    }
  }
}

TEST(PackV, PackedPositionIsThatOfTheHeader) {
  for (int group = 0; group < 3; ++group) {
    for (int i = 0; i < 4; ++i) {
      for (int j = 0; j < 2; ++j) {
        for (int k = 0; k < 2; ++k) {
          EXPECT_EQ(packed_position(16 * group + 8 * j + 2 * i + k), 16 * group + 4 * i + 2 * j + k);
        }
      }
    }
  }
}

}  // namespace
}  // namespace fp8attn
