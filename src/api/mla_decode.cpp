#include "fp8attn/mla_decode.h"

#include <algorithm>
#include <string>

#include "api/dispatch.h"
#include "api/select_mla_variant.h"
#include "api/validate.h"

namespace fp8attn {
namespace {

MlaSelection check(const MlaDecodeProblem& problem) {
  MlaSelection selection;
  selection.reasons = validate(problem);
  const auto device = device_reason("q.device", problem.q.device);
  if (device) selection.reasons.push_back(*device);
  // A device or a format that does not exist has no rows, which says nothing more.
  const bool known_format =
      std::ranges::none_of(selection.reasons, [](const Reason& reason) { return reason.argument == "format"; });
  if (!device && known_format) {
    const MlaSelection found = select_mla_variant(problem, mla_decode_variants());
    selection.variant = found.variant;
    selection.reasons.insert(selection.reasons.end(), found.reasons.begin(), found.reasons.end());
  }
  return selection;
}

std::vector<NamedView> tensors_of(const MlaDecodeProblem& problem) {
  std::vector<NamedView> tensors = {{"q", problem.q}, {"cache", problem.cache}, {"out", problem.out}};
  const auto add = [&](const char* name, const auto& view) {
    if (view) tensors.push_back({name, *view});
  };
  add("lse", problem.lse);
  add("block_table", problem.block_table);
  add("lengths", problem.lengths);
  add("indices", problem.indices);
  add("topk_length", problem.topk_length);
  add("q_scale", problem.q_scale);
  add("cache_scale", problem.cache_scale);
  add("attention_sink", problem.attention_sink);
  return tensors;
}

}  // namespace

Support supports(const MlaDecodeProblem& problem) { return to_support(check(problem).reasons); }

std::size_t workspace_size(const MlaDecodeProblem& problem) {
  const MlaSelection selection = check(problem);
  throw_first("workspace_size", selection.reasons);
  return selection.variant->workspace_size(problem);
}

void mla_decode(const MlaDecodeProblem& problem, Workspace workspace, Stream stream) {
  const MlaSelection selection = check(problem);
  throw_first("mla_decode", selection.reasons);
  throw_first("mla_decode", validate(workspace, selection.variant->workspace_size(problem), tensors_of(problem)));
  if (problem.out.count() == 0) return;
  selection.variant->launch(problem, workspace, stream);
}

}  // namespace fp8attn
