#include "cli/bench_quantiser.h"

#include "api/scale_shape.h"
#include "fp8attn/e4m3.h"
#include "fp8attn/quantize.h"

namespace fp8attn::cli {
namespace {

class QuantiserSubject : public BenchSubject {
 public:
  QuantiserSubject(const BenchCase& item, const HostTensor& input, Device device)
      : op_(item.op),
        shape_(input.shape),
        granularity_(item.granularity),
        input_(DeviceTensor::copy_of(input, device)) {
    layout_ = op_ == BenchOp::kPackV ? VLayout::kPacked : item.v_layout;
    const std::int64_t b = shape_[0], s = shape_[1], h = shape_[2], d = shape_[3];
    output_ =
        DeviceTensor(device, DType::kE4M3, packed() ? std::vector{b, h, d, packed_length(s)} : std::vector{b, s, h, d});
    const TensorView scale = fp8attn::scale_shape(granularity_, b, s, h, d);
    scale_ = DeviceTensor(device, DType::kF32, {scale.shape.begin(), scale.shape.begin() + scale.rank});
    if (op_ == BenchOp::kQuantize) workspace_ = DeviceWorkspace(device, workspace_size(problem()));
  }

  void launch() override {
    if (op_ == BenchOp::kPackV) return pack_v(input_.view(), output_.view());
    quantize(problem(), workspace_.get());
  }

  HostTensor out() const override {
    const std::int64_t s = shape_[1], h = shape_[2], d = shape_[3];
    const HostTensor codes = output_.to_host(), scales = scale_.to_host();
    HostTensor real(DType::kF32, shape_);
    auto* values = reinterpret_cast<float*>(real.bytes.data());
    for (std::int64_t i = 0; i < real.count(); ++i) {
      const std::int64_t channel = i % d, head = i / d % h, token = i / (d * h) % s, batch = i / (d * h * s);
      const std::int64_t packed_at = ((batch * h + head) * d + channel) * packed_length(s) + packed_position(token);
      const float scale = op_ == BenchOp::kPackV ? 1.0f : scale_at(scales, batch, token, head, channel);
      values[i] = e4m3_to_float(std::uint8_t(codes.bytes[packed() ? packed_at : i])) * scale;
    }
    return real;
  }

  DType out_dtype() const override { return DType::kE4M3; }
  std::string version() const override { return ""; }

 private:
  bool packed() const { return layout_ == VLayout::kPacked; }

  QuantizeProblem problem() const {
    return {.input = input_.view(),
            .output = output_.view(),
            .scale = scale_.view(),
            .granularity = granularity_,
            .layout = layout_};
  }

  float scale_at(const HostTensor& scales, std::int64_t b, std::int64_t t, std::int64_t h, std::int64_t c) const {
    const auto* values = reinterpret_cast<const float*>(scales.bytes.data());
    switch (granularity_) {
      case ScaleGranularity::kTensor: return values[0];
      case ScaleGranularity::kHead: return values[h];
      case ScaleGranularity::kBatchHead: return values[b * shape_[2] + h];
      case ScaleGranularity::kTokenHead: return values[(b * shape_[1] + t) * shape_[2] + h];
      case ScaleGranularity::kChannel: return values[(b * shape_[2] + h) * shape_[3] + c];
    }
    return 1.0f;
  }

  const BenchOp op_;
  const std::vector<std::int64_t> shape_;
  const ScaleGranularity granularity_;
  VLayout layout_;
  DeviceTensor input_, output_, scale_;
  DeviceWorkspace workspace_;
};

}  // namespace

std::unique_ptr<BenchSubject> quantiser_subject(const BenchCase& item, const HostTensor& input, Device device) {
  return std::make_unique<QuantiserSubject>(item, input, device);
}

}  // namespace fp8attn::cli
