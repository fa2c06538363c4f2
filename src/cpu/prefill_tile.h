// One query tile of the CPU prefill: online softmax over steps of keys, in float or double.
#pragma once

#include <cstdint>
#include <vector>

#include "api/mask.h"
#include "cpu/prefill_layout.h"
#include "cpu/prefill_vector.h"
#include "fp8attn/prefill.h"

namespace fp8attn::cpu {

inline constexpr int kTileRows = 64;   // queries of one tile
inline constexpr int kStepKeys = 256;  // keys of one step: what the CUDA kernels accumulate before they fold

// What a tile does besides exact arithmetic.
struct TileRounding {
  Probability probability = Probability::kUnrounded;
  bool e4m3_query = false;         // a 16-bit q rounded as quantize() does with one scale for a token and head
  bool half_scores = false;        // scores rounded to half precision
  bool accumulator_13bit = false;  // P V through the model of the fp8 tensor core's accumulator
};

// Buffers of one thread and the work of one tile after the other.
template <class T>
class Tile {
 public:
  Tile(const PrefillProblem& problem, const PrefillLayout& layout, TileRounding rounding);

  // Queries [first_row, first_row + kTileRows) of one sequence and query head: writes out and lse.
  void attend(std::int64_t sequence, std::int64_t head, int first_row);

 private:
  struct Row {
    Place place;
    T top;                // running maximum of the signed scores, capped where there is a softcap
    T sum;                // running denominator
    T factor;             // of the top's units to logits in log2 units; >= 0, finite where its operands are
    double exact_factor;  // the same beyond the range of T, for lse
    T cap_factor;         // of signed scores to logits over softcap
    T alpha;              // what the last step multiplies the earlier ones by
    bool negate;
    int begin, end;  // keys of this step that the row sees
  };

  void load_queries();
  Row load_query(int row);
  // Keys [first, end) of the step from key `step` on.
  void load_keys(int step, int first, int end);
  void load_values(int step, int first, int end);
  void load_value_run(const Place& place, int first, int count);
  void softmax_step(int row);
  void weigh_values(int first, int end);
  void fold();
  void store(int row);

  // The value of `count` elements of `view` from element `offset` on.
  void read(const TensorView& view, std::int64_t offset, T* destination, std::int64_t count);
  // Calls visit(place, i, count) for keys i to i + count - 1 of the step that lie one behind the other.
  template <class Visit>
  void for_each_run(int step, int first, int end, Visit visit);

  const PrefillProblem& problem_;
  const PrefillLayout& layout_;
  const TileRounding rounding_;
  const std::int64_t dim_qk_, dim_v_, padded_dim_v_;
  const double softmax_scale_;
  Rows queries_, keys_;
  Mask mask_;
  std::int64_t sequence_ = 0, head_ = 0, head_kv_ = 0;
  int first_row_ = 0, rows_ = 0, padded_rows_ = 0;
  std::vector<float> staging_;  // one line of the input on its way to double
  std::vector<T> line_;         // one line of the input on its way to a transposed buffer
  std::vector<T> query_;        // [kTileRows, dim_qk]
  std::vector<T> key_;          // [dim_qk, kStepKeys + kColumnBlock]: transposed
  std::vector<T> key_scale_;    // [kStepKeys] where k has a scale per token, else empty
  std::vector<T> value_;        // [kStepKeys, padded_dim_v]
  std::vector<T> score_;        // [kTileRows, kStepKeys + kColumnBlock]
  std::vector<T> step_output_;  // [kTileRows, padded_dim_v]: P V of one step
  std::vector<T> output_;       // [kTileRows, padded_dim_v]
  std::vector<Row> row_;        // [kTileRows]
};

extern template class Tile<float>;
extern template class Tile<double>;

}  // namespace fp8attn::cpu
