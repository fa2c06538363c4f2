// One merge of partial attention: how the parts lie, what they hold, and the exact answer.
#pragma once

#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "fp8attn/merge.h"
#include "test_device.h"

namespace fp8attn::test {

// The order of dims in memory.
enum class PartsLayout : std::uint8_t {
  kOutside,  // part after part, contiguous
  kPadded,   // part after part, with room behind every row
  kInside,   // the parts of a row next to each other, with room behind every row
};

struct MergeCase {
  std::string name;
  std::int64_t parts = 2, b = 2, s_q = 5, h_q = 3, d_v = 64;
  std::int64_t keys = 24;  // of each row, in parts at random
  bool ragged = false;     // [b * s_q, h_q, d_v]
  bool with_lse = true;
  DType parts_dtype = DType::kBF16, out_dtype = DType::kBF16;
  LseBase base = LseBase::kE;
  PartsLayout layout = PartsLayout::kOutside;
  float lse_shift = 0;  // added to all logits

  std::int64_t rows() const { return b * s_q * h_q; }
};

// What parts hold of every row, and what they come to. Rows in the order [b, h_q, s_q].
struct MergeData {
  std::vector<float> part_out;   // [part, row, d_v]; NaN where the part has no key of the row
  std::vector<float> part_lse;   // [part, row]
  std::vector<double> out, lse;  // over all keys
};

// Of random logits and values. Some rows have all keys in one part, some have none at all.
MergeData make_merge_data(const MergeCase& test);

struct MergeOutput {
  std::vector<float> out, lse;  // lse: empty where none was wanted
  std::vector<std::uint8_t> out_bytes;
  std::string wrong_write;  // what was written beside the elements, if anything
};

// Runs merge_attention() on these parts. `base`: what the call is told.
MergeOutput run_merge(TestDevice& device, const MergeCase& test, const MergeData& data, LseBase base);

// Near the exact answer; rows of no key exactly 0 and -infinity, rows of one part that part's bit for bit.
::testing::AssertionResult check_merge(const MergeCase& test, const MergeData& data, const MergeOutput& output);

}  // namespace fp8attn::test
