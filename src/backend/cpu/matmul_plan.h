// What the kernels of MatMul need to know about one call; filled by CpuBackend::MatMul.
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "backend/backend.h"

namespace infinigen {

// The k dimension is summed in blocks of this many elements: lane sums inside a block, one tree at its end, blocks
// added in ascending order. Part of the arithmetic: the same for every path. Chosen so that a tile of activations (6 x
// 512 f32, 12 KB) and the weights streaming past it share a 32 KB L1 cache; the tree costs 6 % of a block's
// multiplications.
inline constexpr int64_t kSumBlock = 512;
// Weight rows (outputs) that a register tile computes together.
inline constexpr int64_t kTileOuts = 4;
// Up to this many activation rows the weights stream from memory straight into registers; with more they are first
// widened, a panel at a time, into cache.
inline constexpr int64_t kDirectRows = 16;
// A single activation row of up to this many elements (16 KB of f32) leaves room in a 32 KB L1 cache.
inline constexpr int64_t kShortRow = 4096;
// Outputs of one panel: 64 x 512 f32 are 128 KB of L2.
inline constexpr int64_t kPanelOuts = 64;
// Activation rows per walk over a panel; their partial sums lie beside the panel.
inline constexpr int64_t kPanelRows = 516;
inline constexpr int64_t kPanelFloats = kPanelOuts * kSumBlock;
inline constexpr int64_t kPanelScratchFloats = kPanelFloats + kPanelRows * kPanelOuts;

inline constexpr int64_t kMaxProjections = 8;

struct CpuMatMulPlan {
  ConstTensor x;     // [m][k]
  float* packed;     // x in tiles, zero-padded to whole vectors: [tile][step][rows of the tile][lanes]
  int64_t padded_k;  // k in whole vectors of the widest target
  std::span<const Projection> projections;
  int64_t task_outs = 0;                                     // outputs per task, a multiple of kTileOuts
  std::array<int64_t, kMaxProjections + 1> first_task = {};  // of each projection; the last is the number of tasks
};

}  // namespace infinigen
