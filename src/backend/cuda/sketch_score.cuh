// Scores of sketches in registers (select.cu). Private to backend/cuda.
//
// A thread owns four adjacent rows, which are adjacent in every unit of a sketch block too, so that a warp reads whole
// cache lines and no sum crosses lanes. The queries are in shared memory, quantised once per block as kv/index.h
// defines. Integer sums are exact and floats are rounded after every operation, in the order of kv/index.h, so the
// scores equal the host's bit for bit.
#pragma once

#include <cuda_runtime.h>

#include "backend/cuda/radix_select.cuh"
#include "kv/index_view.h"

namespace infinigen {

inline constexpr int kScoreThreads = 256;
inline constexpr int kRowsPerThread = 4;                            // 16 bytes of a unit
inline constexpr int kUnitVectors = kSketchBlock / kRowsPerThread;  // vectors from unit to unit, or scale to scale
inline constexpr int kWarpRows = 32 * kRowsPerThread;
static_assert(kWarpRows == 4 * 32);

// Queries of the group in shared memory. Heads are the innermost dimension, padded to a multiple of kHeads, so that a
// thread reads the heads it works on as one run.
struct IntQueries {
  const int2* quads;    // [dims / 4][heads] four values of 16 bits
  const float* scales;  // [heads]
  const int32_t* sums;  // [groups][heads] sums of values
};

// Dynamic shared memory for the queries of `heads` heads.
inline size_t QueryBytes(const SketchLayout& layout, int64_t heads) {
  if (!layout.has_scales()) return static_cast<size_t>(layout.dims * heads) * sizeof(float);
  return static_cast<size_t>(layout.dims * heads) * sizeof(int16_t) +
         static_cast<size_t>((1 + layout.groups()) * heads) * 4;
}

__device__ inline bool IsFinite(float x) { return fabsf(x) <= 3.402823466e38f; }

// Quantises the queries of one KV head (QuantiseQuery in kv/index.h), one warp per query head. The caller synchronises.
__device__ inline IntQueries QuantiseQueries(const float* queries, int dims, int group_dims, int group, int heads,
                                             std::byte* shared) {
  auto* values = reinterpret_cast<int16_t*>(shared);
  auto* scales = reinterpret_cast<float*>(values + dims * heads);
  auto* sums = reinterpret_cast<int32_t*>(scales + heads);
  const float most = static_cast<float>(kLargestQueryValue);
  for (int h = Warp(); h < heads; h += Warps()) {
    float largest = 0;
    for (int i = Lane(); i < dims && h < group; i += 32) {
      const float number = queries[h * dims + i];
      if (IsFinite(number)) largest = fmaxf(largest, fabsf(number));
    }
    const float scale = __fdiv_rn(WarpMax(largest), most);
    float inverse = scale > 0 ? __fdiv_rn(1.0f, scale) : 0.0f;
    if (!IsFinite(inverse)) inverse = 0.0f;
    for (int first = 0, at = h; first < dims; first += group_dims, at += heads) {
      int32_t sum = 0;
      for (int i = first + Lane(); i < min(first + group_dims, dims); i += 32) {
        const float number = h < group ? queries[h * dims + i] : 0.0f;
        const float rounded = IsFinite(number) ? rintf(__fmul_rn(number, inverse)) : 0.0f;
        const int32_t value = static_cast<int32_t>(fminf(fmaxf(rounded, -most), most));
        values[((i / 4) * heads + h) * 4 + i % 4] = static_cast<int16_t>(value);
        sum += value;
      }
      sum = __reduce_add_sync(kAllLanes, sum);
      if (Lane() == 0) sums[at] = sum;
    }
    if (Lane() == 0) scales[h] = scale;
  }
  return {reinterpret_cast<const int2*>(values), scales, sums};
}

// The queries of one KV head as bf16 sketches need them: [dims / 2][heads] pairs. The caller synchronises.
__device__ inline void LoadQueryPairs(const float* queries, int dims, int group, int heads, std::byte* shared) {
  auto* numbers = reinterpret_cast<float*>(shared);
  for (int i = static_cast<int>(threadIdx.x); i < heads * dims; i += kScoreThreads) {
    const int h = i / dims, n = i % dims;
    numbers[((n / 2) * heads + h) * 2 + n % 2] = h < group ? queries[i] : 0.0f;
  }
}

// bf16 numbers of four rows as floats.
struct FourScales {
  __device__ explicit FourScales(uint2 bits) {
    of[0] = __uint_as_float(bits.x << 16);
    of[1] = __uint_as_float(bits.x & 0xffff0000u);
    of[2] = __uint_as_float(bits.y << 16);
    of[3] = __uint_as_float(bits.y & 0xffff0000u);
  }
  float of[kRowsPerThread];
};

// Units of the four rows that are loaded ahead. Sketches are read once per step: streaming loads, so that the cache
// keeps the scores.
constexpr int kUnitsAhead = 4;
__device__ inline void LoadUnits(const uint4* block, int first, int units, uint4 (&ahead)[kUnitsAhead]) {
#pragma unroll
  for (int i = 0; i < kUnitsAhead; ++i)
    if (first + i < units) ahead[i] = __ldcs(block + (first + i) * kUnitVectors);
}
// Calls use(u, unit u of the four rows) for all units; `now` holds the first ones.
template <class Use>
__device__ void ForUnits(const uint4* block, int units, uint4 (&now)[kUnitsAhead], const Use& use) {
  for (int u = 0; u < units; u += kUnitsAhead) {
    uint4 next[kUnitsAhead] = {};
    LoadUnits(block, u + kUnitsAhead, units, next);
#pragma unroll
    for (int i = 0; i < kUnitsAhead; ++i) {
      const uint32_t rows[kRowsPerThread] = {now[i].x, now[i].y, now[i].z, now[i].w};
      if (u + i < units) use(u + i, rows);
      now[i] = next[i];
    }
  }
}

// Where four rows lie in their sketch block, and their first units and scales, which are loaded ahead.
struct SketchRows {
  const uint4* units;   // unit u at [u · kUnitVectors]
  const uint2* scales;  // of group i at [i · kUnitVectors]
  uint4 ahead[kUnitsAhead] = {};
  uint2 first_scales[2] = {};  // of the first two groups

  // row: the first of the four.
  __device__ SketchRows(const SketchLayout& layout, const std::byte* block, int64_t row)
      : units(reinterpret_cast<const uint4*>(block) + row % kSketchBlock / kRowsPerThread),
        scales(reinterpret_cast<const uint2*>(block + layout.scales_offset()) + row % kSketchBlock / kRowsPerThread) {}
  __device__ void Load(int unit_count, int groups) {
    LoadUnits(units, 0, unit_count, ahead);
#pragma unroll
    for (int i = 0; i < 2; ++i)
      if (i < groups) first_scales[i] = __ldcs(scales + i * kUnitVectors);
  }
};

// How the numbers of a key are divided.
struct KeyShape {
  __device__ explicit KeyShape(const SketchLayout& layout)
      : dims(static_cast<int>(layout.dims)),
        units(static_cast<int>(layout.units())),
        groups(static_cast<int>(layout.groups())),
        group_dims(static_cast<int>(layout.group_dims())),
        group_units(group_dims / static_cast<int>(layout.per_unit())) {}
  int dims, units;
  int groups, group_dims, group_units;
};

// Scores of four rows for kHeads query heads from `first` on.
template <SketchType kType, int kHeads>
__device__ void ScoreInts(const IntQueries& queries, int first, int heads, const KeyShape& shape, SketchRows& rows,
                          float (&scores)[kHeads][kRowsPerThread]) {
  int32_t sums[kHeads][kRowsPerThread] = {};
#pragma unroll
  for (int h = 0; h < kHeads; ++h)
#pragma unroll
    for (int r = 0; r < kRowsPerThread; ++r) scores[h][r] = 0;
  uint2 scales_now = rows.first_scales[0], scales_next = rows.first_scales[1];
  int group = 0, left = shape.group_units;  // units that remain in the group
  ForUnits(rows.units, shape.units, rows.ahead, [&](int u, const uint32_t(&of_rows)[kRowsPerThread]) {
    constexpr int kQuads = kType == SketchType::kInt8 ? 1 : 2;
#pragma unroll
    for (int half = 0; half < kQuads; ++half) {
      const int2* quads = queries.quads + (u * kQuads + half) * heads + first;
#pragma unroll
      for (int h = 0; h < kHeads; ++h) {
        const int2 quad = quads[h];
#pragma unroll
        for (int r = 0; r < kRowsPerThread; ++r) {
          // Stored as value + 128, or as value + 8; the offset is subtracted at the end of the group.
          const int bytes = static_cast<int>(kType == SketchType::kInt8 ? of_rows[r] ^ 0x80808080u
                                                                        : of_rows[r] >> (4 * half) & 0x0f0f0f0fu);
          sums[h][r] = __dp2a_hi(quad.y, bytes, __dp2a_lo(quad.x, bytes, sums[h][r]));
        }
      }
    }
    if (--left > 0 && u + 1 < shape.units) return;
    const FourScales scales(scales_now);
#pragma unroll
    for (int h = 0; h < kHeads; ++h) {
      const int32_t excess = kType == SketchType::kInt8 ? 0 : 8 * queries.sums[group * heads + first + h];
      const float query_scale = queries.scales[first + h];
#pragma unroll
      for (int r = 0; r < kRowsPerThread; ++r) {
        const float part = __fmul_rn(__fmul_rn(static_cast<float>(sums[h][r] - excess), query_scale), scales.of[r]);
        scores[h][r] = group == 0 ? part : __fadd_rn(scores[h][r], part);
        sums[h][r] = 0;
      }
    }
    ++group;
    left = shape.group_units;
    scales_now = scales_next;
    if (group + 1 < shape.groups) scales_next = __ldcs(rows.scales + (group + 1) * kUnitVectors);
  });
}

// The same for bf16 sketches; queries [dims / 2][heads] pairs.
template <int kHeads>
__device__ void ScoreFloats(const float2* queries, int first, int heads, const KeyShape& shape, SketchRows& rows,
                            float (&scores)[kHeads][kRowsPerThread]) {
#pragma unroll
  for (int h = 0; h < kHeads; ++h)
#pragma unroll
    for (int r = 0; r < kRowsPerThread; ++r) scores[h][r] = 0;
  ForUnits(rows.units, shape.units, rows.ahead, [&](int u, const uint32_t(&of_rows)[kRowsPerThread]) {
#pragma unroll
    for (int h = 0; h < kHeads; ++h) {
      const float2 pair = queries[u * heads + first + h];
#pragma unroll
      for (int r = 0; r < kRowsPerThread; ++r) {
        scores[h][r] = __fmaf_rn(pair.x, __uint_as_float(of_rows[r] << 16), scores[h][r]);
        scores[h][r] = __fmaf_rn(pair.y, __uint_as_float(of_rows[r] & 0xffff0000u), scores[h][r]);
      }
    }
  });
}

// The queries of a block's KV head in shared memory, for sketches of kType.
template <SketchType kType>
struct SketchQueryBlock {
  // heads: the group, rounded up to a multiple of kHeads. The caller synchronises.
  __device__ SketchQueryBlock(const float* queries, const KeyShape& shape, int group, int heads, std::byte* shared)
      : pairs(reinterpret_cast<const float2*>(shared)), ints{}, padded(heads) {
    if constexpr (kType == SketchType::kBF16)
      LoadQueryPairs(queries, shape.dims, group, heads, shared);
    else
      ints = QuantiseQueries(queries, shape.dims, shape.group_dims, group, heads, shared);
  }
  // Scores for query heads [first, first + kHeads) of the rows; rows.Load has been called.
  template <int kHeads>
  __device__ void Score(int first, const KeyShape& shape, SketchRows& rows,
                        float (&scores)[kHeads][kRowsPerThread]) const {
    if constexpr (kType == SketchType::kBF16)
      ScoreFloats<kHeads>(pairs, first, padded, shape, rows, scores);
    else
      ScoreInts<kType, kHeads>(ints, first, padded, shape, rows, scores);
  }

  const float2* pairs;
  IntQueries ints;
  int padded;
};

}  // namespace infinigen
