// Where the sequences of a batch begin and end: offsets, lengths and tables as the caller gave them, read where they
// are needed. Host and device.
#pragma once

#include <cstdint>

#include "api/mask.h"

namespace fp8attn::cuda {

// An int32 or int64 tensor of up to three dims, strides in elements.
struct IndexView {
  const void* data = nullptr;
  int64_t strides[3] = {0, 0, 0};
  bool is_int64 = false;

  FP8ATTN_HOST_DEVICE int64_t at(int64_t i, int64_t j = 0, int64_t k = 0) const {
    const int64_t offset = i * strides[0] + j * strides[1] + k * strides[2];
    return is_int64 ? load(static_cast<const long long*>(data) + offset) : load(static_cast<const int*>(data) + offset);
  }

 private:
  template <class Index>
  FP8ATTN_HOST_DEVICE static int64_t load(const Index* index) {
#ifdef __CUDA_ARCH__
    return __ldg(index);
#else
    return *index;
#endif
  }
};

// Tokens of one sequence.
struct Extent {
  int start;  // row of a ragged tensor; 0 where each sequence has a batch entry or pages of its own
  int length;
};

// The sequences of a prefill problem. A view without data: the batch has none of it.
struct BatchView {
  int sequences = 0;
  int query_capacity = 0;      // query rows of a batch entry; ragged: of all sequences
  int key_capacity = 0;        // key tokens of a batch entry or of a row of the table; ragged: of all sequences
  IndexView q_offsets = {};    // [sequences + 1]
  IndexView kv_offsets = {};   // [sequences + 1]
  IndexView kv_lengths = {};   // [sequences]
  IndexView block_table = {};  // [sequences, max_pages]
  int page_size = 0, pages = 0;
  int aligned_capacity = 0;  // key_capacity rounded up to kAlignment

  FP8ATTN_HOST_DEVICE bool ragged_queries() const { return q_offsets.data != nullptr; }
  FP8ATTN_HOST_DEVICE bool ragged_keys() const { return kv_offsets.data != nullptr; }
  FP8ATTN_HOST_DEVICE bool paged() const { return block_table.data != nullptr; }
  // Sequences may differ in length, by what only the device knows.
  FP8ATTN_HOST_DEVICE bool uneven() const { return ragged_queries() || ragged_keys() || kv_lengths.data != nullptr; }

  FP8ATTN_HOST_DEVICE Extent queries(int sequence) const {
    return ragged_queries() ? between(q_offsets, sequence, query_capacity) : Extent{0, query_capacity};
  }
  FP8ATTN_HOST_DEVICE Extent keys(int sequence) const {
    if (ragged_keys()) return between(kv_offsets, sequence, key_capacity);
    return {0, kv_lengths.data == nullptr ? key_capacity : clamped_length(kv_lengths.at(sequence), key_capacity)};
  }

  // The page that the `index`-th page_size tokens of a sequence lie in; -1 where the table names none.
  FP8ATTN_HOST_DEVICE int page(int sequence, int index) const {
    const int64_t page = block_table.at(sequence, index);
    return is_among(page, pages) ? static_cast<int>(page) : -1;
  }

  // Whether the kernels read keys, and values of 16 bits, from pages of this size, 64 tokens a copy. Other pages are
  // gathered before: at 16384 tokens, d = 128, causal, that takes 1.15 ms in all, copies of 16 rows take 1.58 ms.
  FP8ATTN_HOST_DEVICE static constexpr bool loads_pages(int page_size) { return page_size % 64 == 0; }

  // Where a sequence begins among positions of all sequences, each from a multiple of kAlignment: how keys and values
  // lie that are rearranged before the kernel. Known without adding up lengths, so some positions are unused. Below
  // 2^31 by validation.
  static constexpr int kAlignment = 64;
  static constexpr int aligned(int tokens) { return (tokens + kAlignment - 1) / kAlignment * kAlignment; }
  FP8ATTN_HOST_DEVICE int aligned_start(int sequence) const { return aligned_start(sequence, keys(sequence)); }
  // The same, of keys that have been looked up.
  FP8ATTN_HOST_DEVICE int aligned_start(int sequence, const Extent& keys) const {
    if (!ragged_keys()) return sequence * aligned_capacity;
    return kAlignment * (keys.start / kAlignment + sequence);
  }
  // Of all sequences.
  FP8ATTN_HOST_DEVICE int64_t aligned_positions() const {
    if (!ragged_keys()) return int64_t{sequences} * aligned_capacity;
    return int64_t{aligned_capacity} + int64_t{kAlignment} * sequences;
  }

 private:
  FP8ATTN_HOST_DEVICE static Extent between(const IndexView& offsets, int sequence, int capacity) {
    const int start = clamped_length(offsets.at(sequence), capacity);
    const int end = clamped_length(offsets.at(sequence + 1), capacity);
    return {start, end > start ? end - start : 0};
  }
};

}  // namespace fp8attn::cuda
