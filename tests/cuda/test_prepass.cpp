// What runs before a prefill kernel in the same call, each step by itself: the list of tiles, V packed, pages gathered.
// Every byte of what they write is compared, and the memory around it.
#include <cuda_runtime_api.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "cuda/sm90/prepass/prepass.h"
#include "cuda_device.h"
#include "device_vector.h"
#include "fp8attn/quantize.h"
#include "tile_list_reference.h"

namespace fp8attn::test {
namespace {

using cuda::BatchView;
using cuda::Divisor;
using cuda::IndexView;

constexpr std::uint8_t kUntouched = 0xA5, kNan = 0x7F;

// Offsets, lengths or a table, int32 or int64, on the host and on the device.
class Indices {
 public:
  Indices(TestDevice& device, const std::vector<std::int64_t>& values, bool is_int64, std::int64_t row = 1)
      : row_(row), is_int64_(is_int64), bytes_(values.size() * (is_int64 ? 8 : 4)) {
    for (std::size_t i = 0; i < values.size(); ++i) {
      const auto narrow = static_cast<std::int32_t>(values[i]);
      if (is_int64) {
        std::memcpy(&bytes_[8 * i], &values[i], 8);
      } else {
        std::memcpy(&bytes_[4 * i], &narrow, 4);
      }
    }
    copy_ = std::make_unique<DeviceVector<std::uint8_t>>(device, bytes_);
  }

  IndexView on_host() const { return {.data = bytes_.data(), .strides = {row_, 1, 0}, .is_int64 = is_int64_}; }
  IndexView on_device() const { return {.data = copy_->data(), .strides = {row_, 1, 0}, .is_int64 = is_int64_}; }

 private:
  std::int64_t row_;
  bool is_int64_;
  std::vector<std::uint8_t> bytes_;
  std::unique_ptr<DeviceVector<std::uint8_t>> copy_;
};

class CudaPrepass : public ::testing::Test {
 protected:
  void SetUp() override {
    device_ = make_default_cuda_device();
    if (device_ == nullptr) GTEST_SKIP() << "no usable CUDA device";
    ASSERT_EQ(cudaSetDevice(device_->device().index), cudaSuccess);
  }
  std::unique_ptr<TestDevice> device_;
};

class CudaPlan : public CudaPrepass {
 protected:
  // Ragged queries of these lengths, and keys of theirs.
  void expect_list(const std::vector<int>& queries, const std::vector<int>& keys, cuda::UnevenTiles tiles) {
    std::vector<std::int64_t> q_offsets = {0}, kv_offsets = {0};
    for (int length : queries) q_offsets.push_back(q_offsets.back() + length);
    for (int length : keys) kv_offsets.push_back(kv_offsets.back() + length);
    const bool is_int64 = queries.size() % 2 == 0;
    const Indices q(*device_, q_offsets, is_int64), kv(*device_, kv_offsets, !is_int64);
    tiles.batch = {.sequences = static_cast<int>(queries.size()),
                   .query_capacity = static_cast<int>(q_offsets.back()),
                   .key_capacity = static_cast<int>(kv_offsets.back()),
                   .q_offsets = q.on_host(),
                   .kv_offsets = kv.on_host()};
    const std::vector<cuda::TileEntry> expected = reference_tile_list(tiles);
    tiles.batch.q_offsets = q.on_device();
    tiles.batch.kv_offsets = kv.on_device();
    const std::vector<cuda::TileEntry> got = list(tiles, expected.size());
    ASSERT_EQ(got.size(), expected.size());
    for (std::size_t i = 0; i < got.size(); ++i) {
      ASSERT_TRUE(std::memcmp(&got[i], &expected[i], sizeof(got[i])) == 0)
          << "entry " << i << ": tile " << got[i].first() << " - " << got[i].position() << " of " << got[i].sequence()
          << ", expected " << expected[i].first() << " - " << expected[i].position() << " of "
          << expected[i].sequence();
    }
  }

  std::vector<cuda::TileEntry> list(const cuda::UnevenTiles& tiles, std::size_t capacity) {
    const DeviceVector<cuda::TileEntry> entries(*device_, std::vector<cuda::TileEntry>(capacity));
    const DeviceVector<int> count(*device_, {-1});
    cuda::plan_tiles(tiles, {.entries = entries.data(), .count = count.data(), .capacity = static_cast<int>(capacity)},
                     nullptr);
    const int counted = count.download()[0];
    EXPECT_TRUE(counted >= 0 && counted <= static_cast<int>(capacity)) << counted;
    std::vector<cuda::TileEntry> got = entries.download();
    got.resize(std::clamp(counted, 0, static_cast<int>(capacity)));
    return got;
  }
};

TEST_F(CudaPlan, G_EqualsTheStableSort) {
  std::mt19937 random(1);
  const auto lengths = [&](int count, int most) {
    std::vector<int> drawn(count);
    for (int& length : drawn) length = random() % 4 == 0 ? 0 : static_cast<int>(random() % (1u << random() % most));
    return drawn;
  };
  for (const auto& [sequences, most] :
       {std::pair{1, 16}, {2, 12}, {31, 13}, {32, 15}, {33, 10}, {1000, 12}, {1025, 3}, {3333, 8}, {70000, 2}}) {
    for (int group_log2 : {0, 2, 4}) {
      for (const auto& [causal, window] : {std::pair{true, -1}, {false, -1}, {true, 500}}) {
        SCOPED_TRACE(fmt::format("{} sequences, groups of 1 << {}, causal {}, window {}", sequences, group_log2, causal,
                                 window));
        expect_list(lengths(sequences, most), lengths(sequences, most),
                    {.causal = causal,
                     .window_left = window,
                     .tile_rows = Divisor(group_log2 == 2 ? 192 : 128),
                     .step_keys = Divisor(group_log2 == 4 ? 256 : 64),
                     .group_log2 = group_log2});
      }
    }
  }
  std::vector<int> million = {1, 0, 1000000, 128};
  expect_list(million, million,
              {.causal = true, .tile_rows = Divisor(128), .step_keys = Divisor(256), .group_log2 = 4});
}

TEST_F(CudaPlan, B_NothingToDo) {
  expect_list({0, 0, 0}, {5, 0, 7}, {.tile_rows = Divisor(128), .step_keys = Divisor(64), .group_log2 = 2});
}

// Offsets that go back and forth name rows twice: more tiles than there is room for.
TEST_F(CudaPlan, A_DecreasingOffsetsStayInTheirMemory) {
  std::vector<std::int64_t> offsets;
  for (int i = 0; i < 200; ++i) offsets.push_back(i % 2 * 1000);
  const Indices indices(*device_, offsets, true);
  const cuda::UnevenTiles tiles{.batch = {.sequences = 199,
                                          .query_capacity = 1000,
                                          .key_capacity = 1000,
                                          .q_offsets = indices.on_device(),
                                          .kv_offsets = indices.on_device()},
                                .tile_rows = Divisor(128),
                                .step_keys = Divisor(64),
                                .group_log2 = 2};
  EXPECT_EQ(list(tiles, 207).size(), 207u);
}

// Tensors whose rows belong to sequences in one of the three ways, and where each token's row is.
struct Keys {
  enum class Layout { kDense, kRagged, kPaged } layout;
  std::vector<int> lengths;
  std::int64_t capacity = 0;   // dense: tokens of an entry; paged: pages of a row of the table
  std::int64_t page_size = 0;  // paged
  std::int64_t heads = 1, channels = 64;
  DType dtype = DType::kE4M3;
  bool heads_first = false;  // the strides of [.., h, s, d]
  int bad_entry = -1;        // paged: the sequence whose first page is none of the cache
};

class CudaRows : public CudaPrepass {
 protected:
  // The bytes of a tensor of random codes; NaN everywhere that no sequence has.
  struct Tensor {
    TensorView view;
    std::vector<std::uint8_t> bytes;
    std::unique_ptr<DeviceVector<std::uint8_t>> copy;

    const std::uint8_t* row(std::int64_t entry, std::int64_t token, std::int64_t head) const {
      const int first = view.rank - 3;
      const std::int64_t offset =
          (first > 0 ? entry * view.strides[0] : 0) + token * view.strides[first] + head * view.strides[first + 1];
      return &bytes[offset * size_of(view.dtype)];
    }
  };

  void set_up(const Keys& keys, unsigned seed) {
    keys_ = keys;
    std::mt19937 random(seed);
    const auto sequences = static_cast<std::int64_t>(keys.lengths.size());
    std::vector<std::int64_t> indices;  // offsets or lengths
    std::int64_t total = 0;
    for (int length : keys.lengths) {
      indices.push_back(keys.layout == Keys::Layout::kRagged ? total : length);
      total += length;
    }
    if (keys.layout == Keys::Layout::kRagged) indices.push_back(total);
    indices_ = std::make_unique<Indices>(*device_, indices, seed % 2 == 0);
    batch_ = {.sequences = static_cast<int>(sequences)};
    (keys.layout == Keys::Layout::kRagged ? batch_.kv_offsets : batch_.kv_lengths) = indices_->on_device();
    std::int64_t entries = sequences, tokens = keys.capacity;
    batch_.key_capacity = static_cast<int>(keys.layout == Keys::Layout::kRagged ? total : keys.capacity);
    if (keys.layout == Keys::Layout::kRagged) entries = 1, tokens = total;
    if (keys.layout == Keys::Layout::kPaged) {
      entries = sequences * keys.capacity + 3, tokens = keys.page_size;
      std::vector<std::int64_t> pages(entries);
      for (std::int64_t i = 0; i < entries; ++i) pages[i] = i;
      std::ranges::shuffle(pages, random);
      table_.assign(pages.begin(), pages.begin() + sequences * keys.capacity);
      for (std::int64_t i = 0; i < sequences; ++i) {
        for (std::int64_t page = 0; page < keys.capacity; ++page) {
          std::int64_t& entry = table_[i * keys.capacity + page];
          if (page * keys.page_size >= keys.lengths[i]) entry = page % 2 == 0 ? -1 : 1 << 30;
          if (page == 0 && i == keys.bad_entry) entry = entries;
        }
      }
      table_indices_ = std::make_unique<Indices>(*device_, table_, seed % 3 == 0, keys.capacity);
      batch_.block_table = table_indices_->on_device();
      batch_.page_size = static_cast<int>(keys.page_size);
      batch_.pages = static_cast<int>(entries);
      batch_.key_capacity = static_cast<int>(keys.capacity * keys.page_size);
    }
    batch_.aligned_capacity = BatchView::aligned(batch_.key_capacity);
    entries_ = entries, tokens_ = tokens;
  }

  Tensor make_tensor(unsigned seed) {
    const auto& [layout, lengths, capacity, page_size, heads, channels, dtype, heads_first, bad] = keys_;
    const std::int64_t element = size_of(dtype);
    Tensor tensor;
    tensor.view = TensorView::contiguous(nullptr, dtype, {entries_, tokens_, heads, channels}, device_->device());
    if (heads_first) tensor.view.strides = {heads * tokens_ * channels, channels, tokens_ * channels, 1};
    tensor.bytes.assign(tensor.view.count() * element, kNan);
    if (layout == Keys::Layout::kRagged) {
      tensor.view.rank = 3;
      for (int i = 0; i < 3; ++i) {
        tensor.view.shape[i] = tensor.view.shape[i + 1];
        tensor.view.strides[i] = tensor.view.strides[i + 1];
      }
    }
    std::mt19937 random(seed);
    for (std::size_t i = 0; i < lengths.size(); ++i) {
      for (int t = 0; t < lengths[i]; ++t) {
        for (std::int64_t h = 0; h < heads; ++h) {
          auto* row = const_cast<std::uint8_t*>(row_of(tensor, i, t, h));
          if (row == nullptr) continue;
          for (std::int64_t byte = 0; byte < channels * element; ++byte) row[byte] = random() % 0x7F;
        }
      }
    }
    tensor.copy = std::make_unique<DeviceVector<std::uint8_t>>(*device_, tensor.bytes);
    tensor.view.data = tensor.copy->data();
    return tensor;
  }

  // Null where the table names no page.
  const std::uint8_t* row_of(const Tensor& tensor, std::size_t sequence, std::int64_t token, std::int64_t head) const {
    switch (keys_.layout) {
      case Keys::Layout::kDense: return tensor.row(static_cast<std::int64_t>(sequence), token, head);
      case Keys::Layout::kRagged: {
        for (std::size_t i = 0; i < sequence; ++i) token += keys_.lengths[i];
        return tensor.row(0, token, head);
      }
      case Keys::Layout::kPaged: {
        const std::int64_t page = table_[sequence * keys_.capacity + token / keys_.page_size];
        return page < 0 || page >= entries_ ? nullptr : tensor.row(page, token % keys_.page_size, head);
      }
    }
    return nullptr;
  }

  // As BatchView::aligned_start() promises.
  std::int64_t start_of(std::size_t sequence) const {
    if (keys_.layout != Keys::Layout::kRagged) {
      return static_cast<std::int64_t>(sequence) * ((batch_.key_capacity + 63) / 64 * 64);
    }
    std::int64_t offset = 0;
    for (std::size_t i = 0; i < sequence; ++i) offset += keys_.lengths[i];
    return 64 * (offset / 64 + static_cast<std::int64_t>(sequence));
  }

  // Calls visit(sequence, token, position) for all tokens and those behind them up to a multiple of 64.
  template <class Visit>
  void for_each_position(Visit visit) const {
    for (std::size_t i = 0; i < keys_.lengths.size(); ++i) {
      for (int t = 0; t < (keys_.lengths[i] + 63) / 64 * 64; ++t) visit(i, t, start_of(i) + t);
    }
  }

  static void expect_equal(const std::vector<std::uint8_t>& got, const std::vector<std::uint8_t>& expected) {
    ASSERT_EQ(got.size(), expected.size());
    const auto difference = std::mismatch(got.begin(), got.end(), expected.begin());
    if (difference.first == got.end()) return;
    ADD_FAILURE() << "byte " << difference.first - got.begin() << " of " << got.size() << " is "
                  << int{*difference.first} << ", expected " << int{*difference.second};
  }

  void expect_packed(const Keys& keys, unsigned seed) {
    set_up(keys, seed);
    const Tensor v = make_tensor(seed);
    const std::int64_t positions = batch_.aligned_positions();
    std::vector<std::uint8_t> expected(keys.heads * keys.channels * positions, kUntouched);
    const DeviceVector<std::uint8_t> output(*device_, expected);
    for_each_position([&](std::size_t sequence, std::int64_t token, std::int64_t position) {
      const std::int64_t packed = position - token + packed_position(token);
      for (std::int64_t h = 0; h < keys.heads; ++h) {
        const std::uint8_t* row = token < keys.lengths[sequence] ? row_of(v, sequence, token, h) : nullptr;
        for (std::int64_t c = 0; c < keys.channels; ++c) {
          expected[(h * keys.channels + c) * positions + packed] = row == nullptr ? 0 : row[c];
        }
      }
    });
    cuda::pack_values(batch_, v.view, output.data(), nullptr);
    expect_equal(output.download(), expected);
  }

  std::vector<std::uint8_t> gathered_rows(const Tensor& tensor) const {
    const std::int64_t row_bytes = keys_.channels * size_of(keys_.dtype);
    std::vector<std::uint8_t> expected(batch_.aligned_positions() * keys_.heads * row_bytes, kUntouched);
    for_each_position([&](std::size_t sequence, std::int64_t token, std::int64_t position) {
      for (std::int64_t h = 0; h < keys_.heads; ++h) {
        const std::uint8_t* row = token < keys_.lengths[sequence] ? row_of(tensor, sequence, token, h) : nullptr;
        std::uint8_t* target = &expected[(position * keys_.heads + h) * row_bytes];
        if (row == nullptr) {
          std::memset(target, 0, row_bytes);
        } else {
          std::memcpy(target, row, row_bytes);
        }
      }
    });
    return expected;
  }

  void expect_gathered(const Keys& keys, bool with_values, unsigned seed) {
    set_up(keys, seed);
    const Tensor k = make_tensor(seed);
    const std::vector<std::uint8_t> expected_k = gathered_rows(k);
    const DeviceVector<std::uint8_t> output_k(*device_, std::vector<std::uint8_t>(expected_k.size(), kUntouched));
    if (!with_values) {
      cuda::gather_pages(batch_, {k.view, output_k.data()}, {}, nullptr);
      return expect_equal(output_k.download(), expected_k);
    }
    keys_.channels = keys.channels == 192 ? 128 : keys.channels;
    const Tensor v = make_tensor(seed + 1);
    const std::vector<std::uint8_t> expected_v = gathered_rows(v);
    const DeviceVector<std::uint8_t> output_v(*device_, std::vector<std::uint8_t>(expected_v.size(), kUntouched));
    cuda::gather_pages(batch_, {k.view, output_k.data()}, {v.view, output_v.data()}, nullptr);
    expect_equal(output_k.download(), expected_k);
    expect_equal(output_v.download(), expected_v);
  }

  Keys keys_;
  BatchView batch_;
  std::unique_ptr<Indices> indices_, table_indices_;
  std::vector<std::int64_t> table_;
  std::int64_t entries_ = 0, tokens_ = 0;
};

std::vector<int> some_lengths(unsigned seed, int count, int most) {
  std::mt19937 random(seed);
  std::vector<int> lengths(count);
  for (int& length : lengths) length = random() % 4 == 0 ? 0 : static_cast<int>(random() % most);
  lengths[count / 2] = most;
  return lengths;
}

TEST_F(CudaRows, A_PackedValuesOfRaggedBatches) {
  unsigned seed = 0;
  for (const auto& [heads, channels] : {std::pair{1, 64}, {3, 128}, {2, 16}, {5, 80}, {2, 96}, {2, 256}, {1, 144}}) {
    for (const auto& [count, most] : {std::pair{1, 1}, {1, 5000}, {7, 700}, {40, 65}, {2000, 3}}) {
      for (bool heads_first : {false, true}) {
        SCOPED_TRACE(fmt::format("{} sequences up to {}, {} heads, {} channels", count, most, heads, channels));
        expect_packed({.layout = Keys::Layout::kRagged,
                       .lengths = some_lengths(++seed, count, most),
                       .heads = heads,
                       .channels = channels,
                       .heads_first = heads_first},
                      seed);
      }
    }
  }
}

TEST_F(CudaRows, A_PackedValuesOfDenseBatchesWithLengths) {
  unsigned seed = 100;
  for (int channels : {64, 128, 112}) {
    expect_packed({.layout = Keys::Layout::kDense,
                   .lengths = some_lengths(++seed, 9, 1000),
                   .capacity = 1003,
                   .heads = 3,
                   .channels = channels},
                  seed);
  }
}

TEST_F(CudaRows, H_PackedValuesOutOfPagesOfAnySize) {
  unsigned seed = 200;
  for (int page_size : {1, 2, 3, 7, 16, 31, 64, 100, 128, 1000}) {
    for (int channels : {64, 128}) {
      SCOPED_TRACE(fmt::format("pages of {}, {} channels", page_size, channels));
      const std::vector<int> lengths = some_lengths(++seed, 6, 900);
      expect_packed({.layout = Keys::Layout::kPaged,
                     .lengths = lengths,
                     .capacity = (900 + page_size - 1) / page_size + 1,
                     .page_size = page_size,
                     .heads = 2,
                     .channels = channels,
                     .heads_first = page_size % 2 == 1,
                     .bad_entry = page_size == 7 ? 3 : -1},
                    seed);
    }
  }
}

TEST_F(CudaRows, H_GatheredPagesOfAnySize) {
  unsigned seed = 300;
  for (int page_size : {1, 2, 5, 7, 13, 48, 100, 1023}) {
    for (const auto& [heads, channels] : {std::pair{1, 64}, {3, 128}, {2, 192}, {9, 16}, {40, 80}, {1, 256}}) {
      for (DType dtype : {DType::kE4M3, DType::kBF16}) {
        SCOPED_TRACE(fmt::format("pages of {}, {} heads, {} channels, {}", page_size, heads, channels, name_of(dtype)));
        expect_gathered({.layout = Keys::Layout::kPaged,
                         .lengths = some_lengths(++seed, 5, 300),
                         .capacity = (300 + page_size - 1) / page_size,
                         .page_size = page_size,
                         .heads = heads,
                         .channels = channels,
                         .dtype = dtype,
                         .heads_first = seed % 2 == 0,
                         .bad_entry = page_size == 5 ? 2 : -1},
                        dtype == DType::kBF16, seed);
      }
    }
  }
}

// Most sequences empty, so that a block passes over many at once; and none with a token.
TEST_F(CudaRows, B_EmptySequences) {
  std::vector<int> lengths(5000, 0);
  for (std::size_t i = 13; i < lengths.size(); i += 977) lengths[i] = static_cast<int>(i % 200);
  expect_packed({.layout = Keys::Layout::kDense, .lengths = lengths, .capacity = 200, .heads = 2, .channels = 64}, 1);
  expect_packed({.layout = Keys::Layout::kDense, .lengths = std::vector<int>(70, 0), .capacity = 64, .channels = 128},
                2);
  expect_gathered({.layout = Keys::Layout::kPaged, .lengths = lengths, .capacity = 40, .page_size = 5, .channels = 64},
                  false, 3);
}

}  // namespace
}  // namespace fp8attn::test
