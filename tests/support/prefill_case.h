// One prefill test case: what is computed, on which data, and the inputs that follow from that.
#pragma once

#include <cstdint>
#include <functional>
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

enum class KeyForm : std::uint8_t { kDense, kRagged, kPaged };

// How the sequences of a case lie in memory, and how long each of them is. The same sequences in another form have the
// same answer.
struct BatchForm {
  bool ragged_q = false;
  KeyForm keys = KeyForm::kDense;
  std::vector<std::int64_t> q_lengths = {};   // of each sequence, at most n.s_q; none: all of them n.s_q. Ragged q only
  std::vector<std::int64_t> kv_lengths = {};  // the same of keys and n.s_kv
  std::int64_t page_size = 64;
  std::uint64_t page_seed = 1;  // which pages the tokens lie in
  bool int64 = false;           // offsets, lengths and tables
  bool spare_rows = true;       // rows of ragged tensors in front of the first sequence and behind the last

  // Whether offsets or lengths are given.
  bool uneven() const { return ragged_q || keys != KeyForm::kDense || !kv_lengths.empty(); }
};

struct PrefillCase {
  std::string name;  // starts with the class of test-contract: "A_", "B_", ...
  Dims n = {};
  BatchForm batch = {};
  DType dtype = DType::kE4M3;         // of k and v, and of q unless there is a q_dtype
  std::optional<DType> q_dtype = {};  // 16 bits, beside e4m3 k and v
  DType out_dtype = DType::kBF16;
  std::optional<float> out_scale = {};  // e4m3 out only
  bool causal = false;
  std::int64_t window_left = -1;
  float softcap = 0.0f;
  bool sinks = false;
  LseBase lse_base = LseBase::kE;
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
  // What every run does to its problem just before the call: none, but where a test asks whether a method would notice.
  std::function<void(PrefillProblem&)> fault = {};

  // Lengths of a sequence.
  std::int64_t queries(std::int64_t sequence) const {
    return batch.q_lengths.empty() ? n.s_q : batch.q_lengths[sequence];
  }
  std::int64_t keys(std::int64_t sequence) const {
    return batch.kv_lengths.empty() ? n.s_kv : batch.kv_lengths[sequence];
  }
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
  HostTensor q, k, v;  // [b, s, h, d]: stored elements, of all tokens alike
  HostScale q_scale, k_scale, v_scale;
  HostScale v_mean, lse_bias;  // of form kChannel, [b, h_kv, d_v] and [b, h_q, s_q], or kNone
  std::vector<float> sinks;    // [h_q], or none
};

PrefillInputs make_inputs(const PrefillCase& test);

// The inputs whose 16-bit q is what the 8-bit arithmetic makes of it: e4m3, with one scale for a token and head. Others
// as they are.
PrefillInputs with_rounded_queries(const PrefillCase& test, PrefillInputs inputs);

}  // namespace fp8attn::test
