// Products with block-quantised weights (tensor/block_formats.h) on the CPU. CpuBackend::MatMul calls these kernels; a
// call runs on any thread of the pool. backend/block_arithmetic.h defines what they compute, docs/quantised-weights.md
// how.
#pragma once

#include <array>
#include <cstdint>

#include "backend/backend.h"
#include "backend/block_arithmetic.h"

namespace infinigen {

inline constexpr int64_t kChunkGroups = kBlockLanes;       // groups that the lanes add together
inline constexpr int64_t kChunkNumbers = 256;              // numbers of these groups
inline constexpr int64_t kChunkCodes = 2 * kChunkNumbers;  // bytes of their activation codes: high, then low

// Activations of one call, quantised. Groups are padded to whole chunks with zeros.
struct BlockActivations {
  int64_t rows = 0;
  int64_t chunks = 0;            // of a row
  int8_t* codes = nullptr;       // [rows][chunks][high, low][kChunkNumbers]
  float* scales = nullptr;       // [rows][chunks][kChunkGroups]
  float* weighted = nullptr;     // [rows][chunks][kChunkGroups], scale · sum of the codes
  int16_t* half_sums = nullptr;  // [rows][chunks][2 kChunkGroups], sums of 16 codes
};

// The same numbers for the panel kernels: tiles of `tile_rows` rows, the last one padded with zero rows. Groups are in
// the order of the lanes: position of group g = g % 8 · chunks + g / 8.
struct PackedActivations {
  int64_t rows = 0;
  int64_t chunks = 0;
  int64_t tile_rows = 0;
  int8_t* codes = nullptr;    // [tiles][positions][high, low][8 quads][tile_rows][4]
  float* scales = nullptr;    // [tiles][positions][tile_rows]
  float* weighted = nullptr;  // [tiles][positions][tile_rows]
  int32_t* sums = nullptr;    // [tiles][positions][half 0, half 1, both][tile_rows], of the codes

  int64_t tiles() const { return (rows + tile_rows - 1) / tile_rows; }
};

// The kernels of one instruction set.
struct BlockKernels {
  const char* name;
  int64_t tile_rows;   // of PackedActivations
  int64_t panel_outs;  // outputs that a panel holds; tasks of many rows are multiples of it

  // Quantises row `row` of x [m][k] f32 into `out`.
  void (*quantise)(const ConstTensor& x, int64_t row, const BlockActivations& out);
  // Rearranges the rows of tile `tile`. Both describe the same rows.
  void (*pack)(const BlockActivations& in, int64_t tile, const PackedActivations& out);
  // Outputs [begin, end) of one projection. Few rows: reads each weight byte once, in ascending order.
  void (*direct)(const BlockActivations& x, const Projection& p, int64_t begin, int64_t end);
  // Many rows: unpacks panel_outs outputs at a time into scratch [PanelFloats(chunks)] and multiplies all rows by them.
  void (*panel)(const PackedActivations& x, const Projection& p, int64_t begin, int64_t end, float* scratch);

  // Per output and position: 32 codes, scale, offset, two multipliers, two offset multipliers.
  int64_t PanelFloats(int64_t chunks) const { return chunks * kChunkGroups * panel_outs * (8 + 2 + 4); }
};

// The best kernels for this machine, as far as hwy::SupportedTargets allows them (tests restrict it).
const BlockKernels& ChooseBlockKernels();

// Stores finished sums [count] of outputs n, n + 1, … of one row.
void FinishOutputs(const Projection& p, int64_t row, int64_t n, int64_t count, const float* sums);

}  // namespace infinigen
