#include "cli/cudnn.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <cmath>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <unordered_map>
#include <vector>

// cuDNN's frontend looks up every function of cuDNN behind this handle, so that the program starts where cuDNN is not
// installed.
#define NV_CUDNN_FRONTEND_USE_DYNAMIC_LOADING
#define CUDNN_FRONTEND_SKIP_JSON_LIB
#include <cudnn_frontend.h>

namespace cudnn_frontend {
void* cudnn_dlhandle = nullptr;
}

namespace fp8attn::cli {
namespace {

namespace fe = cudnn_frontend;
namespace graph = cudnn_frontend::graph;
using TensorPointer = std::shared_ptr<graph::Tensor_attributes>;

// P in [0, 1] is stored in e4m3 times kScaleP. The output is stored times kScaleOut: an average over 32768 tokens of
// unit variance is 1/181, and the value that a causal row copies stays below 448 / 64 = 7.
constexpr float kScaleP = 256, kScaleOut = 64;

enum Uid : std::int64_t { kQ = 1, kK, kV, kOut, kStats, kUnit, kDescaleP, kScaleOfP, kScaleOfOut, kAmaxP, kAmaxOut };

void load_cudnn() {
  if (fe::cudnn_dlhandle != nullptr) return;
  std::string problem;
  for (const std::string& name : {fmt::format("libcudnn.so.{}", CUDNN_MAJOR), std::string("libcudnn.so")}) {
    fe::cudnn_dlhandle = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);  // never closed
    if (fe::cudnn_dlhandle != nullptr) return;
    if (problem.empty()) problem = dlerror();
  }
  throw std::runtime_error(fmt::format("{} (is its folder in LD_LIBRARY_PATH?)", problem));
}

void check(fe::error_t status, const char* call) {
  if (status.is_bad()) throw std::runtime_error(fmt::format("cuDNN: {}: {}", call, status.get_message()));
}

void check(cudnnStatus_t status, const char* call) {
  if (status != CUDNN_STATUS_SUCCESS) {
    throw std::runtime_error(fmt::format("{}: {}", call, fe::detail::get_error_string(status)));
  }
}

// One for the process, on the device that is current at the first call: making one takes longer than a case.
cudnnHandle_t cudnn_handle() {
  static const cudnnHandle_t made = [] {
    load_cudnn();
    cudnnHandle_t result = nullptr;
    check(fe::detail::create_handle(&result), "cudnnCreate");
    return result;
  }();
  return made;
}

fe::DataType_t type_of(DType dtype) {
  switch (dtype) {
    case DType::kE4M3: return fe::DataType_t::FP8_E4M3;
    case DType::kBF16: return fe::DataType_t::BFLOAT16;
    case DType::kFP16: return fe::DataType_t::HALF;
    default: return fe::DataType_t::FLOAT;
  }
}

// cuDNN names dims [batch, head, token, channel] whatever their order in memory, which here is
// [batch, token, head, channel].
void lay_out(graph::Tensor_attributes* tensor, Uid uid, std::span<const std::int64_t> shape, DType dtype) {
  const std::int64_t tokens = shape[1], heads = shape[2], channels = shape[3];
  tensor->set_uid(uid)
      .set_data_type(type_of(dtype))
      .set_dim({shape[0], heads, tokens, channels})
      .set_stride({tokens * heads * channels, channels, heads * channels, 1});
}

TensorPointer input(graph::Graph* graph, Uid uid, const HostTensor& tensor) {
  graph::Tensor_attributes attributes;
  lay_out(&attributes, uid, tensor.shape, tensor.dtype);
  return graph->tensor(attributes);
}

void make_scalar(graph::Tensor_attributes* tensor, Uid uid) {
  tensor->set_uid(uid).set_data_type(fe::DataType_t::FLOAT).set_dim({1, 1, 1, 1}).set_stride({1, 1, 1, 1});
}

TensorPointer scalar(graph::Graph* graph, Uid uid) {
  graph::Tensor_attributes attributes;
  make_scalar(&attributes, uid);
  return graph->tensor(attributes);
}

graph::SDPA_attributes attributes_of(const BenchCase& item) {
  graph::SDPA_attributes attributes;
  attributes.set_name("attention").set_generate_stats(true);
  attributes.set_attn_scale(1 / std::sqrt(static_cast<float>(item.head_dim_qk)));
  // For e4m3 cuDNN aligns a mask to the first key only; with as many queries as keys that is the same.
  if (item.causal) {
    attributes.set_diagonal_alignment(item.seqlen_q == item.seqlen_kv ? fe::DiagonalAlignment_t::TOP_LEFT
                                                                      : fe::DiagonalAlignment_t::BOTTOM_RIGHT);
    attributes.set_diagonal_band_right_bound(0);
  }
  return attributes;
}

class Cudnn : public BenchSubject {
 public:
  Cudnn(const BenchCase& item, const Layer& layer, Device device)
      : device_(device),
        out_(device, item.dtype, {item.batch, item.seqlen_q, item.heads_q, item.head_dim_v}),
        handle_(cudnn_handle()) {
    graph_.set_io_data_type(type_of(item.dtype))
        .set_intermediate_data_type(fe::DataType_t::FLOAT)
        .set_compute_data_type(fe::DataType_t::FLOAT);
    item.dtype == DType::kE4M3 ? describe_e4m3(item, layer) : describe_16bit(item, layer);
    build();
    allocate(item, layer);
  }

  void launch() override { check(graph_.execute(handle_, memory_, workspace_.get().data), "execute"); }

  HostTensor out() const override {
    const HostTensor stored = out_.to_host();
    return out_dtype() == DType::kE4M3 ? dequantized(stored, 1 / kScaleOut) : stored;
  }
  DType out_dtype() const override { return out_.view().dtype; }
  std::string version() const override { return fe::detail::get_backend_version_string(); }

 private:
  void describe_16bit(const BenchCase& item, const Layer& layer) {
    const auto [out, stats] = graph_.sdpa(input(&graph_, kQ, layer.q), input(&graph_, kK, layer.k),
                                          input(&graph_, kV, layer.v), attributes_of(item));
    describe_outputs(item, out.get(), stats.get());
  }

  void describe_e4m3(const BenchCase& item, const Layer& layer) {
    const TensorPointer unit = scalar(&graph_, kUnit);
    const auto [out, stats, amax_p, amax_out] = graph_.sdpa_fp8(
        input(&graph_, kQ, layer.q), input(&graph_, kK, layer.k), input(&graph_, kV, layer.v), unit, unit, unit,
        scalar(&graph_, kDescaleP), scalar(&graph_, kScaleOfP), scalar(&graph_, kScaleOfOut), attributes_of(item));
    describe_outputs(item, out.get(), stats.get());
    make_scalar(&amax_p->set_output(true), kAmaxP);
    make_scalar(&amax_out->set_output(true), kAmaxOut);
  }

  void describe_outputs(const BenchCase& item, graph::Tensor_attributes* out, graph::Tensor_attributes* stats) {
    const TensorView view = out_.view();
    lay_out(&out->set_output(true), kOut, {view.shape.data(), 4}, view.dtype);
    stats->set_output(true).set_uid(kStats).set_data_type(fe::DataType_t::FLOAT);
    stats->set_dim({item.batch, item.heads_q, item.seqlen_q, 1});
    stats->set_stride({item.heads_q * item.seqlen_q, item.seqlen_q, 1, 1});
  }

  void build() {
    check(graph_.validate(), "validate");
    check(graph_.build_operation_graph(handle_), "build_operation_graph");
    check(graph_.create_execution_plans({fe::HeurMode_t::A}), "create_execution_plans");
    check(graph_.check_support(handle_), "check_support");
    check(graph_.build_plans(handle_), "build_plans");
  }

  void allocate(const BenchCase& item, const Layer& layer) {
    memory_[kOut] = out_.view().data;
    keep(kQ, DeviceTensor::copy_of(layer.q, device_));
    keep(kK, DeviceTensor::copy_of(layer.k, device_));
    keep(kV, DeviceTensor::copy_of(layer.v, device_));
    keep(kStats, DeviceTensor(device_, DType::kF32, {item.batch, item.heads_q, item.seqlen_q}));
    if (item.dtype == DType::kE4M3) {
      keep(kUnit, 1);
      keep(kDescaleP, 1 / kScaleP);
      keep(kScaleOfP, kScaleP);
      keep(kScaleOfOut, kScaleOut);
      keep(kAmaxP, 0);
      keep(kAmaxOut, 0);
    }
    std::int64_t bytes = 0;
    check(graph_.get_workspace_size(bytes), "get_workspace_size");
    workspace_ = DeviceWorkspace(device_, static_cast<std::size_t>(bytes));
  }

  void keep(Uid uid, DeviceTensor tensor) {
    memory_[uid] = tensor.view().data;
    tensors_.push_back(std::move(tensor));
  }
  void keep(Uid uid, float value) {
    HostTensor tensor(DType::kF32, {1});
    *reinterpret_cast<float*>(tensor.bytes.data()) = value;
    keep(uid, DeviceTensor::copy_of(tensor, device_));
  }

  Device device_;
  DeviceTensor out_;
  cudnnHandle_t handle_;  // of the current device, which out_ has set
  graph::Graph graph_;
  std::vector<DeviceTensor> tensors_;
  std::unordered_map<std::int64_t, void*> memory_;  // of each tensor of the graph
  DeviceWorkspace workspace_;
};

}  // namespace

std::unique_ptr<BenchSubject> cudnn_subject(const BenchCase& item, const Layer& layer, Device device) {
  return std::make_unique<Cudnn>(item, layer, device);
}

}  // namespace fp8attn::cli
