// Which keys a query sees and where they lie. The one piece of arithmetic that the CUDA kernels and the CPU backend
// share.
#pragma once

#ifdef __CUDACC__
#define FP8ATTN_HOST_DEVICE __host__ __device__
#else
#define FP8ATTN_HOST_DEVICE
#endif

namespace fp8attn {

// Lengths of one sequence and its mask. Query row r sees keys [visible_begin(r), visible_end(r)), none where the two
// are equal. Its diagonal is key r + key_length - query_length: bottom-right aligned, the last query's is the last key.
struct Mask {
  int query_length = 0;
  int key_length = 0;
  bool causal = false;
  int window_left = -1;  // keys before the diagonal that a row sees at most; -1: all

  // The window's left side, whether causal or not. Never less for a later row, never more than key_length.
  FP8ATTN_HOST_DEVICE constexpr int visible_begin(int row) const {
    if (window_left < 0) return 0;
    const int diagonal = key_length - (query_length - row);
    if (diagonal <= window_left) return 0;  // first of all: the difference of a negative diagonal may leave 32 bits
    const int begin = diagonal - window_left;
    return begin > key_length ? key_length : begin;
  }

  // Rows past the sequence see what the last one sees or more, never more than key_length.
  FP8ATTN_HOST_DEVICE constexpr int visible_end(int row) const {
    if (!causal) return key_length;
    // In this order nothing leaves 32 bits, whatever the lengths: the sum of both does.
    const int end = key_length - (query_length - 1 - row);
    return end < 0 ? 0 : (end > key_length ? key_length : end);
  }
};

// A window as callers give it, any 64-bit number, as a Mask holds it: one of INT_MAX keys hides nothing.
FP8ATTN_HOST_DEVICE constexpr int clamped_window(long long window_left) {
  return window_left < 0 ? -1 : (window_left > 0x7FFFFFFF ? 0x7FFFFFFF : static_cast<int>(window_left));
}

// Tokens of a sequence in a paged cache, or indices of a query: what the caller's tensor says, clamped to what its row
// of the table holds.
FP8ATTN_HOST_DEVICE constexpr int clamped_length(long long length, int capacity) {
  return length < 0 ? 0 : (length > capacity ? capacity : static_cast<int>(length));
}

// Whether `index` is one of `count` pages, or slots. Tables say -1 for none.
FP8ATTN_HOST_DEVICE constexpr bool is_among(long long index, long long count) { return index >= 0 && index < count; }

}  // namespace fp8attn
