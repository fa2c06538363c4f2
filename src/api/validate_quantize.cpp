#include <fmt/format.h>

#include "api/scale_shape.h"
#include "api/validate.h"
#include "api/view_checks.h"

namespace fp8attn {
namespace {

// Shapes and memory that quantize() and pack_v() have in common: `input` [b, s, h, d] to `output` in `layout`.
void check_rearrangement(std::vector<Reason>& reasons, const TensorView& input, const MutableTensorView& output,
                         VLayout layout) {
  std::int64_t b = kAnyDim, s = kAnyDim, h = kAnyDim, d = kAnyDim;
  if (check_shape(reasons, "input", input, {{kAnyDim, kAnyDim, kAnyDim, kAnyDim}, "[b, s, h, d]"})) {
    b = input.shape[0], s = input.shape[1], h = input.shape[2], d = input.shape[3];
  }
  if (layout == VLayout::kPacked) {
    const std::int64_t positions = s == kAnyDim ? kAnyDim : packed_length(s);
    check_shape(reasons, "output", output,
                {{b, h, d, positions}, "packed [b, h, d, s rounded up to 16]", {{"input", input}}});
    check_contiguous(reasons, "output", output);
  } else {
    check_shape(reasons, "output", output, {{b, s, h, d}, "[b, s, h, d]", {{"input", input}}});
  }
  check_dtype(reasons, "output", output, {DType::kE4M3});
  check_device(reasons, "output", output, "input", input.device);
  check_memory(reasons, "input", input, {});
  check_memory(reasons, "output", output, {.written = true});
}

void check_scale(std::vector<Reason>& reasons, const QuantizeProblem& problem) {
  using enum ScaleGranularity;
  const TensorView& input = problem.input;
  const TensorView scale = problem.scale;
  const bool known =
      check_enum(reasons, "granularity", problem.granularity, {kTensor, kHead, kBatchHead, kTokenHead, kChannel});
  if (known && input.rank == 4 && !(problem.granularity == kTensor && scale.rank == 0)) {
    const TensorView expected =
        scale_shape(problem.granularity, input.shape[0], input.shape[1], input.shape[2], input.shape[3]);
    if (!fits(scale, expected)) {
      reasons.push_back({"scale.shape", shape_text(scale),
                         fmt::format("{}, granularity {} for input {}", shape_text(expected),
                                     name_of(problem.granularity), shape_text(input))});
    }
  }
  check_dtype(reasons, "scale", scale, {DType::kF32});
  check_device(reasons, "scale", scale, "input", input.device);
  check_memory(reasons, "scale", scale, {.last_dim_contiguous = false});
  check_contiguous(reasons, "scale", scale);
}

}  // namespace

std::vector<Reason> validate(const QuantizeProblem& problem) {
  std::vector<Reason> reasons;
  check_rearrangement(reasons, problem.input, problem.output, problem.layout);
  check_dtype(reasons, "input", problem.input, {DType::kBF16, DType::kFP16, DType::kF32});
  check_enum(reasons, "layout", problem.layout, {VLayout::kRowMajor, VLayout::kPacked});
  check_scale(reasons, problem);
  if (!reasons.empty()) return reasons;
  check_apart(reasons, {"output", problem.output}, {{"input", problem.input}});
  check_apart(reasons, {"scale", problem.scale}, {{"input", problem.input}, {"output", problem.output}});
  return reasons;
}

std::vector<Reason> validate_pack_v(const TensorView& input, const MutableTensorView& output) {
  std::vector<Reason> reasons;
  check_rearrangement(reasons, input, output, VLayout::kPacked);
  check_dtype(reasons, "input", input, {DType::kE4M3});
  if (reasons.empty()) check_apart(reasons, {"output", output}, {{"input", input}});
  return reasons;
}

}  // namespace fp8attn
