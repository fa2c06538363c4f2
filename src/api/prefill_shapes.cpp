#include <fmt/format.h>

#include <string>

#include "api/prefill_checks.h"

namespace fp8attn {
namespace {

void check_channels(std::vector<Reason>& reasons, const char* name, const TensorView& view, std::int64_t channels) {
  if (channels != 0) return;
  reasons.push_back({fmt::format("{}.shape", name), shape_text(view), "at least one channel"});
}

void check_head_groups(std::vector<Reason>& reasons, const PrefillProblem& problem, const PrefillDims& n) {
  if (n.h_q == kAnyDim || n.h_kv == kAnyDim) return;
  if (n.h_kv == 0 ? n.h_q == 0 : n.h_q % n.h_kv == 0) return;
  reasons.push_back({"k.shape", fmt::format("{} heads in {}", n.h_kv, shape_text(problem.k)),
                     fmt::format("a divisor of the {} heads of q, {}", n.h_q, shape_text(problem.q))});
}

// Where the number of sequences comes from.
NamedView batch_owner(const PrefillProblem& problem) {
  return problem.q_offsets ? NamedView{"q_offsets", *problem.q_offsets} : NamedView{"q", problem.q};
}

// The arguments that the shape of k follows from.
std::vector<NamedView> key_owners(const PrefillProblem& problem) {
  if (key_layout(problem) == KeyLayout::kDense && problem.q_offsets) return {{"q", problem.q}, batch_owner(problem)};
  return {{"q", problem.q}};
}

void check_query_shape(std::vector<Reason>& reasons, const PrefillProblem& problem, PrefillDims& n) {
  const TensorView& q = problem.q;
  const bool ragged = query_layout(problem) == QueryLayout::kRagged;
  n.queries = ragged ? shape_only({kAnyDim}) : shape_only({kAnyDim, kAnyDim});
  const char* meaning = ragged ? "[total_q, h_q, d_qk] with q_offsets" : "[b, s_q, h_q, d_qk] without q_offsets";
  if (check_shape(reasons, "q", q, {followed_by(n.queries, {kAnyDim, kAnyDim}), meaning})) {
    for (int i = 0; i < n.queries.rank; ++i) n.queries.shape[i] = q.shape[i];
    n.h_q = q.shape[q.rank - 2], n.d_qk = q.shape[q.rank - 1];
    check_channels(reasons, "q", q, n.d_qk);
  }
  if (!ragged) {
    n.b = n.queries.shape[0];
  } else if (check_shape(reasons, "q_offsets", *problem.q_offsets, {{kAnyDim}, "[b + 1]"})) {
    n.b = problem.q_offsets->shape[0] - 1;
    if (n.b >= 0) return;
    n.b = kAnyDim;
    reasons.push_back({"q_offsets.shape", shape_text(*problem.q_offsets), "at least one offset, [b + 1]"});
  }
}

// Whether the arguments say one layout of the keys, and all of it.
bool check_key_layout(std::vector<Reason>& reasons, const PrefillProblem& problem) {
  const std::size_t before = reasons.size();
  if (problem.kv_offsets && problem.block_table) {
    reasons.push_back({"kv_offsets", "offsets beside block_table", "one of the two: keys are ragged or paged"});
  } else if (problem.kv_offsets && problem.kv_lengths) {
    reasons.push_back({"kv_lengths", "lengths beside kv_offsets", "none: the offsets say the lengths"});
  } else if (problem.block_table && !problem.kv_lengths) {
    reasons.push_back(
        {"kv_lengths", "none beside block_table", "lengths: how many tokens of its pages a sequence has"});
  } else if (problem.kv_offsets && problem.v_layout == VLayout::kPacked) {
    reasons.push_back({"v_layout", "packed beside kv_offsets", name_of(VLayout::kRowMajor)});
  }
  return reasons.size() == before;
}

void check_key_shape(std::vector<Reason>& reasons, const PrefillProblem& problem, PrefillDims& n) {
  const TensorView& k = problem.k;
  const char* meaning = "";
  switch (key_layout(problem)) {
    case KeyLayout::kDense:
      n.keys = shape_only({n.b, kAnyDim});
      meaning = "[b, s_kv, h_kv, d_qk] without kv_offsets and block_table";
      break;
    case KeyLayout::kRagged:
      n.keys = shape_only({kAnyDim});
      meaning = "[total_kv, h_kv, d_qk] with kv_offsets";
      break;
    case KeyLayout::kPaged:
      n.keys = shape_only({kAnyDim, kAnyDim});
      meaning = "[pages, page_size, h_kv, d_qk] with block_table";
      break;
  }
  const bool fits =
      check_shape(reasons, "k", k, {followed_by(n.keys, {kAnyDim, n.d_qk}), meaning, key_owners(problem)});
  for (int i = 0; i < n.keys.rank; ++i) n.keys.shape[i] = fits ? k.shape[i] : kAnyDim;
  if (!fits) return;
  n.h_kv = k.shape[k.rank - 2];
  if (problem.block_table && k.shape[1] == 0) {
    reasons.push_back({"k.shape", fmt::format("page size 0 in {}", shape_text(k)), "a page size from 1"});
  }
}

// Multiples that packed pages have to meet: the format's groups of 16 tokens, and what the kernels of CUDA load at
// once.
std::int64_t packed_page_grain(DeviceKind device) { return device == DeviceKind::kCuda ? 64 : 16; }

void check_packed_shape(std::vector<Reason>& reasons, const PrefillProblem& problem, PrefillDims& n) {
  const bool paged = key_layout(problem) == KeyLayout::kPaged;
  const std::int64_t tokens = n.keys.shape[1], grain = packed_page_grain(problem.q.device.kind);
  if (paged && tokens != kAnyDim && tokens % grain != 0) {
    reasons.push_back({"v_layout", fmt::format("packed with a page size of {}", tokens),
                       fmt::format("{}, or a page size that is a multiple of {} on {}", name_of(VLayout::kRowMajor),
                                   grain, name_of(problem.q.device.kind))});
    return;
  }
  const char* meaning = paged ? "packed [pages, h_kv, d_v, page_size]" : "packed [b, h_kv, d_v, s_kv rounded up to 16]";
  const std::int64_t positions = tokens == kAnyDim ? kAnyDim : packed_length(tokens);
  if (check_shape(reasons, "v", problem.v,
                  {{n.keys.shape[0], n.h_kv, kAnyDim, positions}, meaning, {{"k", problem.k}}})) {
    n.d_v = problem.v.shape[2];
  }
}

void check_value_shape(std::vector<Reason>& reasons, const PrefillProblem& problem, PrefillDims& n) {
  const TensorView& v = problem.v;
  if (problem.v_layout == VLayout::kPacked) {
    check_packed_shape(reasons, problem, n);
  } else {
    const char* meaning = key_layout(problem) == KeyLayout::kDense    ? "[b, s_kv, h_kv, d_v]"
                          : key_layout(problem) == KeyLayout::kRagged ? "[total_kv, h_kv, d_v]"
                                                                      : "[pages, page_size, h_kv, d_v]";
    if (check_shape(reasons, "v", v, {followed_by(n.keys, {n.h_kv, kAnyDim}), meaning, {{"k", problem.k}}})) {
      n.d_v = v.shape[v.rank - 1];
    }
  }
  check_channels(reasons, "v", v, n.d_v);
}

void check_index_shapes(std::vector<Reason>& reasons, const PrefillProblem& problem, const PrefillDims& n) {
  const std::int64_t offsets = n.b == kAnyDim ? kAnyDim : n.b + 1;
  const std::vector<NamedView> owner = {batch_owner(problem)};
  if (problem.kv_offsets) check_shape(reasons, "kv_offsets", *problem.kv_offsets, {{offsets}, "[b + 1]", owner});
  if (problem.kv_lengths) check_shape(reasons, "kv_lengths", *problem.kv_lengths, {{n.b}, "[b]", owner});
  if (!problem.block_table) return;
  const TensorView& table = *problem.block_table;
  if (!check_shape(reasons, "block_table", table, {{n.b, kAnyDim}, "[b, max_pages]", owner})) return;
  const std::int64_t page_size = n.keys.rank == 2 ? n.keys.shape[1] : kAnyDim;
  if (page_size >= 1 && table.shape[1] > kMaxDim / page_size) {
    reasons.push_back({"block_table.shape", fmt::format("{} for pages of {}", shape_text(table), page_size),
                       fmt::format("room for at most {} tokens", kMaxDim)});
  }
}

void check_output_shapes(std::vector<Reason>& reasons, const PrefillProblem& problem, const PrefillDims& n) {
  const bool ragged = query_layout(problem) == QueryLayout::kRagged;
  check_shape(reasons, "out", problem.out,
              {followed_by(n.queries, {n.h_q, n.d_v}),
               ragged ? "[total_q, h_q, d_v]" : "[b, s_q, h_q, d_v]",
               {{"q", problem.q}, {"v", problem.v}}});
  if (!problem.lse) return;
  check_shape(reasons, "lse", *problem.lse, lse_shape(problem, n));
}

}  // namespace

ExpectedShape lse_shape(const PrefillProblem& problem, const PrefillDims& n) {
  if (query_layout(problem) == QueryLayout::kRagged) {
    return {{n.h_q, n.queries.shape[0]}, "[h_q, total_q]", {{"q", problem.q}}};
  }
  return {{n.b, n.h_q, n.queries.shape[1]}, "[b, h_q, s_q]", {{"q", problem.q}}};
}

PrefillDims check_prefill_shapes(std::vector<Reason>& reasons, const PrefillProblem& problem) {
  PrefillDims n;
  check_query_shape(reasons, problem, n);
  if (check_key_layout(reasons, problem)) {
    check_key_shape(reasons, problem, n);
    check_head_groups(reasons, problem, n);
    check_value_shape(reasons, problem, n);
    check_index_shapes(reasons, problem, n);
  }
  check_output_shapes(reasons, problem, n);
  return n;
}

}  // namespace fp8attn
