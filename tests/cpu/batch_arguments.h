// The valid problem of prefill_arguments.h with queries and keys in other layouts.
#pragma once

#include <cstdint>
#include <vector>

#include "prefill_arguments.h"

namespace fp8attn::test {

inline constexpr std::int64_t kTotalQ = 9, kTotalKV = 33, kPages = 5, kMaxPages = 3;

struct BatchArguments : PrefillArguments {
  // Any memory will do for views that are only looked at; what the layouts below need is there.
  std::vector<double> memory = std::vector<double>(1 << 17);
  std::int64_t q_offsets[kB + 1] = {0, 5, kTotalQ};
  std::int32_t kv_offsets[kB + 1] = {0, 13, kTotalKV};
  std::int32_t kv_lengths[kB] = {13, 20};
  std::int64_t block_table[kB * kMaxPages] = {4, 0, -1, 1, 2, 3};

  explicit BatchArguments(Device device = {}) : PrefillArguments(device) {
    problem.k.data = memory.data();
    problem.v.data = memory.data() + memory.size() / 2;
  }

  TensorView view(const void* data, DType dtype, std::initializer_list<std::int64_t> shape) const {
    return TensorView::contiguous(data, dtype, shape, problem.q.device);
  }
  MutableTensorView written(void* data, DType dtype, std::initializer_list<std::int64_t> shape) const {
    return MutableTensorView::contiguous(data, dtype, shape, problem.q.device);
  }

  void make_queries_ragged() {
    problem.q = view(q, problem.q.dtype, {kTotalQ, kHQ, kDQK});
    problem.out = written(out.data(), problem.out.dtype, {kTotalQ, kHQ, kDV});
    if (problem.lse) problem.lse = written(lse.data(), DType::kF32, {kHQ, kTotalQ});
    problem.q_offsets = view(q_offsets, DType::kI64, {kB + 1});
  }
  void make_keys_ragged() {
    problem.k = view(problem.k.data, problem.k.dtype, {kTotalKV, kHKV, kDQK});
    problem.v = view(problem.v.data, problem.v.dtype, {kTotalKV, kHKV, kDV});
    problem.kv_offsets = view(kv_offsets, DType::kI32, {kB + 1});
  }
  void give_lengths() { problem.kv_lengths = view(kv_lengths, DType::kI32, {kB}); }
  void make_keys_paged(std::int64_t page_size) {
    problem.k = view(problem.k.data, problem.k.dtype, {kPages, page_size, kHKV, kDQK});
    problem.v = view(problem.v.data, problem.v.dtype, {kPages, page_size, kHKV, kDV});
    give_lengths();
    problem.block_table = view(block_table, DType::kI64, {kB, kMaxPages});
  }
  // Of keys that are not ragged.
  void pack_values() {
    problem.v_layout = VLayout::kPacked;
    problem.v =
        view(problem.v.data, problem.v.dtype, {problem.k.shape[0], kHKV, kDV, packed_length(problem.k.shape[1])});
  }
};

}  // namespace fp8attn::test
