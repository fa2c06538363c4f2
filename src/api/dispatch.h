// Whether the device and the kernel of a valid call exist, and which kernel it is.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "api/reason.h"
#include "api/variants.h"
#include "fp8attn/prefill.h"
#include "fp8attn/tensor.h"

namespace fp8attn {

// Why this build cannot run on this machine's `device`; nullopt where it can.
std::optional<Reason> device_reason(const char* argument, Device device);

struct Selection {
  const PrefillVariant* variant = nullptr;
  std::vector<Reason> reasons;
};

// The row for the problem's device, dtype, V layout and p_mode with the smallest head dims that hold the problem's, one
// for short queries where it has these and there is one; else why there is none. Neither where the table has no row for
// the kind of device at all: device_reason() says that. The shapes of q and v are valid.
Selection select_variant(const PrefillProblem& problem, std::span<const PrefillVariant> rows);

// The same of any problem, after validation, and of what a recipe makes of it. Neither row nor reasons where what is
// wrong leaves open which row is wanted.
Selection select_where_clear(const PrefillProblem& problem, std::span<const Reason> wrong,
                             std::span<const PrefillVariant> rows);

}  // namespace fp8attn
