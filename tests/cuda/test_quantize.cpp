// The CUDA quantisers and pack_v() against the CPU's, bit for bit, the memory between and around the elements included.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "fp8attn/quantize.h"
#include "quantize_case.h"

namespace fp8attn::quantize_test {
namespace {

class CudaQuantize : public ::testing::Test {
 protected:
  void SetUp() override {
    device_ = default_device();
    if (device_.kind != DeviceKind::kCuda) GTEST_SKIP() << "no usable CUDA device: " << list_backends().back().detail;
  }
  Device device_;
};

constexpr std::array kDTypes{DType::kBF16, DType::kFP16, DType::kF32};
constexpr std::array kGranularities{ScaleGranularity::kTensor, ScaleGranularity::kHead, ScaleGranularity::kBatchHead,
                                    ScaleGranularity::kTokenHead, ScaleGranularity::kChannel};
constexpr std::array kLayouts{VLayout::kRowMajor, VLayout::kPacked};

template <class Work>
void for_each_variant(Work work) {
  for (const DType dtype : kDTypes) {
    for (const ScaleGranularity granularity : kGranularities) {
      for (const VLayout layout : kLayouts) {
        SCOPED_TRACE(std::string(name_of(dtype)) + " " + name_of(granularity) + " " + name_of(layout));
        work(dtype, granularity, layout);
      }
    }
  }
}

class CudaQuantizeShapes : public CudaQuantize, public ::testing::WithParamInterface<Dims> {};

TEST_P(CudaQuantizeShapes, EqualTheCpu) {
  const Dims n = GetParam();
  for_each_variant([&](DType dtype, ScaleGranularity granularity, VLayout layout) {
    Case c = make_case(dtype, n, granularity, layout);
    fill_random(c.input, 1);
    expect_same_as_cpu(c, device_);
  });
}

TEST_P(CudaQuantizeShapes, EqualTheCpuWhateverTheStrides) {
  const Dims n = GetParam();
  for (const Strides strides : {Strides::kHeadsFirst, Strides::kSliceOfThree, Strides::kExpandedBatch,
                                Strides::kExpandedHeads, Strides::kRaggedRows}) {
    SCOPED_TRACE("strides " + std::to_string(static_cast<int>(strides)));
    const bool expanded = strides == Strides::kExpandedBatch || strides == Strides::kExpandedHeads;
    for_each_variant([&](DType dtype, ScaleGranularity granularity, VLayout layout) {
      Case c = make_case(dtype, n, granularity, layout);
      c.input = make_stored(dtype, n, strides, 0);
      c.output = make_output(layout, n, expanded ? Strides::kRaggedRows : strides, 0);
      fill_random(c.input, 2);
      expect_same_as_cpu(c, device_);
    });
  }
}

TEST_P(CudaQuantizeShapes, EqualTheCpuWhateverTheAlignment) {
  const Dims n = GetParam();
  constexpr std::array<std::array<std::int64_t, 2>, 4> kMisalignments{{{1, 0}, {0, 1}, {4, 4}, {3, 5}}};
  for (const auto [input, output] : kMisalignments) {
    SCOPED_TRACE("input " + std::to_string(input) + ", output " + std::to_string(output));
    for_each_variant([&](DType dtype, ScaleGranularity granularity, VLayout layout) {
      Case c = make_case(dtype, n, granularity, layout);
      c.input = make_stored(dtype, n, Strides::kContiguous, input);
      c.output = make_output(layout, n, Strides::kContiguous, output);
      fill_random(c.input, 3);
      expect_same_as_cpu(c, device_);
    });
  }
}

// Single elements; rows of less and more than the lanes of a warp; tokens around 16, 256 and a block's rows; channels
// around 64; one token; many heads.
INSTANTIATE_TEST_SUITE_P(Table, CudaQuantizeShapes,
                         ::testing::Values(Dims{1, 1, 1, 1}, Dims{1, 16, 1, 64}, Dims{2, 37, 3, 64},
                                           Dims{1, 300, 2, 128}, Dims{2, 129, 5, 80}, Dims{1, 17, 2, 100},
                                           Dims{3, 5, 1, 1032}, Dims{1, 257, 1, 72}, Dims{1, 1000, 4, 8},
                                           Dims{7, 1, 33, 128}, Dims{2, 3, 2, 1}),
                         [](const auto& info) {
                           const Dims& n = info.param;
                           return std::to_string(n[0]) + "x" + std::to_string(n[1]) + "x" + std::to_string(n[2]) + "x" +
                                  std::to_string(n[3]);
                         });

// Finite magnitudes above 448 would raise the scale: they stand in for more 448s.
TEST_F(CudaQuantize, AllSixteenBitPatternsAtScaleOne) {
  for (const DType dtype : {DType::kBF16, DType::kFP16}) {
    SCOPED_TRACE(name_of(dtype));
    const std::uint16_t largest = dtype == DType::kBF16 ? 0x43E0 : 0x5F00;  // 448
    const std::uint16_t infinity = dtype == DType::kBF16 ? 0x7F80 : 0x7C00;
    Case c = make_case(dtype, {1, 512, 1, 128}, ScaleGranularity::kTensor, VLayout::kRowMajor);
    std::vector<std::uint16_t> patterns(65536);
    for (int i = 0; i < 65536; ++i) {
      const int magnitude = i & 0x7FFF;
      patterns[i] = magnitude > largest && magnitude < infinity ? largest | (i & 0x8000) : i;
    }
    std::memcpy(&c.input.bytes[c.input.offset], patterns.data(), 2 * patterns.size());
    const Case::Result expected = c.run_cpu(), got = c.run_cuda(device_);
    EXPECT_EQ(scale_value(c, got.scale, 0), 1.0f);
    expect_equal(got.output, expected.output, "output");
    const auto code = [&](std::uint16_t pattern) { return int{got.output[c.output.offset + pattern]}; };
    EXPECT_EQ(code(0x0000), 0x00);
    EXPECT_EQ(code(0x8000), 0x80);
    EXPECT_EQ(code(largest), 0x7E);
    EXPECT_EQ(code(largest | 0x8000), 0xFE);
    EXPECT_EQ(code(infinity), 0x7E);
    EXPECT_EQ(code(infinity | 0x8000), 0xFE);
    EXPECT_EQ(code(infinity + 1), 0x7F);
    EXPECT_EQ(code(0xFFFF), 0x7F);
  }
}

// The same patterns with nothing replaced, so that the scale is the largest that the type knows.
TEST_F(CudaQuantize, AllSixteenBitPatternsAtTheirOwnScale) {
  for (const DType dtype : {DType::kBF16, DType::kFP16}) {
    SCOPED_TRACE(name_of(dtype));
    Case c = make_case(dtype, {1, 512, 1, 128}, ScaleGranularity::kTensor, VLayout::kPacked);
    for (int i = 0; i < 65536; ++i) std::memcpy(&c.input.bytes[c.input.offset + 2 * i], &i, 2);
    expect_same_as_cpu(c, device_);
  }
}

TEST_F(CudaQuantize, ExtremeMagnitudes) {
  constexpr float kHuge = std::numeric_limits<float>::max(), kTiny = std::numeric_limits<float>::denorm_min();
  for (const float largest : {kHuge, 1e30f, 464.0f, 449.0f, 448.0f, 1e-25f, 1e-30f, 1e-38f, 1e-44f, kTiny}) {
    SCOPED_TRACE(largest);
    for (const ScaleGranularity granularity : kGranularities) {
      Case c = make_case(DType::kF32, {1, 32, 2, 64}, granularity, VLayout::kRowMajor);
      auto* values = reinterpret_cast<float*>(&c.input.bytes[c.input.offset]);
      for (int i = 0; i < 32 * 2 * 64; ++i) values[i] = largest * static_cast<float>(i % 97 - 48) / 48.0f;
      expect_same_as_cpu(c, device_);
    }
  }
}

TEST_F(CudaQuantize, NothingFiniteAboveZeroGivesScaleOne) {
  constexpr std::array<std::array<float, 2>, 4> kValues{{{0, 0}, {-0.0f, 0}, {NAN, 0}, {INFINITY, -INFINITY}}};
  for_each_variant([&](DType dtype, ScaleGranularity granularity, VLayout layout) {
    for (const auto& values : kValues) {
      SCOPED_TRACE(values[0]);
      Case c = make_case(dtype, {2, 20, 2, 64}, granularity, layout);
      for (std::int64_t i = 0; i < c.input.view.count(); ++i) {
        std::uint32_t bits;
        std::memcpy(&bits, &values[i % 2], 4);
        if (dtype == DType::kBF16) bits >>= 16;
        // The specials of fp16 are bf16's with three exponent bits fewer.
        if (dtype == DType::kFP16)
          bits = (bits >> 16 & 0x8000) | (bits >> 13 & 0x7FFF & (bits & 0x7FFFFFFF ? 0x7E00 : 0));
        std::memcpy(&c.input.bytes[c.input.offset + i * size_of(dtype)], &bits, size_of(dtype));
      }
      const Case::Result got = c.run_cuda(device_), expected = c.run_cpu();
      for (std::int64_t i = 0; i < c.scale.view.count(); ++i) ASSERT_EQ(scale_value(c, got.scale, i), 1.0f);
      expect_equal(got.output, expected.output, "output");
    }
  });
}

TEST_F(CudaQuantize, NoElementsGivesScaleOne) {
  for (const Dims& n : {Dims{2, 0, 3, 64}, Dims{2, 5, 3, 0}}) {
    for (const ScaleGranularity granularity : kGranularities) {
      for (const VLayout layout : kLayouts) {
        SCOPED_TRACE(name_of(granularity));
        Case c = make_case(DType::kBF16, n, granularity, layout);
        const Case::Result got = c.run_cuda(device_);
        for (std::int64_t i = 0; i < c.scale.view.count(); ++i) ASSERT_EQ(scale_value(c, got.scale, i), 1.0f);
        EXPECT_EQ(got.output, c.output.bytes) << "there is nothing to write";
      }
    }
  }
}

TEST_F(CudaQuantize, MoreHeadsAndBatchesThanAGridDimension) {
  for (const Dims& n : {Dims{66000, 1, 1, 16}, Dims{66000, 2, 1, 8}, Dims{1, 2, 66000, 8}}) {
    for (const ScaleGranularity granularity : kGranularities) {
      for (const VLayout layout : kLayouts) {
        SCOPED_TRACE(std::string(name_of(granularity)) + " " + name_of(layout));
        Case c = make_case(DType::kBF16, n, granularity, layout);
        fill_random(c.input, 4);
        expect_same_as_cpu(c, device_);
      }
    }
  }
}

// Byte offsets beyond 2^32 and element offsets beyond 2^31: 300 tokens 32 MB apart.
TEST_F(CudaQuantize, OffsetsBeyondThirtyTwoBits) {
  constexpr std::int64_t kTokens = 300, kStride = std::int64_t{1} << 24, kChannels = 64;
  constexpr std::size_t kPitch = kStride * 2, kRow = kChannels * 2;
  std::size_t free = 0, total = 0;
  check_cuda(cudaMemGetInfo(&free, &total));
  if (free < kTokens * kPitch + (std::size_t{1} << 30)) GTEST_SKIP() << "needs 11 GB of device memory";
  for (const ScaleGranularity granularity : kGranularities) {
    for (const VLayout layout : kLayouts) {
      SCOPED_TRACE(std::string(name_of(granularity)) + " " + name_of(layout));
      Case c = make_case(DType::kBF16, {1, kTokens, 1, kChannels}, granularity, layout);
      fill_random(c.input, 5);
      const Case::Result expected = c.run_cpu();
      const DeviceBytes output(c.output.bytes), scale(c.scale.bytes);
      void* spread = nullptr;
      check_cuda(cudaMalloc(&spread, kTokens * kPitch));
      check_cuda(
          cudaMemcpy2D(spread, kPitch, &c.input.bytes[c.input.offset], kRow, kRow, kTokens, cudaMemcpyHostToDevice));
      QuantizeProblem problem = c.on_device(output, output, scale, device_);
      problem.input.data = spread;
      problem.input.strides = {kTokens * kStride, kStride, kChannels, 1};
      quantize(problem);
      expect_equal(scale.download(), expected.scale, "scale");
      expect_equal(output.download(), expected.output, "output");
      check_cuda(cudaFree(spread));
    }
  }
}

TEST_F(CudaQuantize, RepeatsGiveTheSameBits) {
  for (const VLayout layout : kLayouts) {
    Case c = make_case(DType::kBF16, {1, 2000, 8, 128}, ScaleGranularity::kTensor, layout);
    fill_random(c.input, 6);
    const Case::Result first = c.run_cuda(device_);
    for (int i = 0; i < 20; ++i) {
      const Case::Result again = c.run_cuda(device_);
      ASSERT_EQ(again.scale, first.scale);
      ASSERT_EQ(again.output, first.output);
    }
  }
}

// Captured once, replayed on new values in the same buffers.
TEST_F(CudaQuantize, CaptureOnASideStream) {
  cudaStream_t stream = nullptr;
  check_cuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  for_each_variant([&](DType dtype, ScaleGranularity granularity, VLayout layout) {
    Case c = make_case(dtype, {2, 70, 3, 64}, granularity, layout);
    DeviceBytes input(c.input.bytes), output(c.output.bytes), scale(c.scale.bytes);
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t executable = nullptr;
    check_cuda(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    quantize(c.on_device(input, output, scale, device_), {}, stream);
    check_cuda(cudaStreamEndCapture(stream, &graph));
    check_cuda(cudaGraphInstantiate(&executable, graph, 0));
    for (unsigned seed = 7; seed < 10; ++seed) {
      fill_random(c.input, seed);
      input.upload(c.input.bytes);
      check_cuda(cudaGraphLaunch(executable, stream));
      const Case::Result expected = c.run_cpu();
      expect_equal(scale.download(), expected.scale, "scale");
      expect_equal(output.download(), expected.output, "output");
    }
    check_cuda(cudaGraphExecDestroy(executable));
    check_cuda(cudaGraphDestroy(graph));
  });
  check_cuda(cudaStreamDestroy(stream));
}

// The tensors' device need not be the current one, which stays what it was.
TEST_F(CudaQuantize, WorksWhileAnotherDeviceIsCurrent) {
  const std::vector<bool> usable = list_backends().back().usable;
  if (std::count(usable.begin(), usable.end(), true) < 2) GTEST_SKIP() << "needs two usable CUDA devices";
  const int other =
      static_cast<int>(std::find(usable.begin() + device_.index + 1, usable.end(), true) - usable.begin());
  Case c = make_case(DType::kBF16, {1, 100, 2, 64}, ScaleGranularity::kHead, VLayout::kPacked);
  fill_random(c.input, 11);
  check_cuda(cudaSetDevice(other));
  const DeviceBytes input(c.input.bytes), output(c.output.bytes), scale(c.scale.bytes);
  check_cuda(cudaSetDevice(device_.index));
  quantize(c.on_device(input, output, scale, {DeviceKind::kCuda, other}));
  int current = -1;
  check_cuda(cudaGetDevice(&current));
  EXPECT_EQ(current, device_.index);
  check_cuda(cudaSetDevice(other));
  const Case::Result expected = c.run_cpu();
  expect_equal(scale.download(), expected.scale, "scale");
  expect_equal(output.download(), expected.output, "output");
  check_cuda(cudaSetDevice(device_.index));
}

TEST_F(CudaQuantize, PackVPutsEveryTokenWhereItBelongs) {
  for (const Dims& n : {Dims{1, 1, 1, 1}, Dims{2, 37, 3, 64}, Dims{1, 16, 2, 128}, Dims{1, 270, 1, 72},
                        Dims{2, 513, 2, 130}, Dims{1, 100, 3, 20}}) {
    for (const Strides strides : {Strides::kContiguous, Strides::kHeadsFirst, Strides::kExpandedHeads}) {
      for (const std::int64_t misalignment : {0, 1, 8}) {
        SCOPED_TRACE(testing::PrintToString(n) + " strides " + std::to_string(static_cast<int>(strides)) +
                     " misaligned by " + std::to_string(misalignment));
        Stored input = make_stored(DType::kE4M3, n, strides, misalignment);
        fill_random(input, 12);
        const std::int64_t length = packed_length(n[1]);
        Stored output = make_contiguous(DType::kE4M3, {n[0], n[2], n[3], length}, misalignment);
        const DeviceBytes x(input.bytes), y(output.bytes);
        pack_v(input.at(x.data(), device_), output.at(y.data(), device_));
        std::fill_n(&output.bytes[output.offset], output.view.count(), 0);
        std::int64_t row = 0;
        for_each_row(input.view, [&](std::int64_t first) {
          const std::int64_t h = row % n[2], s = row / n[2] % n[1], b = row / n[2] / n[1];
          for (std::int64_t c = 0; c < n[3]; ++c) {
            output.bytes[output.offset + ((b * n[2] + h) * n[3] + c) * length + packed_position(s)] =
                input.bytes[input.offset + first + c];
          }
          ++row;
        });
        expect_equal(y.download(), output.bytes, "output");
      }
    }
  }
}

}  // namespace
}  // namespace fp8attn::quantize_test
