// The sizes of the prefill kernels, which their launchers and what is prepared for them follow too. Host and device.
#pragma once

namespace fp8attn::cuda {

// How element type and head dims shape the kernel: what registers and shared memory have room for.
struct PrefillShape {
  static constexpr int kWarpgroupRows = 64;  // query rows of a warpgroup
  static constexpr int kBlockKeys = 64;      // keys of a block, the grain of masks and loads

  int consumers;        // three warpgroups hide more of each other's latencies than two, but leave each 160 registers
  int blocks_per_step;  // a step is what shares one maximum and one fold
  int stages, query_stages, out_buffers;
  bool query_in_registers;

  constexpr int tile_rows() const { return kWarpgroupRows * consumers; }
  constexpr int step_keys() const { return kBlockKeys * blocks_per_step; }
};

constexpr PrefillShape prefill_shape(bool is_e4m3, int head_dim_qk) {
  switch (head_dim_qk) {
    case 64: return {3, is_e4m3 ? 4 : 2, 4, 2, 1, false};
    case 128: return {2, is_e4m3 ? 4 : 2, 2, 2, 2, is_e4m3};
    case 192: return {2, is_e4m3 ? 4 : 2, 2, 1, is_e4m3 ? 2 : 1, false};
    default: return {2, is_e4m3 ? 2 : 1, 2, is_e4m3 ? 2 : 1, 2, false};  // 256
  }
}

}  // namespace fp8attn::cuda
