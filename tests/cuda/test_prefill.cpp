// Prefill on a CUDA device beyond the table of tests/support: streams, graphs, several GPUs.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "cuda_device.h"
#include "fp8attn/backend.h"
#include "prefill_methods.h"
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

// Every way in which a kernel finds the rows of a sequence, with windows that leave whole tiles unseen.
std::vector<PrefillCase> batch_cases() {
  const Dims n{.b = 5, .s_q = 300, .s_kv = 700, .h_q = 4, .h_kv = 2, .d_qk = 128, .d_v = 128};
  const auto batch = [](KeyForm keys, std::int64_t page_size = 64) {
    return BatchForm{.ragged_q = true,
                     .keys = keys,
                     .q_lengths = {300, 1, 130, 0, 64},
                     .kv_lengths = {640, 700, 130, 64, 0},
                     .page_size = page_size,
                     .int64 = page_size != 64};
  };
  std::vector<PrefillCase> all = {
      {.name = "e4m3_lengths", .batch = batch(KeyForm::kDense)},
      {.name = "e4m3_packed_lengths", .batch = batch(KeyForm::kDense), .v_layout = VLayout::kPacked},
      {.name = "e4m3_ragged", .batch = batch(KeyForm::kRagged)},
      {.name = "e4m3_paged", .batch = batch(KeyForm::kPaged)},
      {.name = "e4m3_packed_paged", .batch = batch(KeyForm::kPaged), .v_layout = VLayout::kPacked},
      {.name = "e4m3_odd_pages", .batch = batch(KeyForm::kPaged, 24)},
      {.name = "bf16_ragged", .batch = batch(KeyForm::kRagged), .dtype = DType::kBF16},
      {.name = "bf16_odd_pages", .batch = batch(KeyForm::kPaged, 5), .dtype = DType::kBF16},
      {.name = "bf16_q_of_e4m3", .batch = batch(KeyForm::kPaged, 128), .q_dtype = DType::kBF16}};
  for (PrefillCase& test : all) {
    test.n = n;
    test.causal = true;
    test.window_left = 200;
  }
  // Short queries, whose keys are split among CTAs as their lengths are at the moment.
  const std::pair<const char*, BatchForm> forms[] = {{"short_lengths", batch(KeyForm::kDense)},
                                                     {"short_paged", batch(KeyForm::kPaged)},
                                                     {"short_odd_pages", batch(KeyForm::kPaged, 24)}};
  for (DType dtype : {DType::kE4M3, DType::kBF16}) {
    for (const auto& [name, form] : forms) {
      PrefillCase test{
          .name = std::string(fp8attn::name_of(dtype)) + "_" + name, .n = n, .batch = form, .dtype = dtype};
      test.n.s_q = 3;
      test.batch.ragged_q = false;
      test.batch.q_lengths = {};
      all.push_back(std::move(test));
    }
  }
  return all;
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

// How long sequences are, and which one's pages each has.
struct Sequences {
  std::vector<std::int64_t> queries, keys, pages_of;
};

class CudaPrefillBatches : public CudaPrefillCalls {
 protected:
  static void set(PrefillRun& run, const Sequences& sequences) {
    PrefillProblem& problem = run.problem();
    const auto offsets_of = [](const std::vector<std::int64_t>& lengths, std::int64_t first) {
      std::vector<std::int64_t> offsets = {first};
      for (std::int64_t length : lengths) offsets.push_back(offsets.back() + length);
      return offsets;
    };
    if (problem.q_offsets) {
      run.set_indices(*problem.q_offsets, offsets_of(sequences.queries, run.queries().offsets[0]));
    }
    if (problem.kv_offsets) {
      run.set_indices(*problem.kv_offsets, offsets_of(sequences.keys, run.keys().offsets[0]));
    }
    if (problem.kv_lengths) run.set_indices(*problem.kv_lengths, sequences.keys);
    if (!problem.block_table) return;
    std::vector<std::int64_t> table;
    const std::int64_t pages = run.keys().max_pages;
    for (std::int64_t from : sequences.pages_of) {
      const auto row = run.keys().block_table.begin() + from * pages;
      table.insert(table.end(), row, row + pages);
    }
    run.set_indices(*problem.block_table, table);
  }

  PrefillOutput output_of(const PrefillInputs& inputs, const Sequences& sequences) {
    PrefillRun run(*device_, GetParam(), inputs);
    set(run, sequences);
    run.launch();
    return run.read();
  }
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

TEST_P(CudaPrefillBatches, K_GraphReplaysWithOtherLengths) {
  const PrefillCase& test = GetParam();
  const PrefillInputs inputs = make_inputs(test);
  const Sequences all{test.batch.q_lengths, test.batch.kv_lengths, {0, 1, 2, 3, 4}};
  const Sequences ones{{1, 1, 1, 1, 1}, {1, 1, 1, 1, 0}, {0, 1, 2, 3, 4}};
  const Sequences none{{0, 0, 0, 0, 0}, {0, 0, 0, 0, 0}, {0, 1, 2, 3, 4}};
  const Sequences exchanged{{1, 300, 7, 64, 0}, {700, 640, 64, 130, 0}, {1, 0, 3, 2, 4}};
  PrefillRun run(*device_, test, inputs);
  set(run, ones);
  cudaGraph_t graph;
  cudaGraphExec_t executable;
  expect_success(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeGlobal));
  run.launch(stream_);
  expect_success(cudaStreamEndCapture(stream_, &graph));
  expect_success(cudaGraphInstantiate(&executable, graph, 0));
  int replay = 0;
  for (const Sequences& sequences : {all, ones, exchanged, none, all, exchanged}) {
    run.clear_output();
    set(run, sequences);
    expect_success(cudaGraphLaunch(executable, stream_));
    EXPECT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
    EXPECT_TRUE(run.read() == output_of(inputs, sequences)) << "replay " << replay;
    ++replay;
  }
  EXPECT_EQ(cudaGraphExecDestroy(executable), cudaSuccess);
  EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
}

TEST_P(CudaPrefillBatches, G_TwoCallsAtOnce) {
  const PrefillInputs inputs = make_inputs(GetParam());
  const Sequences all{GetParam().batch.q_lengths, GetParam().batch.kv_lengths, {0, 1, 2, 3, 4}};
  const Sequences exchanged{{1, 300, 7, 64, 0}, {700, 640, 64, 130, 0}, {1, 0, 3, 2, 4}};
  const PrefillOutput want = output_of(inputs, all), want_exchanged = output_of(inputs, exchanged);
  ASSERT_FALSE(want == want_exchanged);
  PrefillRun first(*device_, GetParam(), inputs), second(*device_, GetParam(), inputs);
  set(first, all);
  set(second, exchanged);
  cudaStream_t other;
  expect_success(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
  for (int i = 0; i < 20; ++i) {
    first.launch(stream_);
    second.launch(other);
  }
  EXPECT_TRUE(first.read() == want);
  EXPECT_TRUE(second.read() == want_exchanged);
  EXPECT_EQ(cudaStreamDestroy(other), cudaSuccess);
}

// One sequence, from a single key to a cache that every multiprocessor has a part of.
std::vector<PrefillCase> long_caches() {
  const Dims n{.b = 1, .s_q = 1, .s_kv = 32768, .h_q = 8, .h_kv = 2, .d_qk = 128, .d_v = 128};
  const auto batch = [](KeyForm keys, std::int64_t page_size) {
    return BatchForm{.keys = keys, .kv_lengths = {32768}, .page_size = page_size};
  };
  return {{.name = "e4m3", .n = n, .batch = batch(KeyForm::kDense, 64)},
          {.name = "e4m3_odd_pages", .n = n, .batch = batch(KeyForm::kPaged, 24)},
          {.name = "bf16_q", .n = n, .batch = batch(KeyForm::kPaged, 64), .q_dtype = DType::kBF16},
          {.name = "bf16", .n = n, .batch = batch(KeyForm::kPaged, 16), .dtype = DType::kBF16}};
}

class CudaLongCaches : public CudaPrefillBatches {};

TEST_P(CudaLongCaches, K_GraphReplaysFromOneKeyToAll) {
  const PrefillInputs inputs = make_inputs(GetParam());
  PrefillRun run(*device_, GetParam(), inputs);
  set(run, {{}, {1}, {0}});
  cudaGraph_t graph;
  cudaGraphExec_t executable;
  expect_success(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeGlobal));
  run.launch(stream_);
  expect_success(cudaStreamEndCapture(stream_, &graph));
  expect_success(cudaGraphInstantiate(&executable, graph, 0));
  for (std::int64_t length : {1, 32768, 0, 4097, 32767, 1}) {
    const Sequences sequences{{}, {length}, {0}};
    run.clear_output();
    set(run, sequences);
    expect_success(cudaGraphLaunch(executable, stream_));
    EXPECT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
    EXPECT_TRUE(run.read() == output_of(inputs, sequences)) << length << " keys";
  }
  EXPECT_TRUE(matches_reference(*device_, {GetParam()}));
  EXPECT_EQ(cudaGraphExecDestroy(executable), cudaSuccess);
  EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
}

// What tools/gpu.sh runs under compute-sanitizer.
std::vector<PrefillCase> sanitizer_cases() {
  std::vector<PrefillCase> all = cases();
  for (PrefillCase& test : all) test.n.b = 1;
  for (const PrefillCase& test : batch_cases()) {
    if (test.batch.ragged_q) continue;
    all.push_back(test);
    all.back().n.h_q = 12;
    if (test.dtype != DType::kE4M3) continue;
    all.push_back(all.back());
    all.back().name = "bf16_q_" + test.name;
    all.back().q_dtype = DType::kBF16;
  }
  return all;
}

class CudaPrefillSanitizer : public CudaPrefillCalls {};

TEST_P(CudaPrefillSanitizer, G_MatchesReference) { EXPECT_TRUE(matches_reference(*device_, {GetParam()})); }

TEST_P(CudaPrefillBatches, K_WorkspaceDoesNotDependOnLengths) {
  PrefillRun run(*device_, GetParam(), make_inputs(GetParam()));
  const std::size_t size = workspace_size(run.problem());
  set(run, {{0, 0, 0, 0, 0}, {0, 0, 0, 0, 0}, {0, 1, 2, 3, 4}});
  EXPECT_EQ(workspace_size(run.problem()), size);
}

// Pages that lie 400 MB apart, so that byte offsets pass 2^32, those of values 200 MB behind those of keys.
TEST_P(CudaPrefillBatches, D_CacheBeyondFourGigabytes) {
  constexpr std::int64_t kPageStride = std::int64_t{400} << 20, kValueOffset = kPageStride / 2;
  PrefillCase test = GetParam();
  if (test.batch.keys != KeyForm::kPaged) GTEST_SKIP() << "keys without pages";
  test.batch.page_size = 64;
  const PrefillInputs inputs = make_inputs(test);
  PrefillRun run(*device_, test, inputs);
  run.launch();
  const PrefillOutput want = run.read();
  const HostTensor k = spread(inputs.k, run.keys(), 1, Gap::kZeros), v = spread(inputs.v, run.keys(), 1, Gap::kZeros);
  const HostTensor stored_v = test.v_layout == VLayout::kPacked ? pack_host_v(v) : v;
  const std::int64_t pages = run.keys().outer, page_bytes = std::ssize(k.bytes) / pages;
  ASSERT_GT(pages * kPageStride, std::int64_t{1} << 32);
  void* memory = nullptr;
  expect_success(cudaMalloc(&memory, pages * kPageStride));
  auto* const bytes = static_cast<std::uint8_t*>(memory);
  for (std::int64_t page = 0; page < pages; ++page) {
    const auto copy = [&](std::int64_t offset, const HostTensor& from) {
      expect_success(cudaMemcpy(bytes + page * kPageStride + offset, &from.bytes[page * page_bytes], page_bytes,
                                cudaMemcpyHostToDevice));
    };
    copy(0, k);
    copy(kValueOffset, stored_v);
  }
  run.problem().k.data = bytes;
  run.problem().v.data = bytes + kValueOffset;
  run.problem().k.strides[0] = run.problem().v.strides[0] = kPageStride / size_of(test.dtype);
  run.clear_output();
  run.launch();
  EXPECT_TRUE(run.read() == want);
  EXPECT_EQ(cudaFree(memory), cudaSuccess);
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

INSTANTIATE_TEST_SUITE_P(Forms, CudaPrefillBatches, ::testing::ValuesIn(batch_cases()),
                         [](const auto& info) { return info.param.name; });

INSTANTIATE_TEST_SUITE_P(Forms, CudaLongCaches, ::testing::ValuesIn(long_caches()),
                         [](const auto& info) { return info.param.name; });

INSTANTIATE_TEST_SUITE_P(Small, CudaPrefillSanitizer, ::testing::ValuesIn(sanitizer_cases()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace fp8attn::test
