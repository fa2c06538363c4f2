// A prefill case on a device: its tensors in a chosen layout, the call, and what came out.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "fp8attn/error.h"
#include "fp8attn/prefill.h"
#include "placed_tensor.h"
#include "prefill_case.h"
#include "test_device.h"
#include "token_map.h"

namespace fp8attn::test {

struct RunOptions {
  Layout q = Layout::kDense, k = Layout::kDense, v = Layout::kDense, out = Layout::kDense;
  // Of tokens that no sequence has too, and of their scales. k's NaN: table entries behind the length are wild.
  Gap q_gap = Gap::kZeros, k_gap = Gap::kZeros, v_gap = Gap::kZeros;
  bool wide_indices = false;  // room between the elements of offsets, lengths and tables
};

struct PrefillOutput {
  HostTensor out;           // [b, s_q, h_q, d_v], kPatternByte where a sequence has no such query
  HostTensor lse;           // [b, h_q, 1, s_q]
  std::string wrong_write;  // empty, or which byte of out or lse changed that is no query's

  friend bool operator==(const PrefillOutput& a, const PrefillOutput& b) {
    return a.out.bytes == b.out.bytes && a.lse.bytes == b.lse.bytes;
  }
};

class PrefillRun {
 public:
  PrefillRun(TestDevice& device, const PrefillCase& test, const PrefillInputs& inputs, RunOptions options = {});

  PrefillProblem& problem() { return problem_; }
  // Calls prefill with a workspace of exactly the size asked for, which holds NaN before the first call.
  void launch(Stream stream = nullptr);
  PrefillOutput read() const;
  // What the workspace holds now.
  std::vector<std::uint8_t> read_workspace() const;
  // Overwrites out and lse.
  void clear_output();
  // Replaces offsets, lengths or the table, which are one of the problem's.
  void set_indices(const TensorView& view, const std::vector<std::int64_t>& values);
  const TokenMap& queries() const { return queries_; }
  const TokenMap& keys() const { return keys_; }

 private:
  void place_scales(const PrefillCase& test, const PrefillInputs& inputs, const RunOptions& options);
  void place_indices(const PrefillCase& test, const RunOptions& options);
  const void* keep(const void* bytes, std::size_t size);
  // [b, s, h] of the values [b, s, h, 1], or [b, h, s] of the values [b, h, 1, s].
  TensorView floats(std::vector<float> values, const TokenMap& map, std::vector<std::int64_t> shape, int token_dim,
                    Gap gap);
  TensorView scale_view(const HostScale& scale, std::int64_t batch);
  // [rows, the rest]
  TensorView integers(const std::vector<std::int64_t>& values, std::int64_t rows, bool int64, bool wide);

  TestDevice& device_;
  const TokenMap queries_, keys_;
  const std::int64_t longest_;  // queries of a sequence
  PlacedTensor q_, k_, v_, out_, lse_;
  std::vector<Buffer> buffers_;
  Buffer workspace_;
  PrefillProblem problem_;
  const std::function<void(PrefillProblem&)> fault_;
};

// Whether an error says that a CMake option left the kernel out of this build: no failure of it.
bool is_left_out(const Error& error);

// Construct, launch, read.
PrefillOutput run_prefill(TestDevice& device, const PrefillCase& test, const PrefillInputs& inputs,
                          RunOptions options = {});

}  // namespace fp8attn::test
