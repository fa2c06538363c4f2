#include "prefill_case.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <ostream>

#include "fp8attn/e4m3.h"

namespace fp8attn::test {
namespace {

HostScale make_scale(ScaleForm form, float base, std::int64_t batch, std::int64_t heads, std::int64_t inner) {
  HostScale scale{form, inner, heads, {}};
  std::int64_t count = 0;
  switch (form) {
    case ScaleForm::kNone: break;
    case ScaleForm::kScalar:
    case ScaleForm::kTensor:
    case ScaleForm::kExpandedBatchHead: count = 1; break;
    case ScaleForm::kHead: count = heads; break;
    case ScaleForm::kBatchHead: count = batch * heads; break;
    case ScaleForm::kTokenHead:
    case ScaleForm::kChannel: count = batch * heads * inner; break;
  }
  for (std::int64_t i = 0; i < count; ++i) scale.values.push_back(base * (1.0f + 0.37f * static_cast<float>(i % 7)));
  return scale;
}

HostTensor store(const PrefillCase& test, DType dtype, std::vector<float>& values, std::vector<std::int64_t> shape,
                 const HostScale& scale, bool by_channel) {
  const std::int64_t s = shape[1], h = shape[2], d = shape[3];
  if (scale.form != ScaleForm::kNone && test.divide_by_scale) {
#pragma omp parallel for schedule(static)
    for (std::int64_t i = 0; i < static_cast<std::int64_t>(values.size()); ++i) {
      const float unit = scale.at(i / (d * h * s), i / d % h, by_channel ? i % d : i / (d * h) % s);
      values[i] /= unit;
    }
  }
  return encode_tensor(dtype, std::move(shape), values);
}

}  // namespace

std::ostream& operator<<(std::ostream& stream, const PrefillCase& test) { return stream << test.name; }

float HostScale::at(std::int64_t batch, std::int64_t head, std::int64_t inner_index) const {
  switch (form) {
    case ScaleForm::kNone: return 1.0f;
    case ScaleForm::kScalar:
    case ScaleForm::kTensor:
    case ScaleForm::kExpandedBatchHead: return values[0];
    case ScaleForm::kHead: return values[head];
    case ScaleForm::kBatchHead: return values[batch * heads + head];
    case ScaleForm::kTokenHead: return values[(batch * inner + inner_index) * heads + head];
    case ScaleForm::kChannel: return values[(batch * heads + head) * inner + inner_index];
  }
  return 1.0f;
}

PrefillInputs make_inputs(const PrefillCase& test) {
  const Dims& n = test.n;
  PrefillInputs inputs;
  inputs.q_scale = make_scale(test.q_scale, test.scale_base, n.b, n.h_q, n.s_q);
  inputs.k_scale = make_scale(test.k_scale, 1.3f * test.scale_base, n.b, n.h_kv, n.s_kv);
  inputs.v_scale = make_scale(test.v_scale, 0.7f * test.scale_base, n.b, n.h_kv, n.d_v);
  if (test.addends) {
    inputs.v_mean = make_scale(ScaleForm::kChannel, 0.21f, n.b, n.h_kv, n.d_v);
    inputs.lse_bias = make_scale(ScaleForm::kChannel, -0.9f, n.b, n.h_q, n.s_q);
  }
  RealTensors data = make_data(test.data, n);
  // Near the logarithm of the sum of a few hundred weights, distinct, some none.
  for (std::int64_t head = 0; test.sinks && head < n.h_q; ++head) {
    inputs.sinks.push_back(head % 4 == 3 ? -std::numeric_limits<float>::infinity()
                                         : 4.3f + 0.7f * static_cast<float>(head % 3));
  }
  inputs.q = store(test, test.q_dtype.value_or(test.dtype), data.q, {n.b, n.s_q, n.h_q, n.d_qk}, inputs.q_scale, false);
  inputs.k = store(test, test.dtype, data.k, {n.b, n.s_kv, n.h_kv, n.d_qk}, inputs.k_scale, false);
  inputs.v = store(test, test.dtype, data.v, {n.b, n.s_kv, n.h_kv, n.d_v}, inputs.v_scale, true);
  return inputs;
}

PrefillInputs with_rounded_queries(const PrefillCase& test, PrefillInputs inputs) {
  if (!test.q_dtype) return inputs;
  std::vector<float> values = inputs.q.values();
  const std::int64_t channels = test.n.d_qk;
  for (std::size_t row = 0; row < values.size(); row += channels) {
    float amax = 0.0f;
    for (std::int64_t i = 0; i < channels; ++i) amax = std::max(amax, std::abs(values[row + i]));
    const float scale = amax > 0.0f ? amax / 448.0f : 1.0f;
    for (std::int64_t i = 0; i < channels; ++i) {
      values[row + i] = scale * e4m3_to_float(e4m3_from_float(values[row + i] * (1.0f / scale)));
    }
  }
  inputs.q = encode_tensor(DType::kF32, inputs.q.shape, values);
  return inputs;
}

}  // namespace fp8attn::test
