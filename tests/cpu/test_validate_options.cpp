// The product of a prefill's options: each combination is supported, or refused with the arguments that stand in the
// way, and a refused one writes nothing.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "api/dispatch.h"
#include "api/validate.h"
#include "batch_arguments.h"
#include "fp8attn/error.h"
#include "fp8attn/prefill.h"

namespace fp8attn::test {
namespace {

enum class Keys { kDense, kLengths, kRagged, kPagesOf8, kPagesOf64 };
enum class Recipe { kNone, kPlain, kSmooth, kCentered };
enum class Extras { kNone, kKeyScale, kSubtracted };

struct Dtypes {
  DType q, kv;
};

struct HeadDims {
  std::int64_t qk, v;
};

constexpr Dtypes kDtypes[] = {{DType::kE4M3, DType::kE4M3}, {DType::kBF16, DType::kBF16}, {DType::kFP16, DType::kFP16},
                              {DType::kF32, DType::kF32},   {DType::kBF16, DType::kE4M3}, {DType::kFP16, DType::kE4M3},
                              {DType::kE4M3, DType::kBF16}, {DType::kF32, DType::kE4M3}};
constexpr HeadDims kHeadDims[] = {{64, 64}, {48, 192}, {40, 24}, {272, 64}};
constexpr DType kOutDtypes[] = {DType::kBF16, DType::kE4M3, DType::kI32};

struct Options {
  Dtypes dtypes;
  Device device;
  bool ragged_queries = false, packed = false, mask = false, softcap = false, sink = false;
  Keys keys = Keys::kDense;
  DType out = DType::kBF16;
  Recipe recipe = Recipe::kNone;
  Extras extras = Extras::kNone;
  HeadDims dims = kHeadDims[0];

  bool on_cuda() const { return device.kind == DeviceKind::kCuda; }
  bool e4m3_keys() const { return dtypes.kv == DType::kE4M3; }
  bool paged() const { return keys == Keys::kPagesOf8 || keys == Keys::kPagesOf64; }
  bool quantizes() const { return recipe != Recipe::kNone; }
};

// Every combination of one dtype pair and device.
template <class Visit>
void for_each_option(Dtypes dtypes, Device device, Visit visit) {
  for (int bits = 0; bits < 32; ++bits) {
    for (Keys keys : {Keys::kDense, Keys::kLengths, Keys::kRagged, Keys::kPagesOf8, Keys::kPagesOf64}) {
      for (Recipe recipe : {Recipe::kNone, Recipe::kPlain, Recipe::kSmooth, Recipe::kCentered}) {
        for (Extras extras : {Extras::kNone, Extras::kKeyScale, Extras::kSubtracted}) {
          for (DType out : kOutDtypes) {
            for (HeadDims dims : kHeadDims) {
              visit(Options{dtypes, device, (bits & 1) != 0, (bits & 2) != 0, (bits & 4) != 0, (bits & 8) != 0,
                            (bits & 16) != 0, keys, out, recipe, extras, dims});
            }
          }
        }
      }
    }
  }
}

using Names = std::set<std::string>;

// What the header says, written down a second time: the arguments that are in the way.
Names expected(const Options& o) {
  Names names;
  const auto refuse = [&](const char* name, bool condition) {
    if (condition) names.insert(name);
  };
  const bool q_is_16bit = o.dtypes.q == DType::kBF16 || o.dtypes.q == DType::kFP16;
  refuse("k.dtype", o.dtypes.q != o.dtypes.kv && !(q_is_16bit && o.e4m3_keys()));
  refuse("out.dtype", o.out == DType::kI32);
  const bool no_such_value = o.packed && (o.keys == Keys::kRagged || o.keys == Keys::kPagesOf8);
  refuse("v_layout", no_such_value || (o.packed && o.quantizes()));
  const bool e4m3 = o.dtypes.q == DType::kE4M3 || o.e4m3_keys();
  if (o.quantizes()) {
    refuse("quantize", e4m3);
    refuse("q.dtype", o.dtypes.q == DType::kF32 && o.on_cuda());
    refuse("v.shape", o.on_cuda() && o.dims.v % 64 != 0 && !no_such_value);
    refuse("quantize.smooth_k", o.recipe == Recipe::kSmooth && (o.softcap || o.sink));
    refuse("quantize.center_v", o.recipe == Recipe::kCentered && o.sink);
    if (o.ragged_queries) {
      names.insert("q_offsets");
    } else if (o.keys != Keys::kDense) {
      names.insert(o.paged() ? "block_table" : o.keys == Keys::kRagged ? "kv_offsets" : "kv_lengths");
    }
  }
  refuse("k_scale", o.extras == Extras::kKeyScale && !e4m3);
  refuse("v_mean", o.extras == Extras::kSubtracted && (!e4m3 || o.sink));
  refuse("lse_bias", o.extras == Extras::kSubtracted && (!e4m3 || o.sink || o.softcap));
  // Which kernel it would be is asked only where layouts and shapes are right.
  for (const char* name : {"v_layout", "v.shape", "q_offsets", "kv_offsets", "kv_lengths", "block_table"}) {
    if (names.contains(name)) return names;
  }
  const bool cuda = o.on_cuda();
  if (cuda && !o.quantizes() && o.dtypes.q == DType::kF32 && !o.e4m3_keys()) {
    names.insert("q.dtype");
  } else if (o.packed && !e4m3) {
    names.insert("v_layout");
  } else if (cuda && (o.dims.qk % 16 != 0 || o.dims.v % 16 != 0 || std::max(o.dims.qk, o.dims.v) > 256)) {
    names.insert("q.shape");
  }
  return names;
}

// Memory of all arguments. Inputs lie on top of each other, which nothing forbids.
struct Memory {
  std::vector<double> inputs = std::vector<double>(1 << 18);
  std::vector<double> out = std::vector<double>(1 << 14, 123.0), lse = std::vector<double>(1 << 8, 456.0);

  bool untouched() const {
    return std::ranges::count(out, 123.0) == std::ssize(out) && std::ranges::count(lse, 456.0) == std::ssize(lse);
  }
};

// Contiguous but for rows that are padded to a multiple of 16 elements, which CUDA wants.
template <class View = TensorView, class Pointer>
View padded(Pointer data, DType dtype, Device device, std::initializer_list<std::int64_t> shape) {
  View view = View::contiguous(data, dtype, shape, device);
  std::int64_t stride = 1;
  for (int i = view.rank - 1; i >= 0; --i) {
    view.strides[i] = stride;
    stride *= i == view.rank - 1 ? (view.shape[i] + 15) / 16 * 16 : view.shape[i];
  }
  return view;
}

void set_queries(PrefillProblem& p, const Options& o, Memory& memory) {
  const auto& [d_qk, d_v] = o.dims;
  void* out = memory.out.data();
  if (o.ragged_queries) {
    p.q = padded(memory.inputs.data(), o.dtypes.q, o.device, {kTotalQ, kHQ, d_qk});
    p.out = padded<MutableTensorView>(out, o.out, o.device, {kTotalQ, kHQ, d_v});
    p.lse = MutableTensorView::contiguous(memory.lse.data(), DType::kF32, {kHQ, kTotalQ}, o.device);
    p.q_offsets = TensorView::contiguous(memory.inputs.data(), DType::kI64, {kB + 1}, o.device);
  } else {
    p.q = padded(memory.inputs.data(), o.dtypes.q, o.device, {kB, kSQ, kHQ, d_qk});
    p.out = padded<MutableTensorView>(out, o.out, o.device, {kB, kSQ, kHQ, d_v});
    p.lse = MutableTensorView::contiguous(memory.lse.data(), DType::kF32, {kB, kHQ, kSQ}, o.device);
  }
}

void set_keys(PrefillProblem& p, const Options& o, const Memory& memory) {
  const void* data = memory.inputs.data();
  const DType dtype = o.dtypes.kv;
  const std::int64_t page_size = o.keys == Keys::kPagesOf8 ? 8 : 64;
  if (o.keys == Keys::kRagged) {
    p.k = padded(data, dtype, o.device, {kTotalKV, kHKV, o.dims.qk});
    p.v = padded(data, dtype, o.device, {kTotalKV, kHKV, o.dims.v});
    p.kv_offsets = TensorView::contiguous(data, DType::kI32, {kB + 1}, o.device);
    if (o.packed) p.v = padded(data, dtype, o.device, {kHKV, o.dims.v, packed_length(kTotalKV)});
  } else {
    const std::int64_t first = o.paged() ? kPages : kB, second = o.paged() ? page_size : kSKV;
    p.k = padded(data, dtype, o.device, {first, second, kHKV, o.dims.qk});
    p.v = padded(data, dtype, o.device, {first, second, kHKV, o.dims.v});
    if (o.packed) p.v = padded(data, dtype, o.device, {first, kHKV, o.dims.v, packed_length(second)});
    if (o.keys != Keys::kDense) p.kv_lengths = TensorView::contiguous(data, DType::kI32, {kB}, o.device);
    if (o.paged()) p.block_table = TensorView::contiguous(data, DType::kI64, {kB, kMaxPages}, o.device);
  }
  if (o.packed) p.v_layout = VLayout::kPacked;
}

PrefillProblem problem_of(const Options& o, Memory& memory) {
  PrefillProblem p;
  set_queries(p, o, memory);
  set_keys(p, o, memory);
  const auto floats = [&](std::initializer_list<std::int64_t> shape) {
    return TensorView::contiguous(memory.inputs.data(), DType::kF32, shape, o.device);
  };
  p.causal = o.mask;
  if (o.mask) p.window_left = 3;
  if (o.softcap) p.softcap = 30.0f;
  if (o.sink) p.attention_sink = floats({kHQ});
  if (o.out == DType::kE4M3) p.out_scale = floats({1});
  if (o.extras == Extras::kKeyScale) p.k_scale = floats({kB, kHKV});
  if (o.extras == Extras::kSubtracted) {
    p.v_mean = floats({kB, kHKV, o.dims.v});
    p.lse_bias = o.ragged_queries ? floats({kHQ, kTotalQ}) : floats({kB, kHQ, kSQ});
  }
  if (o.quantizes()) {
    p.quantize = QuantizeRecipe{.smooth_k = o.recipe == Recipe::kSmooth, .center_v = o.recipe == Recipe::kCentered};
  }
  return p;
}

// Rows of a build with every kernel, so that the answers for CUDA are those of any build.
std::vector<PrefillVariant> cuda_rows() {
  std::vector<PrefillVariant> rows;
  const auto add = [&](DType dtype, VLayout layout) {
    for (int dim : {64, 128, 192, 256}) {
      rows.push_back({"cuda", DeviceKind::kCuda, dtype, dim, dim == 192 ? 128 : dim, layout, PMode::kDefault, nullptr,
                      nullptr, nullptr});
    }
  };
  add(DType::kE4M3, VLayout::kRowMajor);
  add(DType::kE4M3, VLayout::kPacked);
  add(DType::kBF16, VLayout::kRowMajor);
  add(DType::kFP16, VLayout::kRowMajor);
  return rows;
}

// What supports() would say on a machine that has the device.
std::vector<std::string> reasons_of(const PrefillProblem& problem) {
  if (problem.q.device.kind == DeviceKind::kCpu) return supports(problem).reasons;
  static const std::vector<PrefillVariant> rows = cuda_rows();
  std::vector<Reason> reasons = validate(problem);
  const Selection found = select_where_clear(problem, reasons, rows);
  reasons.insert(reasons.end(), found.reasons.begin(), found.reasons.end());
  return to_support(reasons).reasons;
}

// "k.dtype" of "k.dtype: got bf16, expected e4m3, the dtype of q".
Names arguments_in(const std::vector<std::string>& reasons) {
  Names names;
  for (const std::string& reason : reasons) {
    const std::size_t end = reason.find(": got ");
    EXPECT_NE(end, std::string::npos) << reason;
    EXPECT_NE(reason.find(", expected "), std::string::npos) << reason;
    names.insert(reason.substr(0, end));
  }
  return names;
}

std::string text_of(const Options& o) {
  return testing::PrintToString(std::vector<int>{o.ragged_queries, o.packed, o.mask, o.softcap, o.sink,
                                                 static_cast<int>(o.keys), static_cast<int>(o.recipe),
                                                 static_cast<int>(o.extras)}) +
         " out " + name_of(o.out) + " dims " + std::to_string(o.dims.qk) + ", " + std::to_string(o.dims.v);
}

class OptionProduct : public testing::TestWithParam<std::tuple<Dtypes, Device>> {};

TEST_P(OptionProduct, IsSupportedOrRefusedByTheArgumentsInTheWay) {
  const auto& [dtypes, device] = GetParam();
  Memory memory;
  int supported = 0, refused = 0;
  for_each_option(dtypes, device, [&](const Options& options) {
    if (HasFailure()) return;
    const PrefillProblem problem = problem_of(options, memory);
    const Names names = arguments_in(reasons_of(problem));
    ASSERT_EQ(names, expected(options)) << text_of(options);
    if (names.empty()) {
      ++supported;
      return;
    }
    ++refused;
    EXPECT_THROW(prefill(problem), Error) << text_of(options);
  });
  EXPECT_TRUE(memory.untouched());
  EXPECT_GT(refused, 0);
  EXPECT_EQ(supported > 0, expected(Options{.dtypes = dtypes, .device = device}).empty());
}

std::string name_of_case(const testing::TestParamInfo<std::tuple<Dtypes, Device>>& info) {
  const auto& [dtypes, device] = info.param;
  return std::string(name_of(dtypes.q)) + "_" + name_of(dtypes.kv) + "_" + name_of(device.kind);
}

INSTANTIATE_TEST_SUITE_P(Devices, OptionProduct,
                         testing::Combine(testing::ValuesIn(kDtypes), testing::Values(Device{}, kGpu)), name_of_case);

}  // namespace
}  // namespace fp8attn::test
