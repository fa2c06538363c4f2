#include "prefill_case.h"

#include <ostream>

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

HostTensor store(const PrefillCase& test, std::vector<float>& values, std::vector<std::int64_t> shape,
                 const HostScale& scale, bool by_channel) {
  const std::int64_t s = shape[1], h = shape[2], d = shape[3];
  if (scale.form != ScaleForm::kNone && test.divide_by_scale) {
#pragma omp parallel for schedule(static)
    for (std::int64_t i = 0; i < static_cast<std::int64_t>(values.size()); ++i) {
      const float unit = scale.at(i / (d * h * s), i / d % h, by_channel ? i % d : i / (d * h) % s);
      values[i] /= unit;
    }
  }
  return encode_tensor(test.dtype, std::move(shape), values);
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
  inputs.q = store(test, data.q, {n.b, n.s_q, n.h_q, n.d_qk}, inputs.q_scale, false);
  inputs.k = store(test, data.k, {n.b, n.s_kv, n.h_kv, n.d_qk}, inputs.k_scale, false);
  inputs.v = store(test, data.v, {n.b, n.s_kv, n.h_kv, n.d_v}, inputs.v_scale, true);
  return inputs;
}

}  // namespace fp8attn::test
