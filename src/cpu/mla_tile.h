// One tile of query rows of the CPU MLA decode: online softmax over steps of tokens, in float or double.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "api/mask.h"
#include "cpu/mla_record.h"
#include "cpu/prefill_vector.h"
#include "fp8attn/mla_decode.h"

namespace fp8attn::cpu {

inline constexpr int kMlaTileRows = 64;  // query rows of one tile
inline constexpr int kStepTokens =
    256;  // tokens of one step: at most what the CUDA kernels accumulate before they fold

// Buffers of one thread and the work of one tile after the other. A row is a query token and head: row = token * h_q +
// head.
template <class T>
class MlaTile {
 public:
  explicit MlaTile(const MlaDecodeProblem& problem);

  // Rows [first_row, first_row + rows) of one sequence, all of one query token where the problem has indices: writes
  // out and lse.
  void attend(std::int64_t batch, int first_row, int rows);

 private:
  struct Row {
    T top;       // running maximum of the signed scores
    T sum;       // running denominator
    T alpha;     // what the last step multiplies the earlier ones by
    T unit;      // kFolded: what a weight of 1 of the last step stands for
    int seen;    // tokens of this step that the row sees
    bool empty;  // has seen none so far
  };

  // How a token's probability becomes the factor of its value.
  enum class Weights : std::uint8_t {
    kExact,   // as it is
    kFolded,  // times the token's scales and relative to the largest such weight of the row, then e4m3
  };

  void load_queries();
  void load_query(int row);
  // Tokens [first, first + kStepTokens) of the sequence that are in the cache.
  void load_tokens(int first, int end);
  void softmax_step(int row);
  void weigh_values();
  void find_units();
  void fold_scales(int group);
  void multiply_values(const T* weights, std::int64_t first_column, int columns);
  void fold();
  void store(int row);

  std::int64_t slot_of(int token) const;
  int visible_end(int row) const;

  const MlaDecodeProblem& problem_;
  const float cache_scale_;
  const bool emulated_, accumulator_13bit_;
  const Weights weights_;
  const Probability probability_;
  const double exact_factor_;  // |softmax_scale| * log2(e): signed scores times this are logits in log2 units
  const T factor_;             // the same, finite
  const bool negate_;
  std::int64_t batch_ = 0;
  int first_row_ = 0, rows_ = 0, padded_rows_ = 0;
  int length_ = 0;             // tokens of the sequence, or indices of the query
  std::vector<int> position_;  // of the step's tokens in the sequence, ascending
  StoredRecord record_;
  std::vector<float> line_;                         // one query
  std::vector<T> query_;                            // [kMlaTileRows, 576]
  std::vector<T> key_;                              // [576, kStepTokens + kColumnBlock]: transposed
  std::vector<T> value_;                            // [kStepTokens, 512]
  std::vector<T> largest_scale_;                    // [kStepTokens]: of the groups of a token, kFolded only
  std::array<std::vector<T>, kScaleGroups> scale_;  // [kStepTokens]: of the step's tokens, kFolded only
  std::vector<T> score_;                            // [kMlaTileRows, kStepTokens]
  std::vector<T> folded_;                           // [kMlaTileRows, kStepTokens], kFolded only
  std::vector<T> step_output_;                      // [kMlaTileRows, 512]: P V of one step
  std::vector<T> output_;                           // [kMlaTileRows, 512]
  std::vector<Row> row_;                            // [kMlaTileRows]
};

extern template class MlaTile<float>;
extern template class MlaTile<double>;

}  // namespace fp8attn::cpu
