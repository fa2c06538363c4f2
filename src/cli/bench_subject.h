// What a case of the benchmark launches: this library, or another on the same tensors.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "cli/attention.h"
#include "cli/bench_cases.h"

namespace fp8attn::cli {

class BenchSubject {
 public:
  virtual ~BenchSubject() = default;
  virtual void launch() = 0;
  virtual HostTensor out() const = 0;       // of the real values, not of their codes
  virtual DType out_dtype() const = 0;      // as the library stores them
  virtual std::string version() const = 0;  // of another library; "" for this one
  // Relative L2 against float64 attention, of one that makes its tensors itself.
  virtual std::optional<double> error() const { return std::nullopt; }
};

struct Preparation {
  std::unique_ptr<BenchSubject> subject;  // null where the case cannot run
  std::string problem;                    // and why
};

// Copies the tensors to the device and allocates what a launch needs. options: device and arithmetic; what the case
// says overrides the rest.
Preparation prepare(const BenchCase& item, const Layer& layer, const AttentionOptions& options);

}  // namespace fp8attn::cli
