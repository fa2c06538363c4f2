#include "cli/bench_data.h"

#include <algorithm>
#include <cstring>
#include <random>

#include "cli/cuda_device.h"
#include "fp8attn/e4m3.h"

namespace fp8attn::cli {
namespace {

// A prime, so that when the values repeat they do so at another channel: no row of a tensor comes back whole before
// the row length times as many elements.
constexpr std::int64_t kTile = 1048573;

HostTensor random_values(std::int64_t count, DType dtype, unsigned seed) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal;
  HostTensor values(DType::kF32, {count});
  auto* floats = reinterpret_cast<float*>(values.bytes.data());
  std::generate_n(floats, count, [&] { return normal(generator); });
  if (dtype != DType::kE4M3) return convert(values, dtype);
  HostTensor codes(DType::kE4M3, {count});
  std::transform(floats, floats + count, reinterpret_cast<std::uint8_t*>(codes.bytes.data()), e4m3_from_float);
  return codes;
}

}  // namespace

HostTensor random_tile(DType dtype, unsigned seed) { return random_values(kTile, dtype, seed); }

void fill(const DeviceTensor& tensor, const HostTensor& tile) {
  const MutableTensorView view = tensor.view();
  const auto bytes = static_cast<std::size_t>(view.count() * size_of(view.dtype));
  for (std::size_t at = 0; at < bytes; at += tile.bytes.size()) {
    auto* target = static_cast<std::byte*>(view.data) + at;
    const std::size_t count = std::min(tile.bytes.size(), bytes - at);
    if (view.device.kind == DeviceKind::kCuda) {
      cuda_copy_to_device(view.device.index, target, tile.bytes.data(), count);
    } else {
      std::memcpy(target, tile.bytes.data(), count);
    }
  }
}

HostTensor ones(std::int64_t count) {
  HostTensor tensor(DType::kF32, {count});
  std::fill_n(reinterpret_cast<float*>(tensor.bytes.data()), count, 1.0f);
  return tensor;
}

HostTensor random_normal(std::vector<std::int64_t> shape, DType dtype, unsigned seed) {
  HostTensor tensor(dtype, std::move(shape));
  const HostTensor tile = random_values(std::min(tensor.count(), kTile), dtype, seed);
  for (std::size_t at = 0; at < tensor.bytes.size(); at += tile.bytes.size()) {
    std::memcpy(tensor.bytes.data() + at, tile.bytes.data(), std::min(tile.bytes.size(), tensor.bytes.size() - at));
  }
  return tensor;
}

Layer random_layer(const BenchCase& item) {
  Layer layer;
  // A seed each: keys that repeat queries would dominate their rows.
  layer.q = random_normal({item.batch, item.seqlen_q, item.heads_q, item.head_dim_qk}, item.dtype, 1);
  layer.k = random_normal({item.batch, item.seqlen_kv, item.heads_kv, item.head_dim_qk}, item.dtype, 2);
  layer.v = random_normal({item.batch, item.seqlen_kv, item.heads_kv, item.head_dim_v}, item.dtype, 3);
  if (item.dtype == DType::kE4M3) {
    layer.q_scale = ones(item.heads_q);
    layer.k_scale = ones(item.heads_kv);
    layer.v_scale = ones(item.heads_kv);
  }
  return layer;
}

}  // namespace fp8attn::cli
