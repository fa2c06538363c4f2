// Which keys a query sees and where they lie. The one piece of arithmetic that the CUDA kernels and the CPU backend
// share.
#pragma once

#ifdef __CUDACC__
#define FP8ATTN_HOST_DEVICE __host__ __device__
#else
#define FP8ATTN_HOST_DEVICE
#endif

namespace fp8attn {

// Lengths of one sequence and its mask. Query row r sees keys [0, visible_end(r)).
struct Mask {
  int query_length = 0;
  int key_length = 0;
  bool causal = false;

  // Bottom-right aligned: the last query sees every key. Rows past the sequence see what the last one sees or more,
  // never more than key_length.
  FP8ATTN_HOST_DEVICE constexpr int visible_end(int row) const {
    if (!causal) return key_length;
    // In this order nothing leaves 32 bits, whatever the lengths: the sum of both does.
    const int end = key_length - (query_length - 1 - row);
    return end < 0 ? 0 : (end > key_length ? key_length : end);
  }
};

// Tokens of a sequence in a paged cache, or indices of a query: what the caller's tensor says, clamped to what its row
// of the table holds.
FP8ATTN_HOST_DEVICE constexpr int clamped_length(long long length, int capacity) {
  return length < 0 ? 0 : (length > capacity ? capacity : static_cast<int>(length));
}

// Whether `index` is one of `count` pages, or slots. Tables say -1 for none.
FP8ATTN_HOST_DEVICE constexpr bool is_among(long long index, long long count) { return index >= 0 && index < count; }

}  // namespace fp8attn
