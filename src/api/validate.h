// Every rule about the arguments of a call, once. Looks at views only, never at a device: rules of CUDA tensors can be
// tested where there is no GPU. Whether the device and a kernel exist is dispatch's question (dispatch.h).
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "api/reason.h"
#include "api/view_checks.h"
#include "api/workspace_layout.h"
#include "fp8attn/kv_cache.h"
#include "fp8attn/merge.h"
#include "fp8attn/mla_decode.h"
#include "fp8attn/prefill.h"
#include "fp8attn/quantize.h"

namespace fp8attn {

std::vector<Reason> validate(const PrefillProblem& problem);
std::vector<NamedView> inputs_of(const PrefillProblem& problem);  // every tensor that is only read
std::vector<Reason> validate(const QuantizeProblem& problem);
std::vector<Reason> validate_pack_v(const TensorView& input, const MutableTensorView& output);
std::vector<Reason> validate(const MlaDecodeProblem& problem);
std::vector<Reason> validate(const AppendMlaProblem& problem);
std::vector<Reason> validate(const GatherMlaProblem& problem);
std::vector<Reason> validate(const MergeAttentionProblem& problem);
std::vector<Reason> validate_rotate_rope(const TensorView& input, const MutableTensorView& output);
// `tensors`: those of the call, which the workspace must not share memory with.
std::vector<Reason> validate(Workspace workspace, std::size_t needed, std::span<const NamedView> tensors);

}  // namespace fp8attn
