// A prefill case on a device: its tensors in a chosen layout, the call, and what came out.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "fp8attn/error.h"
#include "fp8attn/prefill.h"
#include "placed_tensor.h"
#include "prefill_case.h"
#include "test_device.h"

namespace fp8attn::test {

struct RunOptions {
  Layout q = Layout::kDense, k = Layout::kDense, v = Layout::kDense, out = Layout::kDense;
  Gap q_gap = Gap::kZeros, k_gap = Gap::kZeros, v_gap = Gap::kZeros;
};

struct PrefillOutput {
  HostTensor out;           // [b, s_q, h_q, d_v]
  HostTensor lse;           // [b, h_q, 1, s_q]
  std::string wrong_write;  // empty, or which byte between the elements of out or lse changed

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

 private:
  TensorView scale_view(TestDevice& device, const HostScale& scale, std::int64_t batch, bool by_channel);

  PlacedTensor q_, k_, v_, out_, lse_;
  std::vector<Buffer> scales_;
  Buffer workspace_;
  PrefillProblem problem_;
};

// Whether an error says that a CMake option left the kernel out of this build: no failure of it.
bool is_left_out(const Error& error);

// Construct, launch, read.
PrefillOutput run_prefill(TestDevice& device, const PrefillCase& test, const PrefillInputs& inputs,
                          RunOptions options = {});

}  // namespace fp8attn::test
