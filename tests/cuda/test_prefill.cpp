// Prefill on a CUDA device beyond the table of tests/support: streams, graphs, several GPUs.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <memory>
#include <thread>
#include <vector>

#include "cuda_device.h"
#include "fp8attn/backend.h"
#include "prefill_run.h"

namespace fp8attn::test {
namespace {

constexpr auto kDelay = std::chrono::milliseconds(50);

void expect_success(cudaError_t status) { ASSERT_EQ(status, cudaSuccess) << cudaGetErrorString(status); }

void CUDART_CB sleep_on_stream(void*) { std::this_thread::sleep_for(kDelay); }

// Host memory that an asynchronous copy reads when its turn comes.
class PinnedBytes {
 public:
  explicit PinnedBytes(const std::vector<std::uint8_t>& bytes) : size_(bytes.size()) {
    expect_success(cudaMallocHost(&data_, size_));
    std::memcpy(data_, bytes.data(), size_);
  }
  ~PinnedBytes() { cudaFreeHost(data_); }
  PinnedBytes(const PinnedBytes&) = delete;
  PinnedBytes& operator=(const PinnedBytes&) = delete;

  const void* data() const { return data_; }
  std::size_t size() const { return size_; }

 private:
  void* data_ = nullptr;
  std::size_t size_;
};

// Every path of launches: 8-bit with a packed V and with one that is packed first, 16-bit, 16-bit to 8.
std::vector<PrefillCase> cases() {
  const Dims n{.b = 2, .s_q = 193, .s_kv = 333, .h_q = 4, .h_kv = 2, .d_qk = 128, .d_v = 128};
  return {{.name = "e4m3", .n = n, .causal = true, .v_layout = VLayout::kPacked},
          {.name = "e4m3_row_major", .n = n, .causal = true},
          {.name = "bf16", .n = n, .dtype = DType::kBF16, .causal = true},
          {.name = "bf16_quantized",
           .n = n,
           .dtype = DType::kBF16,
           .causal = true,
           .quantize = QuantizeRecipe{.smooth_k = true, .hadamard = true, .center_v = true}}};
}

class CudaPrefillCalls : public ::testing::TestWithParam<PrefillCase> {
 protected:
  void SetUp() override {
    device_ = make_default_cuda_device();
    ASSERT_NE(device_, nullptr);
    expect_success(cudaSetDevice(device_->device().index));
    expect_success(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
    try {
      const PrefillRun run(*device_, GetParam(), make_inputs(GetParam()));
    } catch (const Error& error) {
      if (is_left_out(error)) GTEST_SKIP() << error.what();
      throw;
    }
  }
  void TearDown() override { cudaStreamDestroy(stream_); }

  // A copy of the inputs whose queries are all 0, so that every output differs.
  static PrefillInputs without_queries(PrefillInputs inputs) {
    std::fill(inputs.q.bytes.begin(), inputs.q.bytes.end(), std::uint8_t{0});
    return inputs;
  }

  // Puts queries into the (dense) q of a run, in stream order and without waiting.
  void upload_queries(PrefillRun& run, const PinnedBytes& queries) {
    expect_success(cudaMemcpyAsync(const_cast<void*>(run.problem().q.data), queries.data(), queries.size(),
                                   cudaMemcpyHostToDevice, stream_));
  }

  std::unique_ptr<TestDevice> device_;
  cudaStream_t stream_ = nullptr;
};

TEST_P(CudaPrefillCalls, M_RunsOnItsStream) {
  const PrefillInputs inputs = make_inputs(GetParam());
  const PrefillOutput want = run_prefill(*device_, GetParam(), inputs);
  PrefillRun run(*device_, GetParam(), without_queries(inputs));
  const PinnedBytes queries(inputs.q.bytes);
  // Only work on this very stream comes after the delay and sees the queries.
  expect_success(cudaDeviceSynchronize());
  expect_success(cudaLaunchHostFunc(stream_, sleep_on_stream, nullptr));
  upload_queries(run, queries);
  run.launch(stream_);
  EXPECT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
  EXPECT_TRUE(run.read() == want);
}

TEST_P(CudaPrefillCalls, M_ReturnsBeforeTheWorkIsDone) {
  PrefillRun run(*device_, GetParam(), make_inputs(GetParam()));
  run.launch(stream_);  // loads the kernel
  expect_success(cudaDeviceSynchronize());
  expect_success(cudaLaunchHostFunc(stream_, sleep_on_stream, nullptr));
  run.launch(stream_);
  EXPECT_EQ(cudaStreamQuery(stream_), cudaErrorNotReady);
  EXPECT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
}

TEST_P(CudaPrefillCalls, K_GraphReplaysWithNewData) {
  const PrefillInputs inputs = make_inputs(GetParam()), blank = without_queries(inputs);
  const PrefillOutput want = run_prefill(*device_, GetParam(), inputs);
  const PrefillOutput want_blank = run_prefill(*device_, GetParam(), blank);
  ASSERT_FALSE(want == want_blank);
  PrefillRun run(*device_, GetParam(), blank);
  const PinnedBytes queries(inputs.q.bytes), no_queries(blank.q.bytes);
  cudaGraph_t graph;
  cudaGraphExec_t executable;
  expect_success(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeGlobal));
  run.launch(stream_);
  expect_success(cudaStreamEndCapture(stream_, &graph));
  expect_success(cudaGraphInstantiate(&executable, graph, 0));
  for (int i = 0; i < 3; ++i) {
    run.clear_output();
    upload_queries(run, no_queries);
    expect_success(cudaGraphLaunch(executable, stream_));
    EXPECT_TRUE(run.read() == want_blank) << "replay " << i;
    upload_queries(run, queries);
    expect_success(cudaGraphLaunch(executable, stream_));
    EXPECT_TRUE(run.read() == want) << "replay " << i << " with queries";
  }
  EXPECT_EQ(cudaGraphExecDestroy(executable), cudaSuccess);
  EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
}

TEST_P(CudaPrefillCalls, M_SecondGpuWhileTheFirstIsCurrent) {
  std::vector<int> usable;
  for (const BackendInfo& backend : list_backends()) {
    for (std::size_t i = 0; backend.kind == DeviceKind::kCuda && i < backend.usable.size(); ++i) {
      if (backend.usable[i]) usable.push_back(static_cast<int>(i));
    }
  }
  if (usable.size() < 2) GTEST_SKIP() << "this machine has one usable GPU";
  const PrefillInputs inputs = make_inputs(GetParam());
  expect_success(cudaSetDevice(usable[0]));
  const auto first = make_cuda_device(usable[0]), second = make_cuda_device(usable[1]);
  EXPECT_TRUE(run_prefill(*second, GetParam(), inputs) == run_prefill(*first, GetParam(), inputs));
  int current = -1;
  expect_success(cudaGetDevice(&current));
  EXPECT_EQ(current, usable[0]);
}

INSTANTIATE_TEST_SUITE_P(Elements, CudaPrefillCalls, ::testing::ValuesIn(cases()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace fp8attn::test
