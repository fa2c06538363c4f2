// What runs before the prefill kernel within a call, each step one launch on the current device. Steps read lengths,
// offsets and tables on the device, and of keys and values what these address, nothing else.
//
// Each kernel is launched while the one before it on the stream is at work, waits for its end before it reads or writes
// anything, and so ends only when all before it have ended: the workspace may be that of the call before.
#pragma once

#include <cstdint>

#include "cuda/sm90/tile/tile_list.h"
#include "fp8attn/backend.h"
#include "fp8attn/tensor.h"

namespace fp8attn::cuda {

// Lists the tiles of an uneven batch; those for which there is room, where offsets make sequences overlap.
// beside_rows: runs beside pack_values() or gather_pages(), which was launched last on the stream. These let it start
// only when all before them have ended.
void plan_tiles(const UnevenTiles& tiles, const TileList& list, Stream stream, bool beside_rows = false);

// A row-major e4m3 v of an uneven batch into the packed order: output [h_kv][d_v][positions], sequence i from position
// batch.aligned_start(i) of batch.aligned_positions() on, with 0 from its last token to the next multiple of 64.
void pack_values(const BatchView& batch, const TensorView& v, std::uint8_t* output, Stream stream);

// Keys or values, 16 bytes aligned, that lie in pages: into rows [positions][h_kv][d] with the same starts and the same
// zeros.
struct GatheredRows {
  TensorView pages;      // [pages, page_size, h_kv, d]
  std::uint8_t* output;  // null: none
};
void gather_pages(const BatchView& batch, const GatheredRows& k, const GatheredRows& v, Stream stream);

}  // namespace fp8attn::cuda
