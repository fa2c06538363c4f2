// append_mla(), gather_mla() and rotate_rope() on a GPU against the CPU, bit for bit, the memory between and around the
// elements included.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "cuda_device.h"
#include "fp8attn/kv_cache.h"
#include "random.h"

namespace fp8attn::test {
namespace {

using Bytes = std::vector<std::uint8_t>;

constexpr std::uint8_t kFill = 0x5A;

// How the bf16 rows of a case lie: room behind each row, and before the first, in elements. Without both, rows begin at
// multiples of 16 bytes.
struct Rows {
  std::int64_t gap = 0, offset = 0;
};

struct CacheCase {
  CacheFormat format = CacheFormat::kToken128;
  std::int64_t tokens = 37, pages = 5, page_size = 16;
  bool rotated = false, wide_slots = false;
  Rows rows = {};
  std::int64_t record_gap = 0;  // bytes, a multiple of 16
};

// Every bit pattern of bf16 now and then, numbers around 1 otherwise.
Bytes random_rows(std::int64_t elements, std::uint64_t seed) {
  const Random random(seed, 0);
  std::vector<std::uint16_t> codes(elements);
  for (std::int64_t i = 0; i < elements; ++i) {
    const float value = random.normal(i);
    std::uint32_t bits;
    std::memcpy(&bits, &value, 4);
    codes[i] = static_cast<std::uint16_t>(random.bits(~i) % 300 == 0 ? random.bits(i) : bits >> 16);
  }
  Bytes bytes(2 * elements);
  std::memcpy(bytes.data(), codes.data(), bytes.size());
  return bytes;
}

// Buffers of one call on one device.
class Memory {
 public:
  explicit Memory(TestDevice& device) : device_(device) {}

  void* put(const Bytes& bytes) {
    buffers_.emplace_back(device_, bytes.size());
    buffers_.back().upload(bytes.data());
    return buffers_.back().data();
  }
  Bytes get(int index) const {
    Bytes bytes(buffers_[index].size());
    buffers_[index].download(bytes.data());
    return bytes;
  }
  Device device() const { return device_.device(); }

 private:
  TestDevice& device_;
  std::vector<Buffer> buffers_;
};

// Distinct slots, some of them none of the cache.
Bytes slot_bytes(const CacheCase& test) {
  std::vector<std::int64_t> slots;
  for (std::int64_t i = 0; i < test.tokens; ++i) {
    slots.push_back(i % 7 == 3    ? -1
                    : i % 11 == 5 ? test.pages * test.page_size + i
                                  : i * 11 % (test.pages * test.page_size));
  }
  const std::vector<std::int32_t> narrow(slots.begin(), slots.end());
  const auto* data = test.wide_slots ? static_cast<const void*>(slots.data()) : narrow.data();
  Bytes bytes(slots.size() * (test.wide_slots ? 8 : 4));
  std::memcpy(bytes.data(), data, bytes.size());
  return bytes;
}

template <class View, class Pointer>
View rows_view(Pointer* data, const CacheCase& test, std::int64_t channels, Device device) {
  View view = View::contiguous(
      static_cast<std::conditional_t<std::is_same_v<View, TensorView>, const std::uint8_t, std::uint8_t>*>(data) +
          2 * test.rows.offset,
      DType::kBF16, {test.tokens, channels}, device);
  view.strides[0] = kMlaDim + test.rows.gap;
  return view;
}

MutableTensorView cache_view(void* data, const CacheCase& test, Device device) {
  auto view = MutableTensorView::contiguous(data, record_dtype(test.format),
                                            {test.pages, test.page_size, record_elements(test.format)}, device);
  view.strides[1] += test.record_gap / size_of(view.dtype);
  view.strides[0] = view.strides[1] * test.page_size;
  return view;
}

std::int64_t cache_bytes(const CacheCase& test) {
  return test.pages * test.page_size * (record_bytes(test.format) + test.record_gap);
}

std::int64_t row_elements(const CacheCase& test) { return test.rows.offset + test.tokens * (kMlaDim + test.rows.gap); }

TensorView slots_view(const void* data, const CacheCase& test, Device device) {
  return TensorView::contiguous(data, test.wide_slots ? DType::kI64 : DType::kI32, {test.tokens}, device);
}

constexpr float kCacheScale = 0.0137f;

Bytes scale_bytes() {
  Bytes bytes(4);
  std::memcpy(bytes.data(), &kCacheScale, 4);
  return bytes;
}

Bytes append(TestDevice& device, const CacheCase& test) {
  Memory memory(device);
  const Device where = memory.device();
  void* cache = memory.put(Bytes(cache_bytes(test), kFill));
  AppendMlaProblem problem;
  problem.latent = rows_view<TensorView>(memory.put(random_rows(row_elements(test), 1)), test, kLatentDim, where);
  problem.rope = rows_view<TensorView>(memory.put(random_rows(row_elements(test), 2)), test, kRopeDim, where);
  problem.slots = slots_view(memory.put(slot_bytes(test)), test, where);
  problem.cache = cache_view(cache, test, where);
  problem.format = test.format;
  problem.rotate_rope = test.rotated;
  if (test.format == CacheFormat::kTensor) {
    problem.cache_scale = TensorView::contiguous(memory.put(scale_bytes()), DType::kF32, {}, where);
  }
  append_mla(problem);
  return memory.get(0);
}

Bytes gather(TestDevice& device, const CacheCase& test, const Bytes& stored) {
  Memory memory(device);
  const Device where = memory.device();
  void* out = memory.put(Bytes(2 * row_elements(test), kFill));
  GatherMlaProblem problem;
  problem.cache = cache_view(memory.put(stored), test, where);
  problem.slots = slots_view(memory.put(slot_bytes(test)), test, where);
  problem.out = rows_view<MutableTensorView>(out, test, kMlaDim, where);
  problem.format = test.format;
  problem.rotate_rope = test.rotated;
  if (test.format == CacheFormat::kTensor) {
    problem.cache_scale = TensorView::contiguous(memory.put(scale_bytes()), DType::kF32, {}, where);
  }
  gather_mla(problem);
  return memory.get(0);
}

std::vector<CacheCase> cases() {
  std::vector<CacheCase> all;
  for (CacheFormat format : {CacheFormat::kBF16, CacheFormat::kTensor, CacheFormat::kToken128, CacheFormat::kToken}) {
    for (bool rotated : {false, true}) {
      all.push_back({.format = format, .rotated = rotated});
      all.push_back({.format = format, .rotated = rotated, .rows = {.gap = 8}, .record_gap = 48});
      all.push_back({.format = format, .rotated = rotated, .wide_slots = true, .rows = {.gap = 3, .offset = 1}});
    }
    for (std::int64_t tokens : {0, 1, 8, 2000}) {
      all.push_back({.format = format, .tokens = tokens, .pages = 700, .page_size = 3});
    }
    all.push_back({.format = format, .tokens = 300, .pages = 2, .page_size = 256});
  }
  return all;
}

class CudaKvCache : public ::testing::Test {
 protected:
  std::unique_ptr<TestDevice> cpu_ = make_cpu_device(), cuda_ = make_default_cuda_device();
};

// Bytes of the first difference, for the message.
void expect_same(const Bytes& got, const Bytes& want, const char* what) {
  ASSERT_EQ(got.size(), want.size());
  const auto differ = std::mismatch(got.begin(), got.end(), want.begin()).first - got.begin();
  EXPECT_EQ(differ, std::ssize(want)) << what << ": byte " << differ;
}

// tools/gpu.sh runs this one under compute-sanitizer.
using CudaKvCacheSanitizer = CudaKvCache;

TEST_F(CudaKvCacheSanitizer, F_EqualTheCpu) {
  for (const CacheCase& test : cases()) {
    SCOPED_TRACE(std::string(name_of(test.format)) + ", rotated " + std::to_string(test.rotated) + ", tokens " +
                 std::to_string(test.tokens) + ", gap " + std::to_string(test.rows.gap));
    const Bytes stored = append(*cpu_, test);
    expect_same(append(*cuda_, test), stored, "append_mla");
    expect_same(gather(*cuda_, test, stored), gather(*cpu_, test, stored), "gather_mla");
  }
}

// A cache of more than 2^32 bytes, of which the first and the last records are written and read.
TEST_F(CudaKvCache, D_CacheBeyondFourGigabytes) {
  constexpr std::int64_t kPages = 110000, kRow = 64 * 656;
  ASSERT_GT(kPages * kRow, std::int64_t{1} << 32);
  const Device where = cuda_->device();
  void* memory = nullptr;
  ASSERT_EQ(cudaMalloc(&memory, kPages * kRow), cudaSuccess);
  const CacheCase test{.tokens = 4};
  Memory buffers(*cuda_);
  const std::int32_t slots[] = {0, kPages * 64 - 1, kPages * 32, kPages * 64};
  Bytes slot_data(sizeof slots);
  std::memcpy(slot_data.data(), slots, sizeof slots);
  const Bytes rows = random_rows(row_elements(test), 1);
  void* out = buffers.put(Bytes(rows.size(), kFill));
  AppendMlaProblem problem;
  problem.latent = rows_view<TensorView>(buffers.put(rows), test, kLatentDim, where);
  problem.rope = rows_view<TensorView>(buffers.put(rows), test, kRopeDim, where);
  problem.slots = slots_view(buffers.put(slot_data), test, where);
  problem.cache = MutableTensorView::contiguous(memory, DType::kU8, {kPages, 64, 656}, where);
  append_mla(problem);
  GatherMlaProblem back;
  back.cache = problem.cache;
  back.slots = problem.slots;
  back.out = rows_view<MutableTensorView>(out, test, kMlaDim, where);
  gather_mla(back);
  const Bytes far = buffers.get(0);
  // The same four tokens in a small cache.
  Memory small(*cuda_);
  void* near_out = small.put(Bytes(rows.size(), kFill));
  problem.cache = MutableTensorView::contiguous(small.put(Bytes(4 * 656)), DType::kU8, {4, 1, 656}, where);
  const std::int32_t near_slots[] = {0, 1, 2, 4};
  std::memcpy(slot_data.data(), near_slots, sizeof near_slots);
  problem.slots = slots_view(small.put(slot_data), test, where);
  append_mla(problem);
  back.cache = problem.cache;
  back.slots = problem.slots;
  back.out = rows_view<MutableTensorView>(near_out, test, kMlaDim, where);
  gather_mla(back);
  expect_same(far, small.get(0), "gather_mla");
  EXPECT_EQ(cudaFree(memory), cudaSuccess);
}

// Every code and many scales, NaN and infinite ones included.
TEST_F(CudaKvCache, F_GatherOfAnyBytes) {
  for (CacheFormat format : {CacheFormat::kBF16, CacheFormat::kTensor, CacheFormat::kToken128, CacheFormat::kToken}) {
    const CacheCase test{.format = format, .tokens = 80};
    Bytes stored(cache_bytes(test));
    const Random random(3, 0);
    for (std::size_t i = 0; i < stored.size(); ++i) stored[i] = static_cast<std::uint8_t>(random.bits(i));
    expect_same(gather(*cuda_, test, stored), gather(*cpu_, test, stored), name_of(format));
  }
}

TEST_F(CudaKvCache, F_RotateRopeEqualsTheCpu) {
  for (std::int64_t offset : {0, 1}) {
    for (bool in_place : {false, true}) {
      const Bytes rows = random_rows(offset + 2 * 3 * 5 * kMlaDim, 4);
      const auto run = [&](TestDevice& device) {
        Memory memory(device);
        auto* input = static_cast<std::uint16_t*>(memory.put(rows)) + offset;
        auto* output = static_cast<std::uint16_t*>(memory.put(Bytes(rows.size(), kFill))) + offset;
        const TensorView from = TensorView::contiguous(input, DType::kBF16, {2, 3, 5, kMlaDim}, memory.device());
        MutableTensorView to =
            MutableTensorView::contiguous(in_place ? input : output, DType::kBF16, {2, 3, 5, kMlaDim}, memory.device());
        if (!in_place) to.strides = {15 * kMlaDim, kMlaDim, 3 * kMlaDim, 1};
        rotate_rope(from, to);
        return memory.get(in_place ? 0 : 1);
      };
      expect_same(run(*cuda_), run(*cpu_), in_place ? "in place" : "with heads outside of tokens");
    }
  }
}

}  // namespace
}  // namespace fp8attn::test
