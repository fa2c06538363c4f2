// 16-bit q, k and v to e4m3 within the workspace of one prefill: what the backends are given, and where it lies.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "api/rotation.h"
#include "fp8attn/prefill.h"

namespace fp8attn {

// What is known of a channel over a chunk of tokens, in this order. Elements that are not finite count as 0.
enum ChannelStatistic : int {
  kHighest,  // of the values where the mean is subtracted, else of their magnitudes
  kLowest,   // of the values; this and the sum only where the mean is subtracted
  kSum,
};
inline constexpr int kCenteredStatistics = 3, kPlainStatistics = 1;

// One tensor. "Values" are the input's, multiplied by the orthonormal matrix where `rotated`.
struct QkvOperand {
  TensorView input;               // [b, s, h, d], as the caller gave it
  MutableTensorView output;       // e4m3 [b, s, h, d], in memory [b, h, s, d]; v: packed
  MutableTensorView scale;        // f32 [b, h]; kTokenHead: [b, s, h], in memory [b, h, s]; kChannel: [b, h, d]
  ScaleGranularity granularity;   // kBatchHead, kTokenHead (q) or kChannel (v)
  bool centered = false;          // the mean over the tokens is subtracted
  bool rotated = false;           // the channels are multiplied by the orthonormal matrix
  float* mean = nullptr;          // [b, h, d]: where to write what is subtracted, if anywhere
  float* statistics = nullptr;    // [b, h, chunks, 3 or 1, d], of the values before the matrix's normalisation
  std::int64_t chunks = 0;        // 0: no statistics are needed
  std::int64_t chunk_tokens = 1;  // chunk i is the tokens from i * chunk_tokens on

  int statistics_count() const { return centered ? kCenteredStatistics : kPlainStatistics; }
};

// The arithmetic, bit for bit the same on both backends, every step in float32:
//   value  = the input's, or its signs flipped by `signs`, butterflies of neighbours at distance 1, 2, 4, .. channels
//            ((a, b) to (a + b, a - b)) and, last, a product with the matrix's normalisation
//   sum    = of the values before normalisation, per chunk: tokens of one slot (their number modulo sum_slots) in
//            ascending order; slots pairwise, then in fours, where there are 32; these in ascending order
//   mean   = normalisation * (sum of the chunks' sums in ascending order) / s; 0 where that is not finite
//   amax   = of the channels that share a scale, the largest max(highest - mean, mean - lowest) or highest, each
//            normalised; per token the largest finite magnitude of the row
//   scale  = amax > 0 ? max(amax / 448, 2^-100) : 1
//   stored = e4m3_from_float((value - mean) * (1 / scale))
struct QkvQuantization {
  QkvOperand q, k, v;
  RotationSigns signs{};
  float softmax_scale = 0;
  float* lse_bias = nullptr;  // [b, h_q, s_q], or none: softmax_scale * (value of q before quantisation) . (mean of k)
};

// Slots of the sum over tokens (see above).
constexpr int sum_slots(std::int64_t channels) { return channels == 64 || channels == 128 ? 32 : 16; }

struct QkvWorkspace {
  QkvQuantization quantization;
  PrefillProblem attention;  // of the e4m3 tensors
  std::size_t bytes = 0;
};

// How the workspace of a valid problem with a recipe is used. data: its beginning; null where only shapes and the size
// are wanted.
QkvWorkspace lay_out(const PrefillProblem& problem, void* data);

// Runs the quantisation on the device of its tensors, asynchronously on `stream`.
void quantize_qkv(const QkvQuantization& quantization, Stream stream);

}  // namespace fp8attn
