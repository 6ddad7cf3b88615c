// Products of one row of activations with block-quantised weights, as in decode. Such a product does little with each
// weight: it is as fast as weights arrive. So a warp has a ring of pieces of its weights on their way to shared memory,
// several thousand bytes at any time, asked for by one instruction each, and computes on the oldest.
//
// The kernel takes at most half of a multiprocessor (VectorShape), one block on each, and its successor may start at
// once (BlockVector): while this kernel runs, the rings of the next product fill in the other half. Only then does the
// next product wait for its activations. Launch, activations and the first weights so cost little time of the memory.
// Private to backend/cuda.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "backend/cuda/block_activations.cuh"
#include "backend/cuda/block_outputs.cuh"
#include "backend/cuda/bulk_copy.cuh"

namespace infinigen {

// 16 warps with 64 registers a thread are half of a multiprocessor.
struct VectorShape {
  static constexpr int kWarps = 16;
  static constexpr int kBlocks = 2;         // that fit a multiprocessor
  static constexpr int kPieceBytes = 1536;  // a piece has at least as many, except at the end of a row
};

// A number of units of a row for each lane. Pieces start at multiples of 16 bytes from the start of the row.
template <class Format, class Shape>
struct VectorPiece {
  static constexpr int UnitsOfLane() {
    int units = 1;
    while (32 * units / Format::kUnits * Format::kBytes < Shape::kPieceBytes ||
           32 * units / Format::kUnits * Format::kBytes % 16 != 0)
      units *= 2;
    return units;
  }
  static constexpr int kLaneUnits = UnitsOfLane();
  static constexpr int kUnits = 32 * kLaneUnits;
  static constexpr int kBytes = kUnits / Format::kUnits * Format::kBytes;
  static constexpr int kStageBytes = kBytes + 16;  // a row that starts between multiples of 16 needs more
};

// The pieces of all outputs of a warp, in order.
template <class Format, class Shape>
class VectorPieces {
 public:
  using Piece = VectorPiece<Format, Shape>;

  __device__ VectorPieces(const Outputs& outputs, int units) : outputs_(outputs), units_(units) { StartRow(); }

  __device__ bool done() const { return outputs_.done(); }
  __device__ const Outputs& outputs() const { return outputs_; }
  __device__ int first_unit() const { return unit_; }
  __device__ int units() const { return min(Piece::kUnits, units_ - unit_); }
  __device__ bool last_of_row() const { return unit_ + Piece::kUnits >= units_; }
  // The piece in global memory, from the multiple of 16 bytes before it to the one behind it.
  __device__ const uint8_t* from() const { return at_ - misalignment(); }
  __device__ int bytes() const { return (misalignment() + units() / Format::kUnits * Format::kBytes + 15) / 16 * 16; }
  __device__ int misalignment() const { return static_cast<int>(reinterpret_cast<uintptr_t>(at_) % 16); }

  __device__ void Next() {
    unit_ += Piece::kUnits;
    at_ += Piece::kBytes;
    if (unit_ < units_) return;
    outputs_.Next();
    StartRow();
  }

 private:
  __device__ void StartRow() {
    unit_ = 0;
    if (!done()) at_ = outputs_.weights();
  }

  Outputs outputs_;
  int units_;     // of a row
  int unit_ = 0;  // first unit of the piece
  const uint8_t* at_ = nullptr;
};

// The ring of a warp: `stages` pieces in shared memory, copied and read in turn.
template <class Format, class Shape>
class WeightRing {
 public:
  using Piece = VectorPiece<Format, Shape>;

  // Memory of all warps of a block: [warps][stages][kStageBytes], then barriers [warps][stages].
  __host__ __device__ static constexpr int Bytes(int stages) {
    return Shape::kWarps * stages * (Piece::kStageBytes + static_cast<int>(sizeof(uint64_t)));
  }
  __device__ WeightRing(std::byte* memory, int warp, int stages) : stages_(stages) {
    const auto start = static_cast<uint32_t>(__cvta_generic_to_shared(memory));
    data_ = memory + warp * stages * Piece::kStageBytes;
    first_ = start + static_cast<uint32_t>(warp * stages * Piece::kStageBytes);
    barriers_ = start + static_cast<uint32_t>(Shape::kWarps * stages * Piece::kStageBytes + warp * stages * 8);
    if (threadIdx.x % 32 == 0) {
      for (int stage = 0; stage < stages; ++stage) InitCopyBarrier(barriers_ + 8 * static_cast<uint32_t>(stage));
      PublishCopyBarriers();
    }
    __syncwarp();
  }

  // Starts copies into the whole ring.
  __device__ void Fill(VectorPieces<Format, Shape>& pieces) {
    for (int stage = 0; stage < stages_ && !pieces.done(); ++stage, pieces.Next()) Start(stage, pieces);
  }
  // Waits for the oldest piece. Returns where its multiple of 16 bytes starts.
  __device__ const uint8_t* Wait() const {
    WaitForCopy(barriers_ + 8 * static_cast<uint32_t>(stage_), parity_);
    return reinterpret_cast<const uint8_t*>(data_ + stage_ * Piece::kStageBytes);
  }
  // Puts the next piece, if there is one, where all lanes have read the oldest.
  __device__ void Replace(VectorPieces<Format, Shape>& pieces) {
    __syncwarp();
    if (!pieces.done()) {
      Start(stage_, pieces);
      pieces.Next();
    }
    if (++stage_ < stages_) return;
    stage_ = 0;
    parity_ ^= 1;
  }

 private:
  __device__ void Start(int stage, const VectorPieces<Format, Shape>& piece) const {
    StartCopy(first_ + static_cast<uint32_t>(stage * Piece::kStageBytes), piece.from(), piece.bytes(),
              barriers_ + 8 * static_cast<uint32_t>(stage));
  }

  std::byte* data_;
  uint32_t first_, barriers_;  // addresses in shared memory
  int stages_, stage_ = 0;
  uint32_t parity_ = 0;
};

// Every block quantises the activations in shared memory, which saves a launch. The kernel may start before its
// predecessor has ended: until cudaGridDependencySynchronize it touches nothing but weights. Terms of an output are
// added in the order of BlockProduct, so both give the same bits.
template <class Format, class In, class Shape>
__global__ void __launch_bounds__(Shape::kWarps * 32, Shape::kBlocks)
    BlockVector(const __grid_constant__ BlockCall call, const In* x, int cols, int stages) {
  using Piece = VectorPiece<Format, Shape>;
  extern __shared__ __align__(128) std::byte shared[];
  const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
  // Neighbouring outputs go to different blocks, so that all multiprocessors have the same number but for one.
  const Outputs outputs(call, warp * static_cast<int>(gridDim.x) + static_cast<int>(blockIdx.x),
                        static_cast<int>(gridDim.x) * Shape::kWarps);
  WeightRing<Format, Shape> ring(shared, warp, stages);
  VectorPieces<Format, Shape> now(outputs, cols / Format::Unit::kNumbers), next = now;
  ring.Fill(next);
#if __CUDA_ARCH__ >= 900
  cudaTriggerProgrammaticLaunchCompletion();
  cudaGridDependencySynchronize();
#endif
  const QuantisedRows row = QuantisedRows::In(shared + WeightRing<Format, Shape>::Bytes(stages), 1, cols);
  QuantiseRow<Shape::kWarps * 32>(x, row);
  __syncthreads();
  float sums[1] = {};
  for (; !now.done(); now.Next()) {
    const uint8_t* blocks = ring.Wait() + now.misalignment();
    const auto add = [&](int i) {
      const auto index = static_cast<uint32_t>(lane + 32 * i), block = index / Format::kUnits;
      typename Format::Unit unit;
      Format::Read(blocks + block * Format::kBytes, static_cast<int>(index % Format::kUnits), unit);
      const int before = now.first_unit() + static_cast<int>(block) * Format::kUnits;  // units of the row
      AddUnit<Format>(unit, before * Format::Unit::kNumbers, row, sums);
    };
    if (const int units = now.units(); units == Piece::kUnits) {
#pragma unroll
      for (int i = 0; i < Piece::kLaneUnits; ++i) add(i);
    } else {
#pragma unroll 1
      for (int i = 0; lane + 32 * i < units; ++i) add(i);
    }
    ring.Replace(next);
    if (!now.last_of_row()) continue;
    const float sum = WarpSum(sums[0]);
    if (lane == 0) StoreOutput(now.outputs().projection(), 0, now.outputs().n(), sum);
    sums[0] = 0;
  }
}

// Stages of a ring and the shared memory of a block. Where fewer than two stages fit the block's part of a
// multiprocessor, the block may have more than its part; one stage is the least.
struct VectorMemory {
  int stages;  // pieces of the ring
  size_t bytes;
};
template <class Format, class Shape>
VectorMemory VectorMemoryFor(int cols, int shared_of_sm, int most_of_block) {
  constexpr int kReservedBytes = 1024;  // of a block, by the device
  constexpr int kMostStages = 8, kFewStages = 2;
  const auto row = static_cast<int>(QuantisedRows::Bytes(1, cols));
  const auto fit = [&](int bytes) { return (bytes - row) / WeightRing<Format, Shape>::Bytes(1); };
  int stages = fit(shared_of_sm / Shape::kBlocks - kReservedBytes);
  if (stages < kFewStages) stages = fit(most_of_block);
  stages = stages < kMostStages ? stages : kMostStages;
  CHECK(stages > 0);
  return {stages, static_cast<size_t>(WeightRing<Format, Shape>::Bytes(stages) + row)};
}

}  // namespace infinigen
