// One MatMul call as its kernels see it; filled in by CpuBackend::MatMul.
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "backend/backend.h"

namespace infinigen {

// The k dimension is summed in blocks of this many elements: sums per lane within a block, a tree over the lanes at its
// end, then the blocks in ascending order. This is part of the arithmetic, the same on every path. Chosen so that a
// tile of activations (6 x 512 f32, 12 KB) and the weights streaming past it share a 32 KB L1 cache; the tree costs 6 %
// of a block's multiplications.
inline constexpr int64_t kSumBlock = 512;
// Weight rows (outputs) that a register tile computes together.
inline constexpr int64_t kTileOuts = 4;
// Up to this many activation rows, weights stream from memory directly into registers; with more, they are first
// widened, a panel at a time, into cache.
inline constexpr int64_t kDirectRows = 16;
// A single activation row of up to this many elements (16 KB of f32) leaves room in a 32 KB L1 cache.
inline constexpr int64_t kShortRow = 4096;
// Outputs per panel: 64 x 512 f32 are 128 KB of L2.
inline constexpr int64_t kPanelOuts = 64;
// Activation rows per pass over a panel; their partial sums are in L2 too.
inline constexpr int64_t kPanelRows = 516;
inline constexpr int64_t kPanelFloats = kPanelOuts * kSumBlock;
inline constexpr int64_t kPanelScratchFloats = kPanelFloats + kPanelRows * kPanelOuts;

inline constexpr int64_t kMaxProjections = 8;

struct CpuMatMulPlan {
  ConstTensor x;     // [m][k]
  float* packed;     // x in tiles, zero-padded to whole vectors: [tile][step][rows of the tile][lanes]
  int64_t padded_k;  // k in whole vectors of the widest target
  std::span<const Projection> projections;
  std::array<int64_t, kMaxProjections> task_outs = {};       // outputs per task of each projection
  std::array<int64_t, kMaxProjections + 1> first_task = {};  // first task of each projection; the last: number of tasks
};

}  // namespace infinigen
