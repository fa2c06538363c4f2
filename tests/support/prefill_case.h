// One prefill test case: what is computed, on which data, and the inputs that follow from that.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "data_sets.h"
#include "fp8attn/prefill.h"
#include "placed_tensor.h"

namespace fp8attn::test {

// Channels of q and k, and of v, that have kernels of their own.
inline constexpr std::pair<std::int64_t, std::int64_t> kKernelDims[] = {{128, 128}, {64, 64}, {192, 128}, {256, 256}};

// How a scale is given.
enum class ScaleForm : std::uint8_t {
  kNone,
  kScalar,             // rank 0
  kTensor,             // [1]
  kHead,               // [h]
  kBatchHead,          // [b, h]
  kTokenHead,          // [b, s, h], q and k only
  kChannel,            // [b, h, d], v only
  kExpandedBatchHead,  // [b, h], every stride 0
};

struct PrefillCase {
  std::string name;  // starts with the class of test-contract: "A_", "B_", ...
  Dims n = {};
  DType dtype = DType::kE4M3;
  DType out_dtype = DType::kBF16;
  bool causal = false;
  VLayout v_layout = VLayout::kRowMajor;
  PMode p_mode = PMode::kDefault;
  CpuArithmetic arithmetic = CpuArithmetic::kEmulated;
  DataSet data = DataSet::kNormal;
  std::optional<float> softmax_scale = {};
  ScaleForm q_scale = ScaleForm::kNone, k_scale = ScaleForm::kNone, v_scale = ScaleForm::kNone;
  bool addends = false;  // with a v_mean and an lse_bias
  std::optional<QuantizeRecipe> quantize = {};
  // The size of the scales: around base, distinct for whatever has one of its own, never a power of two.
  float scale_base = 0.0137f;
  // Whether stored elements are the data divided by its scales, or the data itself.
  bool divide_by_scale = true;
};

std::ostream& operator<<(std::ostream& stream, const PrefillCase& test);

// The values of one scale tensor, looked up by the position of what they scale.
struct HostScale {
  ScaleForm form = ScaleForm::kNone;
  std::int64_t inner = 1, heads = 1;  // tokens or channels; heads
  std::vector<float> values;          // in the order of the scale tensor's shape

  // inner: token of q and k, channel of v.
  float at(std::int64_t batch, std::int64_t head, std::int64_t inner_index) const;
};

struct PrefillInputs {
  HostTensor q, k, v;  // [b, s, h, d]: stored elements
  HostScale q_scale, k_scale, v_scale;
  HostScale v_mean, lse_bias;  // of form kChannel, [b, h_kv, d_v] and [b, h_q, s_q], or kNone
};

PrefillInputs make_inputs(const PrefillCase& test);

}  // namespace fp8attn::test
