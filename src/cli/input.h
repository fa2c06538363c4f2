// Q, K and V of one or several attention layers, as `attend` and `compare` read them.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "cli/host_tensor.h"

namespace fp8attn::cli {

// q [b, s_q, h_q, d_qk], k [b, s_kv, h_kv, d_qk], v [b, s_kv, h_kv, d_v], all of one dtype; scales only beside e4m3.
struct Layer {
  std::string name;  // "layers.0"; empty where the tensors' names have no prefix
  HostTensor q, k, v;
  std::optional<HostTensor> q_scale, k_scale, v_scale;  // f32
};

struct InputOptions {
  std::string file;                       // .safetensors; empty: q, k and v name .npy files
  std::string q = "q", k = "k", v = "v";  // tensor names (after the layer's prefix and a dot), or .npy files
  std::string layer;                      // a prefix, or the number it ends in; empty: every layer of the file
};

struct Input {
  std::vector<Layer> layers;
  bool causal = false;  // what the file's metadata says
};

// Throws Error for files that cannot be read, tensors that are missing and shapes or dtypes that do not fit together.
Input load_input(const InputOptions& options);

// "q [1, 1000, 9, 64], k and v [1, 1000, 3, 64], bf16"
std::string describe(const Layer& layer);

}  // namespace fp8attn::cli
