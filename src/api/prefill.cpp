#include "fp8attn/prefill.h"

#include <algorithm>
#include <array>

#include "api/dispatch.h"
#include "api/validate.h"

namespace fp8attn {
namespace {

// Whether nothing is wrong with what the choice of a variant looks at: the head dims, and values of enums.
bool knows_what_to_select(const std::vector<Reason>& reasons) {
  constexpr std::array kArguments = {"q.shape", "v.shape", "v_layout", "p_mode"};
  return std::ranges::none_of(reasons, [&](const Reason& reason) {
    return std::ranges::find(kArguments, reason.argument) != kArguments.end();
  });
}

Selection check(const PrefillProblem& problem) {
  Selection selection;
  selection.reasons = validate(problem);
  if (auto reason = device_reason("q.device", problem.q.device)) selection.reasons.push_back(*std::move(reason));
  if (knows_what_to_select(selection.reasons)) {
    const Selection found = select_variant(problem, prefill_variants());
    selection.variant = found.variant;
    selection.reasons.insert(selection.reasons.end(), found.reasons.begin(), found.reasons.end());
  }
  return selection;
}

}  // namespace

Support supports(const PrefillProblem& problem) { return to_support(check(problem).reasons); }

std::size_t workspace_size(const PrefillProblem& problem) {
  const Selection selection = check(problem);
  throw_first("workspace_size", selection.reasons);
  return selection.variant->workspace_size(problem);
}

void prefill(const PrefillProblem& problem, Workspace workspace, Stream stream) {
  const Selection selection = check(problem);
  throw_first("prefill", selection.reasons);
  throw_first("prefill", validate(workspace, selection.variant->workspace_size(problem)));
  if (problem.out.count() == 0) return;
  selection.variant->launch(problem, workspace, stream);
}

}  // namespace fp8attn
