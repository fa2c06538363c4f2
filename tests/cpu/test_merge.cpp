// merge_attention() on the CPU: the tests of tests/support, and parts that prefill() wrote.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <vector>

#include "fp8attn/merge.h"
#include "fp8attn/prefill.h"
#include "merge_tests.h"
#include "random.h"

namespace fp8attn::test {
namespace {

const bool registered = register_merge_tests("CpuMerge", DeviceKind::kCpu, make_cpu_device);

std::vector<float> normal(std::int64_t count, std::uint64_t stream) {
  const Random random(5, stream);
  std::vector<float> values(count);
  for (std::int64_t i = 0; i < count; ++i) values[i] = random.normal(i);
  return values;
}

// Index `part` of the first dim.
MutableTensorView part_of(const MutableTensorView& parts, std::int64_t part) {
  MutableTensorView view = parts;
  view.data = static_cast<float*>(parts.data) + part * parts.strides[0];
  view.rank = parts.rank - 1;
  for (int i = 0; i < view.rank; ++i) {
    view.shape[i] = parts.shape[i + 1];
    view.strides[i] = parts.strides[i + 1];
  }
  return view;
}

// A prefix in two parts, and under the causal mask what follows it.
TEST(MergeOfPrefills, F_IsAttentionToAllKeys) {
  constexpr std::int64_t b = 2, s_q = 40, h_q = 4, h_kv = 2, d = 64, parts = 3;
  constexpr std::int64_t begins[parts + 1] = {0, 100, 300, 300 + s_q}, s_kv = begins[parts];
  const std::vector<float> q = normal(b * s_q * h_q * d, 1), k = normal(b * s_kv * h_kv * d, 2),
                           v = normal(b * s_kv * h_kv * d, 3);
  std::vector<float> outs(parts * q.size()), lses(parts * b * h_q * s_q), out(q.size()), lse(b * h_q * s_q);
  PrefillProblem problem;
  problem.q = TensorView::contiguous(q.data(), DType::kF32, {b, s_q, h_q, d});
  problem.k = TensorView::contiguous(k.data(), DType::kF32, {b, s_kv, h_kv, d});
  problem.v = TensorView::contiguous(v.data(), DType::kF32, {b, s_kv, h_kv, d});
  problem.out = MutableTensorView::contiguous(out.data(), DType::kF32, {b, s_q, h_q, d});
  problem.lse = MutableTensorView::contiguous(lse.data(), DType::kF32, {b, h_q, s_q});
  problem.cpu_arithmetic = CpuArithmetic::kFloat64;
  problem.causal = true;
  prefill(problem);
  const std::vector<float> whole = out, whole_lse = lse;

  const auto all_outs = MutableTensorView::contiguous(outs.data(), DType::kF32, {parts, b, s_q, h_q, d});
  const auto all_lses = MutableTensorView::contiguous(lses.data(), DType::kF32, {parts, b, h_q, s_q});
  for (std::int64_t part = 0; part < parts; ++part) {
    PrefillProblem of_part = problem;
    of_part.causal = part == parts - 1;
    for (TensorView* view : {&of_part.k, &of_part.v}) {
      view->data = static_cast<const float*>(view->data) + begins[part] * view->strides[1];
      view->shape[1] = begins[part + 1] - begins[part];
    }
    of_part.out = part_of(all_outs, part);
    of_part.lse = part_of(all_lses, part);
    prefill(of_part);
  }
  merge_attention({.outs = all_outs, .lses = all_lses, .out = problem.out, .lse = problem.lse});
  for (std::size_t i = 0; i < out.size(); ++i) ASSERT_NEAR(out[i], whole[i], 1e-6) << i;
  for (std::size_t i = 0; i < lse.size(); ++i) ASSERT_NEAR(lse[i], whole_lse[i], 2e-6) << i;
}

}  // namespace
}  // namespace fp8attn::test
