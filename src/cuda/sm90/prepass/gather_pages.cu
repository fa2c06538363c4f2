// Keys, and values of 16 bits, from pages of any size into rows, where the prefill kernel's copies cannot follow the
// table.
#include <algorithm>
#include <cstdint>

#include "cuda/launch/device.h"
#include "cuda/sm90/prepass/page_rows.cuh"
#include "cuda/sm90/prepass/prepass.h"
#include "cuda/sm90/prepass/sequence_walk.cuh"
#include "cuda/sm90/quantize/launch.h"

namespace fp8attn::cuda {
namespace {

constexpr int kThreads = 256, kBlocksPerMultiprocessor = 4;
constexpr int kTokens = BatchView::kAlignment;  // of a piece
constexpr int kInFlight = 8;                    // vectors of a thread, all requested before the first is written
constexpr int kVectorBytes = 16;

// One tensor. A part of a piece is some of its heads: at most kInFlight vectors a thread.
struct GatherOperand {
  const std::uint8_t* input;
  PageStrides strides;
  std::uint8_t* output;
  int row_vectors;  // of the output: all heads of a token
  int heads, part_heads, parts;
  Divisor head_vectors, token_vectors;  // vectors of a head, of the heads of a part
};

struct GatherParams {
  BatchView batch;
  Divisor page_size;
  GatherOperand operand[2];  // parts of a piece: those of the first, then those of the second
  int team;                  // of blocks, see SequenceWalk
};

// position: of the piece's first token in the output.
__device__ void copy_part(const GatherOperand& operand, int part, const PageRows<kTokens>& rows,
                          std::int64_t position) {
  const int first_head = part * operand.part_heads;
  std::uint8_t* output = operand.output + position * operand.row_vectors * kVectorBytes;
  Vector<1, kVectorBytes> vectors[kInFlight];
  int target[kInFlight];  // vector of the output, or -1
#pragma unroll
  for (int i = 0; i < kInFlight; ++i) {
    const int index = static_cast<int>(threadIdx.x) + i * kThreads;
    const int token = operand.token_vectors.divide(index);
    const int within = index - token * operand.token_vectors.divisor();
    const int head = operand.head_vectors.divide(within);
    const bool exists = token < kTokens && first_head + head < operand.heads;
    const std::int64_t offset = exists ? rows.offset[token] : PageRows<kTokens>::kNone;
    if (offset != PageRows<kTokens>::kNone) {
      const int vector = within - head * operand.head_vectors.divisor();
      vectors[i].load(operand.input + offset + (first_head + head) * operand.strides.head + vector * kVectorBytes);
    }
    const int first_vector = first_head * operand.head_vectors.divisor();
    target[i] = exists ? token * operand.row_vectors + first_vector + within : -1;
  }
#pragma unroll
  for (int i = 0; i < kInFlight; ++i) {
    if (target[i] >= 0) vectors[i].store(output + static_cast<std::int64_t>(target[i]) * kVectorBytes);
  }
}

__global__ void __launch_bounds__(kThreads, kBlocksPerMultiprocessor)
    gather_pages_kernel(const __grid_constant__ GatherParams params) {
  using Walk = SequenceWalk<kTokens, kThreads>;
  __shared__ Walk::Shared walk_shared;
  __shared__ PageRows<kTokens> rows;
  cudaGridDependencySynchronize();
  cudaTriggerProgrammaticLaunchCompletion();  // in this order: plan_tiles() beside it relies on that
  const int first_parts = params.operand[0].parts;
  Walk walk(params.batch, first_parts + params.operand[1].parts, params.team, walk_shared);
  for (SequencePiece piece; walk.next(piece);) {
    const bool second = piece.part >= first_parts;
    const GatherOperand& operand = params.operand[second ? 1 : 0];
    rows.find(params.batch, params.page_size, operand.strides, piece);
    __syncthreads();
    copy_part(operand, piece.part - (second ? first_parts : 0), rows,
              params.batch.aligned_start(piece.sequence) + std::int64_t{piece.token});
    __syncthreads();
  }
}

GatherOperand operand_of(const GatheredRows& gathered) {
  if (gathered.output == nullptr) return {};
  const TensorView& pages = gathered.pages;
  const std::int64_t element = size_of(pages.dtype), heads = pages.shape[2];
  const std::int64_t head_vectors = pages.shape[3] * element / kVectorBytes;
  const std::int64_t most = kInFlight * kThreads / kTokens / head_vectors;
  const std::int64_t parts = (heads + most - 1) / most, part_heads = (heads + parts - 1) / parts;
  return {.input = static_cast<const std::uint8_t*>(pages.data),
          .strides = {pages.strides[0] * element, pages.strides[1] * element, pages.strides[2] * element},
          .output = gathered.output,
          .row_vectors = static_cast<int>(heads * head_vectors),
          .heads = static_cast<int>(heads),
          .part_heads = static_cast<int>(part_heads),
          .parts = static_cast<int>(parts),
          .head_vectors = Divisor(static_cast<int>(head_vectors)),
          .token_vectors = Divisor(static_cast<int>(part_heads * head_vectors))};
}

}  // namespace

void gather_pages(const BatchView& batch, const GatheredRows& k, const GatheredRows& v, Stream stream) {
  GatherParams params{
      .batch = batch, .page_size = Divisor(batch.page_size), .operand = {operand_of(k), operand_of(v)}, .team = 0};
  const WalkGrid grid(batch, kTokens, params.operand[0].parts + params.operand[1].parts,
                      kBlocksPerMultiprocessor * multiprocessor_count(k.pages.device.index));
  params.team = grid.team;
  launch_blocks(gather_pages_kernel, Grid{grid.blocks, kThreads}, Start::kEarly, stream, params);
}

}  // namespace fp8attn::cuda
