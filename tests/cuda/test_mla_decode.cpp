// MLA decode on a CUDA device beyond the table of tests/support: graphs whose lengths change, streams.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <thread>
#include <vector>

#include "cuda_device.h"
#include "mla_methods.h"
#include "mla_run.h"
#include "mla_tests.h"

namespace fp8attn::test {
namespace {

constexpr auto kDelay = std::chrono::milliseconds(50);

void expect_success(cudaError_t status) { ASSERT_EQ(status, cudaSuccess) << cudaGetErrorString(status); }

void CUDART_CB sleep_on_stream(void*) { std::this_thread::sleep_for(kDelay); }

class CudaMlaCalls : public ::testing::Test {
 protected:
  void SetUp() override {
    device_ = make_default_cuda_device();
    ASSERT_NE(device_, nullptr);
    expect_success(cudaSetDevice(device_->device().index));
    expect_success(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
    for (const MlaCase& kind : mla_kinds(DeviceKind::kCuda)) {
      if (!kind.sparse()) kinds_.push_back(kind);
    }
    if (kinds_.empty()) GTEST_SKIP() << "this build has no CUDA kernels of MLA decode";
  }
  void TearDown() override { cudaStreamDestroy(stream_); }

  // Calls work with every dense kind that this build has.
  template <class Work>
  void for_each_kind(Work work) {
    for (MlaCase test : kinds_) {
      SCOPED_TRACE(test.name);
      test.lengths = {700, 64, 0, 3000, 1, 129};
      test.s_q = 2;
      test.causal = true;
      try {
        work(test);
      } catch (const Error& error) {
        if (!is_left_out(error)) throw;
      }
    }
  }

  std::vector<MlaCase> kinds_;
  std::unique_ptr<TestDevice> device_;
  cudaStream_t stream_ = nullptr;
};

// Longer, shorter and no sequences, in the buffers of the captured call; rows of -1 where there is no sequence.
TEST_F(CudaMlaCalls, K_GraphReplaysWithOtherLengths) {
  for_each_kind([&](const MlaCase& test) {
    const MlaInputs inputs = make_mla_inputs(test);
    MlaRun run(*device_, test, inputs);
    cudaGraph_t graph;
    cudaGraphExec_t executable;
    run.launch(stream_);  // loads the kernels
    expect_success(cudaStreamSynchronize(stream_));
    expect_success(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeGlobal));
    run.launch(stream_);
    expect_success(cudaStreamEndCapture(stream_, &graph));
    expect_success(cudaGraphInstantiate(&executable, graph, 0));
    const std::vector<std::vector<std::int64_t>> replays = {
        {700, 64, 0, 3000, 1, 129}, {0, 0, 0, 0, 0, 0}, {1, 64, 0, 2999, 0, 64}, {700, 3, 0, 17, 1, 129}};
    for (const std::vector<std::int64_t>& lengths : replays) {
      MlaCase shorter = test;
      shorter.lengths = lengths;
      MlaInputs now = inputs;
      for (std::size_t i = 0; i < lengths.size(); ++i) {
        for (std::int64_t page = lengths[i] == 0 ? 0 : inputs.max_pages; page < inputs.max_pages; ++page) {
          now.block_table[i * inputs.max_pages + page] = -1;
        }
      }
      run.clear_output();
      run.set_sequences(lengths, now.block_table);
      expect_success(cudaGraphLaunch(executable, stream_));
      expect_success(cudaStreamSynchronize(stream_));
      // A fresh call plans from the same lengths: the same bits.
      EXPECT_TRUE(run.read() == run_mla(*device_, shorter, now));
    }
    EXPECT_EQ(cudaGraphExecDestroy(executable), cudaSuccess);
    EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
  });
}

TEST_F(CudaMlaCalls, M_ReturnsBeforeTheWorkIsDone) {
  for_each_kind([&](const MlaCase& test) {
    MlaRun run(*device_, test, make_mla_inputs(test));
    run.launch(stream_);  // loads the kernels
    expect_success(cudaDeviceSynchronize());
    expect_success(cudaLaunchHostFunc(stream_, sleep_on_stream, nullptr));
    run.launch(stream_);
    EXPECT_EQ(cudaStreamQuery(stream_), cudaErrorNotReady);
    EXPECT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
  });
}

// The records of a case in a cache whose pages lie 400 MB apart: byte offsets beyond 2^32.
TEST_F(CudaMlaCalls, D_CacheBeyondFourGigabytes) {
  constexpr std::int64_t kPageStride = std::int64_t{400} << 20;  // bytes
  for_each_kind([&](MlaCase test) {
    test.lengths = {500, 200};
    const MlaInputs inputs = make_mla_inputs(test);
    ASSERT_GT(inputs.pages * kPageStride, std::int64_t{1} << 32);
    MlaRun run(*device_, test, inputs);
    const PrefillOutput want = run_mla(*device_, test, inputs);
    const std::int64_t element = size_of(record_dtype(test.format)),
                       page_bytes = test.page_size * record_bytes(test.format);
    void* memory = nullptr;
    expect_success(cudaMalloc(&memory, inputs.pages * kPageStride));
    for (std::int64_t page = 0; page < inputs.pages; ++page) {
      expect_success(cudaMemcpy(static_cast<std::uint8_t*>(memory) + page * kPageStride,
                                inputs.cache.data() + page * page_bytes, page_bytes, cudaMemcpyHostToDevice));
    }
    run.problem().cache.data = memory;
    run.problem().cache.strides[0] = kPageStride / element;
    run.launch();
    EXPECT_TRUE(run.read() == want);
    expect_success(cudaFree(memory));
  });
}

// The workspace depends on shapes, not on lengths.
TEST_F(CudaMlaCalls, K_WorkspaceDoesNotDependOnLengths) {
  for_each_kind([&](const MlaCase& test) {
    MlaRun run(*device_, test, make_mla_inputs(test));
    const std::size_t size = workspace_size(run.problem());
    run.set_sequences({0, 0, 0, 0, 0, 0}, std::vector<std::int64_t>(6 * run.problem().block_table->shape[1], -1));
    EXPECT_EQ(workspace_size(run.problem()), size);
  });
}

// What tools/gpu.sh runs under compute-sanitizer: every kind that this build has, units that are split, short and
// empty.
class CudaMlaSanitizer : public ::testing::TestWithParam<MlaCase> {};

TEST_P(CudaMlaSanitizer, G_MatchesReference) {
  MlaCase test = GetParam();
  test.lengths = {700, 65, 0};
  test.s_q = 2;
  test.h_q = 40;
  test.causal = !test.sparse();
  const auto device = make_default_cuda_device();
  ASSERT_NE(device, nullptr);
  try {
    EXPECT_TRUE(mla_matches_reference(*device, {test}));
  } catch (const Error& error) {
    if (!is_left_out(error)) throw;
    GTEST_SKIP() << error.what();
  }
}

INSTANTIATE_TEST_SUITE_P(Small, CudaMlaSanitizer, ::testing::ValuesIn(mla_kinds(DeviceKind::kCuda)),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace fp8attn::test
