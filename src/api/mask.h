// Which keys a query sees. The one piece of arithmetic that the CUDA kernels and the CPU backend share.
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

}  // namespace fp8attn
