// SumScoredTails: the estimated attention to rows outside a selection (kv/tail.h), from scores that are in memory
// (select.cu) and the sketches of values.
//
// A block sums the tail of 1,024 rows of one (token, KV head), for all query heads of the group. Every warp has a
// partial result of its 128 rows (largest score, sum of weights, weighted value sketches); the block merges those of
// its warps, weighs the means of its 16 sketch blocks, and a second kernel merges the blocks, all in the order of rows.
// Divisions depend on row numbers only, so a tail is the same in any batch. Rows that are selected, evicted or not
// there yet have the score NaN and no weight.
#include <cuda_runtime.h>

#include <type_traits>

#include "backend/cuda/choose.cuh"
#include "backend/cuda/mma.cuh"
#include "backend/cuda/select.cuh"
#include "backend/cuda/sketch_score.cuh"

namespace infinigen {
namespace {

constexpr int kTailWarps = kScoreThreads / 32;
constexpr int kTailHeads = 4;  // query heads that share decoded value sketches
constexpr int kUnitValues = SketchLayout::kInt4PerUnit;
constexpr int kMostValueUnits = kMostValueDims / kUnitValues;
constexpr int kMostTailFloats = 2 + kMostValueDims;
constexpr float kBase2 = 1.44269504f;  // log2(e)
constexpr int kChunkBlocks = static_cast<int>(kScoreChunk / kSketchBlock);
constexpr int kMeanVector = 16;  // numbers of a mean in one load
static_assert(kScoreThreads * kRowsPerThread == kScoreChunk && kChunkBlocks == 2 * kTailWarps);

struct TailCall {
  TokenBatch batch;
  SelectCall call;
  LayerSketches sketches;
};

// e^x
__device__ float Exp(float x) { return Exp2(x * kBase2); }

// The value sketches of a thread's four rows.
struct ValueRows {
  __device__ void Load(const SketchLayout& layout, const std::byte* block, int64_t row) {
    const int64_t at = row % kSketchBlock / kRowsPerThread;
    const auto* from = reinterpret_cast<const uint4*>(block + layout.values_offset()) + at;
#pragma unroll
    for (int u = 0; u < kMostValueUnits; ++u)
      if (u < layout.value_units()) units[u] = __ldcs(from + u * kUnitVectors);
    scales = __ldcs(reinterpret_cast<const uint2*>(block + layout.value_scales_offset()) + at);
  }
  // Number i of unit u of row r, without its scale. The bits are those of the float 2²³ + code, code = number + 8.
  __device__ float Number(int u, int i, int r) const {
    const uint4& unit = units[u];
    const uint32_t bits = r == 0 ? unit.x : r == 1 ? unit.y : r == 2 ? unit.z : unit.w;
    const uint32_t code = bits >> (i % 4 * 8 + i / 4 * 4) & 15u;
    return __uint_as_float(0x4b000000u | code) - 8388616.0f;
  }
  // Keeps the compiler from decoding all numbers ahead of the passes, which takes 64 registers.
  __device__ void Hold() {
#pragma unroll
    for (uint4& unit : units) asm volatile("" : "+r"(unit.x), "+r"(unit.y), "+r"(unit.z), "+r"(unit.w));
  }
  uint4 units[kMostValueUnits] = {};
  uint2 scales = {};
};

// Sums eight numbers over the warp; lanes 4 · i to 4 · i + 3 get the sum of number i. In each step a lane keeps half of
// its numbers and gives the others away.
__device__ float SumEight(float (&x)[kUnitValues]) {
  const auto halve = [&](auto count, int step) {
    constexpr int kCount = decltype(count)::value;
    const bool upper = (Lane() & step) != 0;
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const float kept = upper ? x[kCount + i] : x[i], given = upper ? x[i] : x[kCount + i];
      x[i] = kept + __shfl_xor_sync(kAllLanes, given, step);
    }
  };
  halve(std::integral_constant<int, 4>(), 16);
  halve(std::integral_constant<int, 2>(), 8);
  halve(std::integral_constant<int, 1>(), 4);
  x[0] += __shfl_xor_sync(kAllLanes, x[0], 2);
  return x[0] + __shfl_xor_sync(kAllLanes, x[0], 1);
}

// Turns the scores of one query head into the weights of a thread's rows: e^(score − the warp's largest), 0 for NaN.
// Writes the warp's largest score and sum of weights to part[0] and part[1], and the sums of its two sketch blocks.
__device__ void WeighRows(float (&scores)[kRowsPerThread], float* part, float* blocks) {
  float top = -INFINITY;
#pragma unroll
  for (float score : scores) top = fmaxf(top, score);  // not NaN
  top = WarpMax(top);
  const bool finite = IsFinite(top);
  float sum = 0;
#pragma unroll
  for (float& score : scores) {
    score = finite && score <= top ? Exp(score - top) : 0.0f;
    sum += score;
  }
#pragma unroll
  for (int step = 8; step > 0; step /= 2) sum += __shfl_xor_sync(kAllLanes, sum, step);
  if (Lane() % 16 == 0) blocks[Lane() / 16] = sum;
  sum += __shfl_xor_sync(kAllLanes, sum, 16);
  if (Lane() == 0) part[0] = top, part[1] = sum;
}

// The means of a chunk's sketch blocks; zeros where a block is not complete.
class ChunkMeans {
 public:
  // first: block of the chunk; complete: blocks of the sequence that have a mean. The caller synchronises.
  __device__ void Load(const LayerSketches& sketches, int64_t slot, int64_t head, int64_t first, int64_t complete) {
    const SketchLayout& layout = sketches.layout;
    const int vectors = static_cast<int>(layout.mean_dims + kMeanVector - 1) / kMeanVector;
    for (int i = static_cast<int>(threadIdx.x); i < kChunkBlocks * vectors; i += kScoreThreads) {
      const int block = i / vectors, vector = i % vectors;
      const bool has_mean = first + block < complete;
      const std::byte* from = sketches.Block(slot, head, first + block);
      const auto* numbers = reinterpret_cast<const uint4*>(from + layout.means_offset()) + vector;
      numbers_[block][vector] = has_mean ? __ldcs(numbers) : uint4{};
      if (vector != 0) continue;
      const auto* scale = reinterpret_cast<const uint16_t*>(from + layout.mean_scale_offset());
      scales_[block] = has_mean ? __uint_as_float(static_cast<uint32_t>(*scale) << 16) : 0.0f;
    }
  }
  __device__ float Scale(int block) const { return scales_[block]; }
  __device__ float Number(int block, int i) const {
    return static_cast<float>(reinterpret_cast<const int8_t*>(numbers_[block])[i]);
  }

 private:
  uint4 numbers_[kChunkBlocks][kMaxHeadDim / kMeanVector];
  float scales_[kChunkBlocks];
};

// Grid (tasks, chunks).
__global__ __launch_bounds__(kScoreThreads) void SumChunksKernel(const __grid_constant__ TailCall c,
                                                                 const __grid_constant__ ScoreTable table) {
  __shared__ float parts[kTailWarps][kTailHeads][kMostTailFloats];
  __shared__ float blocks[kTailHeads][kChunkBlocks];  // weights of sketch blocks
  __shared__ ChunkMeans means;
  const SketchLayout& layout = c.sketches.layout;
  const int64_t task = blockIdx.x, token = task / table.heads, head = task % table.heads;
  const int64_t visible = ItemsOf(c.batch, c.call, table, task), start = blockIdx.y * kScoreChunk;
  if (start >= visible || !c.call.rules[c.batch.slots[token]].tail) return;
  const int group = static_cast<int>(table.group), mean_dims = static_cast<int>(layout.mean_dims);
  const int value_units = static_cast<int>(layout.value_units()), floats = 2 + static_cast<int>(layout.value_dims);
  const int64_t row = start + kRowsPerThread * static_cast<int64_t>(threadIdx.x);
  const bool active = row < visible;
  ValueRows values;
  if (active) values.Load(layout, c.sketches.Block(c.batch.slots[token], head, row / kSketchBlock), row);
  means.Load(c.sketches, c.batch.slots[token], head, start / kSketchBlock, (c.batch.rows[token] + 1) / kSketchBlock);
  const FourScales scales(values.scales);

  for (int first = 0; first < group; first += kTailHeads) {
    values.Hold();
    float weights[kTailHeads][kRowsPerThread];  // first the scores
#pragma unroll
    for (int h = 0; h < kTailHeads; ++h) {
      float4 four = {};
      if (active && first + h < group)
        four = __ldcs(reinterpret_cast<const float4*>(table.Scores(task, first + h) + row));
      weights[h][0] = four.x;
      weights[h][1] = four.y;
      weights[h][2] = four.z;
      weights[h][3] = four.w;
    }
#pragma unroll
    for (int h = 0; h < kTailHeads; ++h) {
#pragma unroll
      for (int r = 0; r < kRowsPerThread; ++r)
        if (row + r >= visible) weights[h][r] = -INFINITY;
      WeighRows(weights[h], parts[Warp()][h], &blocks[h][2 * Warp()]);
      // A row without a weight may have no value sketch: its scale may be anything.
#pragma unroll
      for (int r = 0; r < kRowsPerThread; ++r) weights[h][r] = weights[h][r] > 0 ? weights[h][r] * scales.of[r] : 0.0f;
    }
#pragma unroll
    for (int u = 0; u < kMostValueUnits; ++u) {
      if (u >= value_units) break;
      float sums[kTailHeads][kUnitValues] = {};
#pragma unroll
      for (int i = 0; i < kUnitValues; ++i)
#pragma unroll
        for (int r = 0; r < kRowsPerThread; ++r) {
          const float number = values.Number(u, i, r);
#pragma unroll
          for (int h = 0; h < kTailHeads; ++h) sums[h][i] = __fmaf_rn(weights[h][r], number, sums[h][i]);
        }
#pragma unroll
      for (int h = 0; h < kTailHeads; ++h) {
        const float sum = SumEight(sums[h]);
        if (Lane() % 4 == 0) parts[Warp()][h][2 + u * kUnitValues + Lane() / 4] = sum;
      }
    }
    __syncthreads();  // the partial results of the warps are there
    const int heads = min(kTailHeads, group - first);
    const auto top_of = [&](int h) {
      float top = parts[0][h][0];
#pragma unroll
      for (int w = 1; w < kTailWarps; ++w) top = fmaxf(top, parts[w][h][0]);
      return top;
    };
    for (int i = static_cast<int>(threadIdx.x); i < heads * floats; i += kScoreThreads) {
      const int h = i / floats, number = i % floats;
      const float top = top_of(h);
      float sum = 0;
#pragma unroll
      for (int w = 0; w < kTailWarps; ++w)
        if (parts[w][h][1] > 0) sum = __fmaf_rn(Exp(parts[w][h][0] - top), parts[w][h][number], sum);
      table.Part(task, first + h, blockIdx.y)[number] = number == 0 ? top : sum;
    }
    if (mean_dims > 0) {
      if (const int i = static_cast<int>(threadIdx.x); i < heads * kChunkBlocks) {
        const int h = i / kChunkBlocks, block = i % kChunkBlocks;
        const float(&part)[kMostTailFloats] = parts[block / 2][h];
        blocks[h][block] = part[1] > 0 ? blocks[h][block] * Exp(part[0] - top_of(h)) * means.Scale(block) : 0.0f;
      }
      __syncthreads();
      for (int i = static_cast<int>(threadIdx.x); i < heads * mean_dims; i += kScoreThreads) {
        const int h = i / mean_dims, n = i % mean_dims;
        float sum = 0;
#pragma unroll
        for (int block = 0; block < kChunkBlocks; ++block)
          sum = __fmaf_rn(blocks[h][block], means.Number(block, n), sum);
        table.Part(task, first + h, blockIdx.y)[floats + n] = sum;
      }
    }
    __syncthreads();  // the next pass overwrites them
  }
}

// Grid (tokens · query heads): merges the partial results of the chunks. A thread has numbers threadIdx.x, +
// kMergeThreads…
constexpr int kMergeThreads = 128;
constexpr int kMergeNumbers = (2 + kMostValueDims + kMaxHeadDim + kMergeThreads - 1) / kMergeThreads;
__global__ __launch_bounds__(kMergeThreads) void MergeTailsKernel(const __grid_constant__ TailCall c,
                                                                  const __grid_constant__ ScoreTable table) {
  __shared__ float factors[kMergeThreads], tops[kMergeThreads / 32];
  const TailView& tail = c.call.tail;
  const int64_t index = blockIdx.x, token = index / tail.heads, head = index % tail.heads, task = index / table.group;
  const int floats = static_cast<int>(table.tail_floats), tid = static_cast<int>(threadIdx.x);
  const bool has_tail = c.call.rules[c.batch.slots[token]].tail;
  const int64_t rows = has_tail ? ItemsOf(c.batch, c.call, table, task) : 0;
  const int chunks = static_cast<int>((rows + kScoreChunk - 1) / kScoreChunk);
  const float* parts = table.Part(task, index % table.group, 0);
  float top = -INFINITY;
  for (int i = tid; i < chunks; i += kMergeThreads) top = fmaxf(top, parts[i * floats]);
  top = WarpMax(top);
  if (Lane() == 0) tops[Warp()] = top;
  __syncthreads();
#pragma unroll
  for (const float of_warp : tops) top = fmaxf(top, of_warp);

  float sums[kMergeNumbers] = {};
  for (int first = 0; first < chunks; first += kMergeThreads) {
    const int own = first + tid;
    __syncthreads();  // the factors before have been used
    factors[tid] = own < chunks && parts[own * floats + 1] > 0 ? Exp(parts[own * floats] - top) : 0.0f;
    __syncthreads();
#pragma unroll 8
    for (int i = 0; i < min(kMergeThreads, chunks - first); ++i)
#pragma unroll
      for (int k = 0; k < kMergeNumbers; ++k)
        if (tid + k * kMergeThreads < floats)
          sums[k] = __fmaf_rn(factors[i], parts[(first + i) * floats + tid + k * kMergeThreads], sums[k]);
  }
  // Without a cap, the level is common to all scores.
  if (tid == 0) sums[0] = c.call.soft_cap > 0 ? top : top + tail.Levels(token)[head];
  if (tid == 1 && !has_tail) sums[0] = TailView::kNoTail;
#pragma unroll
  for (int k = 0; k < kMergeNumbers; ++k)
    if (tid + k * kMergeThreads < floats) tail.Sums(token, head)[tid + k * kMergeThreads] = sums[k];
}

}  // namespace

void SumScoredTails(cudaStream_t stream, const TokenBatch& batch, const SelectCall& call, const LayerSketches& sketches,
                    const ScoreTable& table) {
  CHECK(call.tail && table.tail_floats == call.tail.sums_floats() && table.chunk == kScoreChunk);
  CHECK(call.tail.mean_dims == sketches.layout.mean_dims && call.tail.mean_dims <= kMaxHeadDim);
  CHECK(call.tail.heads == table.heads * table.group && sketches.layout.value_dims <= kMostValueDims);
  const TailCall part{batch, call, sketches};
  const dim3 grid(static_cast<unsigned>(batch.count * table.heads), static_cast<unsigned>(table.chunk_count));
  SumChunksKernel<<<grid, kScoreThreads, 0, stream>>>(part, table);
  CUDA_CHECK_LAUNCH();
  MergeTailsKernel<<<static_cast<unsigned>(batch.count * call.tail.heads), kMergeThreads, 0, stream>>>(part, table);
  CUDA_CHECK_LAUNCH();
}

}  // namespace infinigen
