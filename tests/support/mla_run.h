// An MLA decode case on a device: its tensors, the call, the exact answer, and what came out.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "fp8attn/mla_decode.h"
#include "mla_case.h"
#include "prefill_run.h"
#include "reference.h"
#include "test_device.h"

namespace fp8attn::test {

struct MlaOptions {
  Gap gap = Gap::kZeros;      // what fills tails of pages, unused pages, room between records and queries
  bool wide_strides = false;  // room behind records, pages, queries, outputs and rows of tables
  bool wild_table = false;    // table entries past the length name pages that are not there
};

class MlaRun {
 public:
  MlaRun(TestDevice& device, const MlaCase& test, const MlaInputs& inputs, MlaOptions options = {});

  MlaDecodeProblem& problem() { return problem_; }
  // Calls mla_decode with a workspace of exactly the size asked for.
  void launch(Stream stream = nullptr);
  // Fails the test where bytes behind the workspace were written.
  PrefillOutput read() const;
  void clear_output();
  // Replaces lengths and block table.
  void set_sequences(const std::vector<std::int64_t>& lengths, const std::vector<std::int64_t>& block_table);

 private:
  void place_cache(TestDevice& device, const MlaCase& test, const MlaInputs& inputs, MlaOptions options);
  void place_addressing(TestDevice& device, const MlaCase& test, const MlaInputs& inputs, MlaOptions options);
  void place_scales(TestDevice& device, const MlaCase& test, const MlaInputs& inputs);
  void place_workspace(TestDevice& device);
  const void* keep(TestDevice& device, const void* bytes, std::size_t size);
  // As int32 or int64, in rows of `stride` elements of which `columns` are used.
  TensorView integers(TestDevice& device, DType dtype, const std::vector<std::int64_t>& values, std::int64_t columns,
                      std::int64_t stride, std::initializer_list<std::int64_t> shape);

  PlacedTensor q_, out_, lse_;
  std::vector<Buffer> buffers_;
  Buffer workspace_;
  TestDevice& device_;
  MlaDecodeProblem problem_;
};

PrefillOutput run_mla(TestDevice& device, const MlaCase& test, const MlaInputs& inputs, MlaOptions options = {});

// What the reference takes the tokens and queries for.
enum class MlaTruth : std::uint8_t {
  kInputs,           // as the user had them: bf16 tokens
  kStored,           // tokens as the cache holds them
  kStoredQuantised,  // the same, and bf16 queries rounded to e4m3 as the kernels do
};

// Exact attention in float64, from the definition. `hidden`: the last visible tokens left out, 0 is right.
Reference make_mla_reference(const MlaCase& test, const MlaInputs& inputs, MlaTruth truth, std::int64_t hidden = 0);

// Tokens of sequence `batch` that query `query` sees, ascending or in the order of its indices.
std::vector<std::int64_t> visible_tokens(const MlaCase& test, const MlaInputs& inputs, std::int64_t batch,
                                         std::int64_t query);

}  // namespace fp8attn::test
