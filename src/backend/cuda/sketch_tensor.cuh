// Scores of int4 sketches on tensor cores, for groups of two and more query heads. Same bits as sketch_score.cuh: the
// integer sums of a scale group are exact, and floats are rounded in the same order. Private to backend/cuda.
//
// A query's value of 15 bits is two signed bytes: value = 128 · high + low. So four query heads are the eight columns
// of one product of u8 (keys, stored as value + 8) and s8 (queries), 16 deep:
//
//     A   16 rows x 16 numbers of keys      lane (g, t): numbers 4t to 4t + 3 of rows g and g + 8
//     B   16 numbers x 8 columns            lane (g, t): the same numbers of column g: head g / 2, high then low byte
//     C   16 rows x 8 columns               lane (g, t): columns 2t and 2t + 1, that is head t, of rows g and g + 8
//
// with g = lane / 4 and t = lane % 4. Rows may be permuted: a lane's four adjacent rows of a tile of 32, which are 16
// adjacent bytes of a unit, are rows g and g + 8 of two products. Numbers 4t to 4t + 3 of a step are the low (t even)
// or high (t odd) halves of the bytes of its unit t / 2. In the end lane (g, t) has the scores of rows 4g to 4g + 3 for
// head t.
//
// A warp owns 128 rows, two sketch blocks, and takes them block by block. The bytes of the next three steps are in
// flight while three steps are computed.
#pragma once

#include <cuda_runtime.h>

#include "backend/cuda/sketch_score.cuh"

namespace infinigen {

inline constexpr int kStepDims = 16;    // numbers of a key in one product
inline constexpr int kTensorHeads = 4;  // query heads in one product
inline constexpr int kStepsAhead = 3;   // 48 numbers: those of a head of 64
inline constexpr int kTileRows32 = 32;
inline constexpr int kBlockTiles = static_cast<int>(kSketchBlock) / kTileRows32;
inline constexpr int kWarpBlocks = kWarpRows / static_cast<int>(kSketchBlock);

inline bool TensorCoresScore(const SketchLayout& layout, int64_t group) {
  return layout.type == SketchType::kInt4 && group > 1 && layout.dims % kStepDims == 0 &&
         layout.group_dims() % kStepDims == 0;
}
// Dynamic shared memory: the quantised queries, then the registers of B.
inline size_t TensorQueryBytes(const SketchLayout& layout, int64_t heads) {
  return QueryBytes(layout, heads) + static_cast<size_t>(heads / kTensorHeads * (layout.dims / kStepDims) * 32) * 4;
}

// c += a · b
__device__ inline void MultiplyBytes(int32_t (&c)[4], uint32_t a0, uint32_t a1, uint32_t b) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.s32.u8.s8.s32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
               : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
               : "r"(a0), "r"(a1), "r"(b));
}

// The register of B that `lane` needs in step `step` of pass `pass`.
__device__ inline uint32_t QueryBytesOf(const IntQueries& queries, int heads, int pass, int step, int lane) {
  const int head = pass * kTensorHeads + lane / 8, quad = step * (kStepDims / 4) + lane % 4;
  const bool low = (lane / 4) % 2 != 0;
  const int2 words = queries.quads[quad * heads + head];
  uint32_t bytes = 0;
#pragma unroll
  for (int b = 0; b < 4; ++b) {
    const uint32_t word = static_cast<uint32_t>(b < 2 ? words.x : words.y);
    const int value = static_cast<int16_t>(b % 2 == 0 ? word & 0xffffu : word >> 16);
    const int rest = ((value + 64) & 127) - 64;  // value = 128 · high + rest, -64 ≤ rest < 64
    bytes |= (static_cast<uint32_t>(low ? rest : (value - rest) / 128) & 255u) << (8 * b);
  }
  return bytes;
}

// What a lane loads of one step for the tiles of a sketch block.
struct StepWords {
  uint4 units[kBlockTiles];
  uint2 scales[kBlockTiles];  // of the step's scale group, if the step is its last
};

// Scores the 128 rows of a warp from `row` on, `rows` of which exist. Calls put(block, pass, scores) once for each
// sketch block and pass of four query heads: scores[tile][r] of row 64 · block + 32 · tile + 4 · (lane / 4) + r for
// head 4 · pass + lane % 4. The first loads are under way before Start's caller prepares the queries.
class TensorScorer {
 public:
  __device__ TensorScorer(const KeyShape& shape, const LayerSketches& sketches, int64_t slot, int64_t head, int64_t row,
                          int64_t rows, int passes)
      : steps_(shape.dims / kStepDims),
        group_steps_(shape.group_dims / kStepDims),
        passes_(passes),
        blocks_(static_cast<int>(min(static_cast<int64_t>(kWarpBlocks), (rows + kSketchBlock - 1) / kSketchBlock))),
        block_bytes_(sketches.layout.block_bytes()) {
    if (blocks_ <= 0) return;
    const std::byte* block = sketches.Block(slot, head, row / kSketchBlock);
    const int g = Lane() / 4, t = Lane() % 4;
    units_ = reinterpret_cast<const uint4*>(block) + t / 2 * kUnitVectors + g;
    scales_ = reinterpret_cast<const uint2*>(block + sketches.layout.scales_offset()) + g;
    Load({}, now_);
  }

  // words: shared memory [passes][steps][32], see QueryBytesOf.
  template <class Put>
  __device__ void Run(const IntQueries& queries, int heads, const uint32_t* words, const Put& put) {
    const int half = 4 * (Lane() % 2);  // of the unit's bytes
    float scores[kBlockTiles][kRowsPerThread];
    int32_t sums[kBlockTiles][2][4];
    int group = 0, left = 0;  // steps that remain in the scale group
    for (At at; at.block < blocks_;) {
      const At following = After(at);
      StepWords next[kStepsAhead] = {};
      if (following.block < blocks_) Load(following, next);
      const int head = at.pass * kTensorHeads + Lane() % 4;
      if (at.step == 0) group = left = 0;
#pragma unroll
      for (int i = 0; i < kStepsAhead; ++i) {
        const int step = at.step + i;
        if (step >= steps_) break;
        if (left == 0) {
          Clear(sums, -8 * queries.sums[group * heads + head]);
          left = group_steps_;
        }
        const uint32_t b = words[(at.pass * steps_ + step) * 32 + Lane()];
#pragma unroll
        for (int tile = 0; tile < kBlockTiles; ++tile) {
          const uint4& unit = now_[i].units[tile];
          const auto four = [&](uint32_t word) { return word >> half & 0x0f0f0f0fu; };
          MultiplyBytes(sums[tile][0], four(unit.x), four(unit.y), b);
          MultiplyBytes(sums[tile][1], four(unit.z), four(unit.w), b);
        }
        if (--left > 0 && step + 1 < steps_) continue;
        left = 0;
        const float query_scale = queries.scales[head];
#pragma unroll
        for (int tile = 0; tile < kBlockTiles; ++tile) {
          const FourScales scales(now_[i].scales[tile]);
#pragma unroll
          for (int r = 0; r < kRowsPerThread; ++r) {
            const int32_t(&sum)[4] = sums[tile][r / 2];
            const int32_t exact = 128 * sum[r % 2 * 2] + sum[r % 2 * 2 + 1];
            const float part = __fmul_rn(__fmul_rn(static_cast<float>(exact), query_scale), scales.of[r]);
            scores[tile][r] = group == 0 ? part : __fadd_rn(scores[tile][r], part);
          }
        }
        ++group;
      }
      if (at.step + kStepsAhead >= steps_) put(at.block, at.pass, scores);
#pragma unroll
      for (int i = 0; i < kStepsAhead; ++i) now_[i] = next[i];
      at = following;
    }
  }

 private:
  // A run of kStepsAhead steps, in the order in which they are computed.
  struct At {
    int block = 0, pass = 0, step = 0;
  };
  __device__ At After(At at) const {
    at.step += kStepsAhead;
    if (at.step < steps_) return at;
    at.step = 0;
    if (++at.pass < passes_) return at;
    at.pass = 0;
    ++at.block;
    return at;
  }
  __device__ void Load(const At& at, StepWords (&words)[kStepsAhead]) const {
    const auto* units = reinterpret_cast<const uint4*>(reinterpret_cast<const std::byte*>(units_) +
                                                       static_cast<size_t>(at.block) * block_bytes_);
    const auto* scales = reinterpret_cast<const uint2*>(reinterpret_cast<const std::byte*>(scales_) +
                                                        static_cast<size_t>(at.block) * block_bytes_);
#pragma unroll
    for (int i = 0; i < kStepsAhead; ++i) {
      const int step = at.step + i;
      if (step >= steps_) break;
      const int group = group_steps_ == 1 ? step : step / group_steps_;
#pragma unroll
      for (int tile = 0; tile < kBlockTiles; ++tile) {
        words[i].units[tile] = __ldcs(units + 2 * step * kUnitVectors + tile * (kTileRows32 / kRowsPerThread));
        words[i].scales[tile] = __ldcs(scales + group * kUnitVectors + tile * (kTileRows32 / kRowsPerThread));
      }
    }
  }
  // The low columns begin at what the stored keys exceed their values by.
  __device__ static void Clear(int32_t (&sums)[kBlockTiles][2][4], int32_t low) {
#pragma unroll
    for (int tile = 0; tile < kBlockTiles; ++tile)
#pragma unroll
      for (int half = 0; half < 2; ++half)
#pragma unroll
        for (int i = 0; i < 4; ++i) sums[tile][half][i] = i % 2 == 0 ? 0 : low;
  }

  int steps_, group_steps_, passes_, blocks_;
  size_t block_bytes_;
  const uint4* units_ = nullptr;   // of this lane, in the first block: unit 2 · step at [2 · step · kUnitVectors]
  const uint2* scales_ = nullptr;  // likewise, of group i at [i · kUnitVectors]
  StepWords now_[kStepsAhead] = {};
};

}  // namespace infinigen
