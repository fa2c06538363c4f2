#include "merge_case.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <span>

#include "codec.h"
#include "random.h"

namespace fp8attn::test {
namespace {

constexpr double kNothing = -std::numeric_limits<double>::infinity();
constexpr std::uint8_t kGapByte = 0x5A;

double exponential(LseBase base, double x) { return base == LseBase::k2 ? std::exp2(x) : std::exp(x); }
double logarithm(LseBase base, double x) { return base == LseBase::k2 ? std::log2(x) : std::log(x); }

// Softmax over some keys of one row.
struct Sum {
  std::vector<double> out;
  double lse;
};

Sum attend(LseBase base, const std::vector<double>& logits, const std::vector<double>& values, std::int64_t channels,
           auto is_in) {
  Sum result{std::vector<double>(channels), kNothing};
  double top = kNothing, weights = 0;
  for (std::size_t key = 0; key < logits.size(); ++key) {
    if (is_in(key)) top = std::max(top, logits[key]);
  }
  if (top == kNothing) return result;
  for (std::size_t key = 0; key < logits.size(); ++key) {
    if (!is_in(key)) continue;
    const double weight = exponential(base, logits[key] - top);
    weights += weight;
    for (std::int64_t c = 0; c < channels; ++c) result.out[c] += weight * values[key * channels + c];
  }
  for (double& value : result.out) value /= weights;
  result.lse = top + logarithm(base, weights);
  return result;
}

// A tensor in a buffer of the device, whose elements are set before it goes there.
class Tensor {
 public:
  // order: dims from the outermost on. room: elements behind every row of the last dim.
  Tensor(DType dtype, std::vector<std::int64_t> shape, const std::vector<int>& order, std::int64_t room)
      : dtype_(dtype), shape_(std::move(shape)), strides_(shape_.size()) {
    std::int64_t stride = 1;
    for (auto dim = order.rbegin(); dim != order.rend(); ++dim) {
      strides_[*dim] = stride;
      stride *= shape_[*dim] + (dim == order.rbegin() ? room : 0);
    }
    bytes_.assign(stride * size_of(dtype), kGapByte);
  }

  std::uint8_t* at(std::span<const std::int64_t> index) {
    std::int64_t offset = 0;
    for (std::size_t i = 0; i < index.size(); ++i) offset += index[i] * strides_[i];
    return &bytes_[offset * size_of(dtype_)];
  }
  std::vector<std::uint8_t>& bytes() { return bytes_; }
  void upload(TestDevice& device) {
    device_ = device.device();
    buffer_ = Buffer(device, bytes_.size());
    if (!bytes_.empty()) buffer_.upload(bytes_.data());
  }
  void download() {
    if (!bytes_.empty()) buffer_.download(bytes_.data());
  }
  MutableTensorView view() const {
    MutableTensorView view{buffer_.data(), dtype_, device_, static_cast<int>(shape_.size()), {}, {}};
    std::ranges::copy(shape_, view.shape.begin());
    std::ranges::copy(strides_, view.strides.begin());
    return view;
  }

 private:
  DType dtype_;
  Device device_;
  std::vector<std::int64_t> shape_, strides_;
  std::vector<std::uint8_t> bytes_;
  Buffer buffer_;
};

// Indices of one row in out ([b, s_q, h_q] or [total_q, h_q]) and in lse.
struct RowIndex {
  std::vector<std::int64_t> out, lse;
};

RowIndex index_of(const MergeCase& test, std::int64_t row) {
  const std::int64_t token = row % test.s_q, head = row / test.s_q % test.h_q, batch = row / test.s_q / test.h_q;
  if (test.ragged) return {{batch * test.s_q + token, head}, {head, batch * test.s_q + token}};
  return {{batch, token, head}, {batch, head, token}};
}

std::vector<std::int64_t> joined(std::vector<std::int64_t> first, const std::vector<std::int64_t>& second) {
  first.insert(first.end(), second.begin(), second.end());
  return first;
}

// Dims in memory: the parts outside of all, or just outside of the last dim.
std::vector<int> order_of(const MergeCase& test, std::size_t rank) {
  std::vector<int> order(rank);
  for (std::size_t i = 0; i < rank; ++i) order[i] = static_cast<int>(i);
  if (test.layout == PartsLayout::kInside) std::rotate(order.begin(), order.begin() + 1, order.end() - 1);
  return order;
}

// All tensors of one call.
struct MergeTensors {
  explicit MergeTensors(const MergeCase& test)
      : out_shape(test.ragged ? std::vector{test.b * test.s_q, test.h_q, test.d_v}
                              : std::vector{test.b, test.s_q, test.h_q, test.d_v}),
        lse_shape(test.ragged ? std::vector{test.h_q, test.b * test.s_q} : std::vector{test.b, test.h_q, test.s_q}),
        room(test.layout == PartsLayout::kOutside ? 0 : 16),
        outs(test.parts_dtype, joined({test.parts}, out_shape), order_of(test, out_shape.size() + 1), aligned(test)),
        lses(DType::kF32, joined({test.parts}, lse_shape), order_of(test, lse_shape.size() + 1), room),
        out(test.out_dtype, out_shape, plain(out_shape.size()), aligned(test)),
        lse(DType::kF32, lse_shape, plain(lse_shape.size()), room) {}

  // Rows of whole 16 bytes, which CUDA wants.
  std::int64_t aligned(const MergeCase& test) const { return (test.d_v + 15) / 16 * 16 - test.d_v + room; }
  static std::vector<int> plain(std::size_t rank) { return order_of({}, rank); }

  const std::vector<std::int64_t> out_shape, lse_shape;
  const std::int64_t room;
  Tensor outs, lses, out, lse;
};

void fill(MergeTensors& tensors, const MergeCase& test, const MergeData& data) {
  for (std::int64_t part = 0; part < test.parts; ++part) {
    for (std::int64_t row = 0; row < test.rows(); ++row) {
      const RowIndex index = index_of(test, row);
      const std::int64_t i = part * test.rows() + row;
      std::uint8_t* target = tensors.outs.at(joined({part}, index.out));
      for (std::int64_t c = 0; c < test.d_v; ++c) {
        encode(test.parts_dtype, data.part_out[i * test.d_v + c], target + c * size_of(test.parts_dtype));
      }
      encode(DType::kF32, data.part_lse[i], tensors.lses.at(joined({part}, index.lse)));
    }
  }
}

}  // namespace

MergeData make_merge_data(const MergeCase& test) {
  const Random random(11, 0), sizes(12, 0);
  MergeData data;
  const std::int64_t rows = test.rows(), parts = test.parts;
  data.part_out.assign(parts * rows * test.d_v, std::numeric_limits<float>::quiet_NaN());
  data.part_lse.assign(parts * rows, -std::numeric_limits<float>::infinity());
  for (std::int64_t row = 0; row < rows; ++row) {
    std::vector<double> logits(row % 7 == 3 ? 0 : test.keys), values(logits.size() * test.d_v);
    for (std::size_t key = 0; key < logits.size(); ++key) {
      logits[key] = 3 * random.normal(row * test.keys + key) + test.lse_shift;
    }
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = random.normal((1ull << 40) + row * values.size() + i);
    const auto part_of = [&](std::size_t key) {
      const std::uint64_t bits = sizes.bits(row % 5 == 1 ? row : row * test.keys + key);
      return static_cast<std::int64_t>(bits % parts);
    };
    for (std::int64_t part = 0; part < parts; ++part) {
      const Sum sum =
          attend(test.base, logits, values, test.d_v, [&](std::size_t key) { return part_of(key) == part; });
      if (sum.lse == kNothing) continue;
      data.part_lse[part * rows + row] = static_cast<float>(sum.lse);
      std::ranges::copy(sum.out, data.part_out.begin() + (part * rows + row) * test.d_v);
    }
    const Sum sum = attend(test.base, logits, values, test.d_v, [&](std::size_t) { return parts > 0; });
    data.out.insert(data.out.end(), sum.out.begin(), sum.out.end());
    data.lse.push_back(sum.lse);
  }
  return data;
}

MergeOutput run_merge(TestDevice& device, const MergeCase& test, const MergeData& data, LseBase base) {
  MergeTensors tensors(test);
  fill(tensors, test, data);
  const std::vector<std::uint8_t> out_before = tensors.out.bytes(), lse_before = tensors.lse.bytes();
  for (Tensor* tensor : {&tensors.outs, &tensors.lses, &tensors.out, &tensors.lse}) tensor->upload(device);
  MergeAttentionProblem problem{tensors.outs.view(), tensors.lses.view(), tensors.out.view(), {}, base};
  if (test.with_lse) problem.lse = tensors.lse.view();
  merge_attention(problem);
  tensors.out.download();
  tensors.lse.download();

  MergeOutput output;
  const std::int64_t element = size_of(test.out_dtype);
  for (std::int64_t row = 0; row < test.rows(); ++row) {
    const RowIndex index = index_of(test, row);
    std::uint8_t* source = tensors.out.at(index.out);
    for (std::int64_t c = 0; c < test.d_v; ++c) output.out.push_back(decode(test.out_dtype, source + c * element));
    output.out_bytes.insert(output.out_bytes.end(), source, source + test.d_v * element);
    std::fill_n(source, test.d_v * element, kGapByte);
    if (!test.with_lse) continue;
    output.lse.push_back(decode(DType::kF32, tensors.lse.at(index.lse)));
    std::fill_n(tensors.lse.at(index.lse), 4, kGapByte);
  }
  // With the elements put back, nothing may differ.
  if (tensors.out.bytes() != out_before) output.wrong_write = "something was written beside the elements of out";
  if (tensors.lse.bytes() != lse_before) output.wrong_write = "something was written beside the elements of lse";
  return output;
}

namespace {

// What the channels of a row may be off by: parts and out are rounded to their dtypes, lses and sums to float32.
double tolerance_of(const MergeCase& test, const MergeData& data, std::int64_t row, std::int64_t channel) {
  const auto rounding = [](DType dtype) {
    return dtype == DType::kBF16 ? 0x1p-8 : dtype == DType::kFP16 ? 0x1p-11 : 0x1p-24;
  };
  const double lse = data.lse[row], arithmetic = 0x1p-21 + std::abs(lse) * 0x1p-23;
  double magnitude = 0;
  for (std::int64_t part = 0; part < test.parts; ++part) {
    const std::int64_t i = part * test.rows() + row;
    if (data.part_lse[i] == kNothing) continue;
    magnitude += exponential(test.base, data.part_lse[i] - lse) * std::abs(data.part_out[i * test.d_v + channel]);
  }
  return (rounding(test.parts_dtype) + rounding(test.out_dtype) + arithmetic) * magnitude;
}

// The bytes that a row of at most one part must have.
std::vector<std::uint8_t> exact_bytes(const MergeCase& test, const MergeData& data, std::int64_t row,
                                      const std::vector<std::int64_t>& seeing) {
  const std::int64_t element = size_of(test.out_dtype);
  std::vector<std::uint8_t> bytes(test.d_v * element);
  if (seeing.empty()) return bytes;
  const float* part = &data.part_out[(seeing[0] * test.rows() + row) * test.d_v];
  for (std::int64_t c = 0; c < test.d_v; ++c) {
    std::uint8_t stored[4];
    encode(test.parts_dtype, part[c], stored);
    encode(test.out_dtype, decode(test.parts_dtype, stored), &bytes[c * element]);
  }
  return bytes;
}

}  // namespace

::testing::AssertionResult check_merge(const MergeCase& test, const MergeData& data, const MergeOutput& output) {
  if (!output.wrong_write.empty()) return ::testing::AssertionFailure() << output.wrong_write;
  const std::int64_t row_bytes = test.d_v * size_of(test.out_dtype);
  for (std::int64_t row = 0; row < test.rows(); ++row) {
    const auto fail = [&] { return ::testing::AssertionFailure() << "row " << row << " of [b, h_q, s_q]: "; };
    std::vector<std::int64_t> seeing;
    for (std::int64_t part = 0; part < test.parts; ++part) {
      if (data.part_lse[part * test.rows() + row] != kNothing) seeing.push_back(part);
    }
    if (seeing.size() <= 1) {
      const std::vector<std::uint8_t> bytes = exact_bytes(test, data, row, seeing);
      if (!std::equal(bytes.begin(), bytes.end(), output.out_bytes.begin() + row * row_bytes)) {
        return fail() << "not the bits of a row of " << seeing.size() << " parts";
      }
    }
    for (std::int64_t c = 0; c < test.d_v && !seeing.empty(); ++c) {
      const double got = output.out[row * test.d_v + c], exact = data.out[row * test.d_v + c];
      if (!(std::abs(got - exact) <= tolerance_of(test, data, row, c))) {
        return fail() << got << " in channel " << c << ", not " << exact;
      }
    }
    if (!test.with_lse) continue;
    const double got = output.lse[row], exact = data.lse[row];
    const bool same = seeing.size() > 1 ? std::abs(got - exact) <= 0x1p-22 * (4 + std::abs(exact))
                                        : got == (seeing.empty() ? kNothing : static_cast<float>(exact));
    if (!same) return fail() << "lse " << got << ", not " << exact;
  }
  return ::testing::AssertionSuccess();
}

}  // namespace fp8attn::test
