#include "api/qkv_quantization.h"

#include <algorithm>
#include <cmath>

#include "api/workspace_layout.h"
#include "cpu/quantize.h"
#ifdef FP8ATTN_WITH_CUDA
#include "cuda/sm90/quantize/quantize.h"
#endif

namespace fp8attn {
namespace {

// Chunks of tokens are as many as keep every multiprocessor busy (two blocks for each of 132), since each of them is
// read again by every block of the second pass. No property of the device: the order of the sums follows from it.
constexpr std::int64_t kWantedChunks = 264, kMostChunks = 16, kChunkUnit = 256;

std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

// [b, s, h, ...] in memory that goes through all tokens of a head before the next head.
MutableTensorView heads_outside(MutableTensorView view) {
  const std::int64_t inner = view.rank == 4 ? view.shape[3] : 1;
  view.strides[1] = inner;
  view.strides[2] = view.shape[1] * inner;
  view.strides[0] = view.shape[2] * view.strides[2];
  return view;
}

MutableTensorView scale_of(const TensorView& input, ScaleGranularity granularity, Carver& carver) {
  const std::int64_t b = input.shape[0], s = input.shape[1], h = input.shape[2], d = input.shape[3];
  const auto view = [&](std::initializer_list<std::int64_t> shape) {
    MutableTensorView scale = MutableTensorView::contiguous(nullptr, DType::kF32, shape, input.device);
    scale.data = carver.take_floats(scale.count());
    return scale;
  };
  switch (granularity) {
    case ScaleGranularity::kTokenHead: return heads_outside(view({b, s, h}));
    case ScaleGranularity::kChannel: return view({b, h, d});
    default: return view({b, h});
  }
}

void add_statistics(QkvOperand& operand, Carver& carver) {
  const auto& [b, s, h, d, unused] = operand.input.shape;
  if (operand.granularity == ScaleGranularity::kTokenHead || s == 0) return;
  const std::int64_t wanted =
      std::clamp(kWantedChunks / std::max<std::int64_t>(b * h, 1), std::int64_t{1}, kMostChunks);
  operand.chunk_tokens = ceil_div(ceil_div(s, wanted), kChunkUnit) * kChunkUnit;
  operand.chunks = ceil_div(s, operand.chunk_tokens);
  operand.statistics = carver.take_floats(b * h * operand.chunks * operand.statistics_count() * d);
}

QkvOperand make_operand(const TensorView& input, ScaleGranularity granularity, Carver& carver) {
  QkvOperand operand{.input = input, .output = {}, .scale = {}, .granularity = granularity};
  operand.output = heads_outside(
      MutableTensorView::contiguous(carver.take(input.count()), DType::kE4M3,
                                    {input.shape[0], input.shape[1], input.shape[2], input.shape[3]}, input.device));
  operand.scale = scale_of(input, granularity, carver);
  return operand;
}

QkvOperand make_packed_operand(const TensorView& input, ScaleGranularity granularity, Carver& carver) {
  QkvOperand operand{.input = input, .output = {}, .scale = {}, .granularity = granularity};
  operand.output = MutableTensorView::contiguous(
      nullptr, DType::kE4M3, {input.shape[0], input.shape[2], input.shape[3], packed_length(input.shape[1])},
      input.device);
  operand.output.data = carver.take(operand.output.count());
  operand.scale = scale_of(input, granularity, carver);
  return operand;
}

}  // namespace

QkvWorkspace lay_out(const PrefillProblem& problem, void* data) {
  const QuantizeRecipe& recipe = *problem.quantize;
  Carver carver(data);
  QkvWorkspace workspace;
  QkvQuantization& work = workspace.quantization;
  work.q = make_operand(problem.q, recipe.q_scale, carver);
  work.k = make_operand(problem.k, ScaleGranularity::kBatchHead, carver);
  work.v = make_packed_operand(problem.v, recipe.v_scale, carver);
  work.q.rotated = work.k.rotated = recipe.hadamard;
  work.k.centered = recipe.smooth_k;
  work.v.centered = recipe.center_v;
  for (QkvOperand* operand : {&work.q, &work.k, &work.v}) add_statistics(*operand, carver);
  work.signs = rotation_signs(recipe.hadamard_seed);
  const double usual = 1.0 / std::sqrt(static_cast<double>(problem.q.shape[3]));
  work.softmax_scale = problem.softmax_scale.value_or(static_cast<float>(usual));

  PrefillProblem& attention = workspace.attention;
  attention = problem;
  attention.quantize.reset();
  attention.q = work.q.output;
  attention.k = work.k.output;
  attention.v = work.v.output;
  attention.v_layout = VLayout::kPacked;
  attention.q_scale = work.q.scale;
  attention.k_scale = work.k.scale;
  attention.v_scale = work.v.scale;
  const Device device = problem.q.device;
  if (work.v.centered) {
    const auto& shape = work.v.input.shape;
    work.v.mean = carver.take_floats(shape[0] * shape[2] * shape[3]);
    attention.v_mean = TensorView::contiguous(work.v.mean, DType::kF32, {shape[0], shape[2], shape[3]}, device);
  }
  if (work.k.centered && problem.lse) {
    const auto& shape = work.q.input.shape;
    work.lse_bias = carver.take_floats(shape[0] * shape[2] * shape[1]);
    attention.lse_bias = TensorView::contiguous(work.lse_bias, DType::kF32, {shape[0], shape[2], shape[1]}, device);
  }
  workspace.bytes = carver.used();
  return workspace;
}

void quantize_qkv(const QkvQuantization& quantization, Stream stream) {
#ifdef FP8ATTN_WITH_CUDA
  if (quantization.q.input.device.kind == DeviceKind::kCuda) return cuda::quantize_qkv(quantization, stream);
#endif
  cpu::quantize_qkv(quantization);
}

}  // namespace fp8attn
