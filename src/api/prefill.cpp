#include "fp8attn/prefill.h"

#include <algorithm>
#include <array>

#include "api/dispatch.h"
#include "api/prefill_batch.h"
#include "api/qkv_quantization.h"
#include "api/validate.h"

namespace fp8attn {
namespace {

// Whether nothing is wrong with what the choice of a variant looks at: layouts, head dims, and values of enums.
bool knows_what_to_select(const std::vector<Reason>& reasons) {
  constexpr std::array kArguments = {"q.shape",     "k.shape",   "v.shape",         "kv_offsets",
                                     "kv_lengths",  "v_layout",  "p_mode",          "quantize.q_scale",
                                     "block_table", "q_offsets", "quantize.v_scale"};
  return std::ranges::none_of(reasons, [&](const Reason& reason) {
    return std::ranges::find(kArguments, reason.argument) != kArguments.end();
  });
}

Selection check(const PrefillProblem& problem) {
  Selection selection;
  selection.reasons = validate(problem);
  if (auto reason = device_reason("q.device", problem.q.device)) selection.reasons.push_back(*std::move(reason));
  if (knows_what_to_select(selection.reasons)) {
    const Selection found =
        select_variant(problem.quantize ? lay_out(problem, nullptr).attention : problem, prefill_variants());
    selection.variant = found.variant;
    selection.reasons.insert(selection.reasons.end(), found.reasons.begin(), found.reasons.end());
  }
  return selection;
}

std::vector<NamedView> tensors_of(const PrefillProblem& problem) {
  std::vector<NamedView> tensors = inputs_of(problem);
  tensors.push_back({"out", problem.out});
  if (problem.lse) tensors.push_back({"lse", *problem.lse});
  return tensors;
}

std::size_t workspace_size(const PrefillProblem& problem, const PrefillVariant& variant) {
  return problem.quantize ? lay_out(problem, nullptr).bytes : variant.workspace_size(problem);
}

}  // namespace

Support supports(const PrefillProblem& problem) { return to_support(check(problem).reasons); }

std::size_t workspace_size(const PrefillProblem& problem) {
  const Selection selection = check(problem);
  throw_first("workspace_size", selection.reasons);
  return workspace_size(problem, *selection.variant);
}

void prefill(const PrefillProblem& problem, Workspace workspace, Stream stream) {
  const Selection selection = check(problem);
  throw_first("prefill", selection.reasons);
  throw_first("prefill", validate(workspace, workspace_size(problem, *selection.variant), tensors_of(problem)));
  if (problem.out.count() == 0 || batch_of(problem).b == 0) return;
  if (!problem.quantize) return selection.variant->launch(problem, workspace, stream);
  const QkvWorkspace quantized = lay_out(problem, workspace.data);
  quantize_qkv(quantized.quantization, stream);
  selection.variant->launch(quantized.attention, {}, stream);  // of a packed V, which needs no workspace
}

}  // namespace fp8attn
