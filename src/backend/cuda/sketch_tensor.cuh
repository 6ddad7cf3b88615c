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
// A warp owns 128 rows of a chunk, two sketch blocks, and has room for two in shared memory. The first two are on their
// way there before the queries are quantised; where one has been scored, that of the block's next chunk follows.
#pragma once

#include <cuda_runtime.h>

#include "backend/cuda/bulk_copy.cuh"
#include "backend/cuda/sketch_score.cuh"

namespace infinigen {

inline constexpr int kStepDims = 16;    // numbers of a key in one product; in the last step of a key maybe only 8
inline constexpr int kTensorHeads = 4;  // query heads in one product
inline constexpr int kTileRows32 = 32;
inline constexpr int kBlockTiles = static_cast<int>(kSketchBlock) / kTileRows32;
inline constexpr int kWarpBlocks = kWarpRows / static_cast<int>(kSketchBlock);
inline constexpr int kTensorWarps = kScoreThreads / 32;
inline constexpr int kTensorBlocks = 3;  // on a multiprocessor, up to 128 numbers of a key

__host__ __device__ inline int TensorSteps(int64_t dims) {
  return static_cast<int>((dims + kStepDims - 1) / kStepDims);
}

// Dynamic shared memory of a block that scores: the sketches of keys of its warps, a barrier for each sketch block, the
// registers of B, the quantised queries.
struct TensorMemory {
  __host__ __device__ TensorMemory(const SketchLayout& layout, int64_t heads)
      : block_bytes(static_cast<int>(layout.values_offset())),
        barriers(kTensorWarps * kWarpBlocks * block_bytes),
        words(barriers + kTensorWarps * kWarpBlocks * static_cast<int>(sizeof(uint64_t))),
        queries(words + static_cast<int>(heads) / kTensorHeads * TensorSteps(layout.dims) * 32 * 4) {}
  int block_bytes, barriers, words, queries;
};
inline size_t TensorSharedBytes(const SketchLayout& layout, int64_t group) {
  const int64_t heads = (group + kTensorHeads - 1) / kTensorHeads * kTensorHeads;
  return static_cast<size_t>(TensorMemory(layout, heads).queries) + QueryBytes(layout, heads);
}
// most_bytes: dynamic shared memory that a block can have. Wide keys need more than many devices have.
inline bool TensorCoresScore(const SketchLayout& layout, int64_t group, size_t most_bytes) {
  return layout.type == SketchType::kInt4 && group > 1 &&
         (layout.groups() == 1 || layout.group_dims() % kStepDims == 0) &&
         TensorSharedBytes(layout, group) <= most_bytes;
}

// c += a · b
__device__ inline void MultiplyBytes(int32_t (&c)[4], uint32_t a0, uint32_t a1, uint32_t b) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.s32.u8.s8.s32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
               : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
               : "r"(a0), "r"(a1), "r"(b));
}

// The register of B that `lane` needs in step `step` of pass `pass`.
__device__ inline uint32_t QueryBytesOf(const IntQueries& queries, int dims, int heads, int pass, int step, int lane) {
  const int head = pass * kTensorHeads + lane / 8, quad = step * (kStepDims / 4) + lane % 4;
  if (4 * quad >= dims) return 0;  // whatever the key has there does not count
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

// Scores the rows of a warp: 128 from `row` on, and 128 in each of the block's following chunks, as far as they are
// visible. Calls put(row, pass, scores) once for each sketch block, which begins at `row`, and pass of four query
// heads: scores[tile][r] of row + 32 · tile + 4 · (lane / 4) + r for head 4 · pass + lane % 4.
class TensorScorer {
 public:
  // Starts the first copies. All lanes of the warp call it.
  __device__ TensorScorer(const KeyShape& shape, const LayerSketches& sketches, int64_t slot, int64_t head, int64_t row,
                          int64_t visible, const TensorMemory& memory, std::byte* shared)
      : steps_(TensorSteps(shape.dims)),
        group_steps_(shape.groups == 1 ? steps_ : shape.group_dims / kStepDims),
        last_unit_(shape.units - 1),
        row_(row),
        visible_(visible),
        from_(reinterpret_cast<const uint8_t*>(sketches.Block(slot, head, 0))),
        from_bytes_(sketches.layout.block_bytes()),
        block_bytes_(memory.block_bytes),
        sketches_(shared + Warp() * kWarpBlocks * block_bytes_),
        scales_offset_(static_cast<int>(sketches.layout.scales_offset())),
        barriers_(static_cast<uint32_t>(__cvta_generic_to_shared(shared + memory.barriers)) +
                  static_cast<uint32_t>(Warp() * kWarpBlocks) * static_cast<uint32_t>(sizeof(uint64_t))) {
    if (Lane() == 0) {
      for (int block = 0; block < kWarpBlocks; ++block) InitCopyBarrier(Barrier(block));
      PublishCopyBarriers();
    }
    __syncwarp();
    for (int block = 0; block < kWarpBlocks; ++block) Start(block, row_ + block * kSketchBlock);
  }

  // words: shared memory [passes][steps][32], see QueryBytesOf.
  template <class Put>
  __device__ void Run(const IntQueries& queries, int heads, const uint32_t* words, const Put& put) const {
    const int64_t stride = static_cast<int64_t>(gridDim.y) * kScoreThreads * kRowsPerThread;
    uint32_t parity = 0;
    for (int64_t first = row_; first < visible_; first += stride, parity ^= 1) {
      for (int block = 0; block < kWarpBlocks; ++block) {
        const int64_t row = first + block * kSketchBlock;
        if (row >= visible_) break;
        WaitForCopy(Barrier(block), parity);
        for (int pass = 0; pass < heads / kTensorHeads; ++pass) {
          float scores[kBlockTiles][kRowsPerThread];
          Score(sketches_ + block * block_bytes_, queries, heads, pass * kTensorHeads + Lane() % 4,
                words + pass * steps_ * 32, scores);
          put(row, pass, scores);
        }
        __syncwarp();  // all lanes have read the block
        Start(block, row + stride);
      }
    }
  }

 private:
  __device__ uint32_t Barrier(int block) const {
    return barriers_ + static_cast<uint32_t>(block) * static_cast<uint32_t>(sizeof(uint64_t));
  }
  // Copies the sketch block that begins at `row`, if it is visible.
  __device__ void Start(int block, int64_t row) const {
    if (row >= visible_) return;
    StartCopy(static_cast<uint32_t>(__cvta_generic_to_shared(sketches_ + block * block_bytes_)),
              from_ + static_cast<size_t>(row / kSketchBlock) * from_bytes_, block_bytes_, Barrier(block));
  }
  // The scores of this lane's rows of a block for query head `head`.
  __device__ void Score(const std::byte* block, const IntQueries& queries, int heads, int head, const uint32_t* words,
                        float (&scores)[kBlockTiles][kRowsPerThread]) const {
    const int g = Lane() / 4, t = Lane() % 4, half = 4 * (t % 2);  // of the unit's bytes
    const auto* units = reinterpret_cast<const uint4*>(block) + g;
    const auto* scales = reinterpret_cast<const uint2*>(block + scales_offset_) + g;
    const auto four = [&](uint32_t word) { return word >> half & 0x0f0f0f0fu; };
    const float query_scale = queries.scales[head];
    for (int first = 0, group = 0; first < steps_; first += group_steps_, ++group) {
      int32_t sums[kBlockTiles][2][4];
      Clear(sums, -8 * queries.sums[group * heads + head]);
      const int end = min(first + group_steps_, steps_);
#pragma unroll 4
      for (int step = first; step < end; ++step) {
        const uint32_t b = words[step * 32 + Lane()];
        // In half a step, lanes past the last unit read any: their part of b is 0.
        const uint4* unit = units + min(2 * step + t / 2, last_unit_) * kUnitVectors;
#pragma unroll
        for (int tile = 0; tile < kBlockTiles; ++tile) {
          const uint4 rows = unit[tile * (kTileRows32 / kRowsPerThread)];
          MultiplyBytes(sums[tile][0], four(rows.x), four(rows.y), b);
          MultiplyBytes(sums[tile][1], four(rows.z), four(rows.w), b);
        }
      }
#pragma unroll
      for (int tile = 0; tile < kBlockTiles; ++tile) {
        const FourScales of_rows(scales[group * kUnitVectors + tile * (kTileRows32 / kRowsPerThread)]);
#pragma unroll
        for (int r = 0; r < kRowsPerThread; ++r) {
          const int32_t(&sum)[4] = sums[tile][r / 2];
          const int32_t exact = 128 * sum[r % 2 * 2] + sum[r % 2 * 2 + 1];
          const float part = __fmul_rn(__fmul_rn(static_cast<float>(exact), query_scale), of_rows.of[r]);
          scores[tile][r] = group == 0 ? part : __fadd_rn(scores[tile][r], part);
        }
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

  int steps_, group_steps_;  // of a key, of a scale group
  int last_unit_;
  int64_t row_, visible_;
  const uint8_t* from_;  // the head's sketches
  size_t from_bytes_;    // of a block there; a copy leaves out values and mean
  int block_bytes_;
  const std::byte* sketches_;  // of this warp, in shared memory
  int scales_offset_;
  uint32_t barriers_;  // address in shared memory
};

}  // namespace infinigen
