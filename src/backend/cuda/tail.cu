// SumScoredTails: the estimated attention to rows outside a selection (kv/tail.h), from scores that are in memory
// (select.cu) and the sketches of values.
//
// A block sums the tail of 1,024 rows of one (token, KV head), for all query heads of the group. Every warp has a
// partial result of its 128 rows (largest score, sum of weights, weighted value sketches); the block merges those of
// its warps, and a second kernel those of the blocks, both in the order of rows. Divisions depend on row numbers only,
// so a tail is the same in any batch. Rows that are selected, evicted or not there yet have the score NaN and no
// weight. The means of blocks of 64 rows come last: a third kernel weighs the rows again, by the largest score of all,
// and adds each block's mean times the block's weight.
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
static_assert(kScoreThreads * kRowsPerThread == kScoreChunk && kMostTailFloats <= 32);

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
// Writes the warp's largest score and sum of weights to part[0] and part[1].
__device__ void WeighRows(float (&scores)[kRowsPerThread], float* part) {
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
  sum = WarpSum(sum);
  if (Lane() == 0) part[0] = top, part[1] = sum;
}

// Grid (tasks, chunks).
__global__ __launch_bounds__(kScoreThreads) void SumChunksKernel(const __grid_constant__ TailCall c,
                                                                 const __grid_constant__ ScoreTable table) {
  __shared__ float parts[kTailWarps][kTailHeads][kMostTailFloats];
  const SketchLayout& layout = c.sketches.layout;
  const int64_t task = blockIdx.x, token = task / table.heads, head = task % table.heads;
  const int64_t visible = ItemsOf(c.batch, c.call, table, task), start = blockIdx.y * kScoreChunk;
  if (start >= visible || !c.call.rules[c.batch.slots[token]].tail) return;
  const int group = static_cast<int>(table.group), floats = static_cast<int>(table.tail_floats);
  const int value_units = static_cast<int>(layout.value_units());
  const int64_t row = start + kRowsPerThread * static_cast<int64_t>(threadIdx.x);
  const bool active = row < visible;
  ValueRows values;
  if (active) values.Load(layout, c.sketches.Block(c.batch.slots[token], head, row / kSketchBlock), row);
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
      WeighRows(weights[h], parts[Warp()][h]);
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
    for (int i = static_cast<int>(threadIdx.x); i < min(kTailHeads, group - first) * floats; i += kScoreThreads) {
      const int h = i / floats, number = i % floats;
      float top = parts[0][h][0], sum = 0;
#pragma unroll
      for (int w = 1; w < kTailWarps; ++w) top = fmaxf(top, parts[w][h][0]);
#pragma unroll
      for (int w = 0; w < kTailWarps; ++w)
        if (parts[w][h][1] > 0) sum = __fmaf_rn(Exp(parts[w][h][0] - top), parts[w][h][number], sum);
      table.Part(task, first + h, blockIdx.y)[number] = number == 0 ? top : sum;
    }
    __syncthreads();  // the next pass overwrites them
  }
}

// One warp per (token, query head) merges the partial results of the chunks; lane i has number i.
__global__ __launch_bounds__(kScoreThreads) void MergeTailsKernel(const __grid_constant__ TailCall c,
                                                                  const __grid_constant__ ScoreTable table) {
  const TailView& tail = c.call.tail;
  const int64_t index = static_cast<int64_t>(blockIdx.x) * kTailWarps + Warp();
  if (index >= c.batch.count * tail.heads) return;
  const int64_t token = index / tail.heads, head = index % tail.heads, task = index / table.group;
  const int floats = static_cast<int>(table.tail_floats);
  const bool has_tail = c.call.rules[c.batch.slots[token]].tail;
  const int64_t rows = has_tail ? ItemsOf(c.batch, c.call, table, task) : 0;
  const int chunks = static_cast<int>((rows + kScoreChunk - 1) / kScoreChunk);
  const float* parts = table.Part(task, index % table.group, 0);
  float top = -INFINITY;
  for (int i = Lane(); i < chunks; i += 32) top = fmaxf(top, parts[i * floats]);
  top = WarpMax(top);
  float sum = 0;
  for (int first = 0; first < chunks; first += 32) {
    const int own = first + Lane();
    const float factor = own < chunks && parts[own * floats + 1] > 0 ? Exp(parts[own * floats] - top) : 0.0f;
#pragma unroll 8
    for (int i = 0; i < min(32, chunks - first); ++i) {
      const float of_chunk = __shfl_sync(kAllLanes, factor, i);
      if (Lane() < floats) sum = __fmaf_rn(of_chunk, parts[(first + i) * floats + Lane()], sum);
    }
  }
  // Without a cap, the level is common to all scores.
  if (Lane() == 0) sum = c.call.soft_cap > 0 ? top : top + tail.Levels(token)[head];
  if (Lane() == 1 && !c.call.rules[c.batch.slots[token]].tail) sum = TailView::kNoTail;
  if (Lane() < floats) tail.Sums(token, head)[Lane()] = sum;
}

// Grid (tokens, query heads). Warp w takes blocks w, w + kTailWarps, …; the warps' sums are added in order. A lane has
// dimensions lane, lane + 32, …
__global__ __launch_bounds__(kScoreThreads) void SumMeansKernel(const __grid_constant__ TailCall c,
                                                                const __grid_constant__ ScoreTable table) {
  constexpr int kPerLane = static_cast<int>(kMaxHeadDim) / 32;
  __shared__ float parts[kTailWarps][kMaxHeadDim];
  const TailView& tail = c.call.tail;
  const SketchLayout& layout = c.sketches.layout;
  const int64_t token = blockIdx.x, query_head = blockIdx.y, kv_head = query_head / table.group;
  const int64_t task = token * table.heads + kv_head, slot = c.batch.slots[token];
  float* sums = tail.Sums(token, query_head);
  const int dims = static_cast<int>(tail.mean_dims), floats = static_cast<int>(table.tail_floats);
  float means[kPerLane] = {};
  if (sums[1] > 0) {
    const float top = c.call.soft_cap > 0 ? sums[0] : sums[0] - tail.Levels(token)[query_head];
    const int64_t visible = ItemsOf(c.batch, c.call, table, task);
    const int64_t complete = (c.batch.rows[token] + 1) / kSketchBlock;
    const float* scores = table.Scores(task, query_head % table.group);
    for (int64_t b = Warp(); b < complete; b += kTailWarps) {
      float weight = 0;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int64_t row = b * kSketchBlock + half * 32 + Lane();
        const float score = row < visible ? scores[row] : -INFINITY;
        weight += score <= top + 1.0f ? Exp(score - top) : 0.0f;  // NaN: no weight; the largest score may be rounded
      }
      weight = WarpSum(weight);
      if (!(weight > 0)) continue;
      const std::byte* block = c.sketches.Block(slot, kv_head, b);
      const auto bits = *reinterpret_cast<const uint16_t*>(block + layout.mean_scale_offset());
      weight *= __uint_as_float(static_cast<uint32_t>(bits) << 16);
      const auto* numbers = reinterpret_cast<const int8_t*>(block + layout.means_offset());
#pragma unroll
      for (int k = 0; k < kPerLane; ++k)
        if (Lane() + 32 * k < dims)
          means[k] = __fmaf_rn(weight, static_cast<float>(numbers[Lane() + 32 * k]), means[k]);
    }
  }
#pragma unroll
  for (int k = 0; k < kPerLane; ++k)
    if (Lane() + 32 * k < dims) parts[Warp()][Lane() + 32 * k] = means[k];
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < dims; i += kScoreThreads) {
    float sum = 0;
#pragma unroll
    for (int w = 0; w < kTailWarps; ++w) sum += parts[w][i];
    sums[floats + i] = sum;
  }
}

}  // namespace

void SumScoredTails(cudaStream_t stream, const TokenBatch& batch, const SelectCall& call, const LayerSketches& sketches,
                    const ScoreTable& table) {
  CHECK(call.tail && table.tail_floats + call.tail.mean_dims == call.tail.sums_floats());
  CHECK(table.chunk == kScoreChunk && call.tail.mean_dims <= kMaxHeadDim);
  CHECK(call.tail.heads == table.heads * table.group && sketches.layout.value_dims <= kMostValueDims);
  const TailCall part{batch, call, sketches};
  const dim3 grid(static_cast<unsigned>(batch.count * table.heads), static_cast<unsigned>(table.chunk_count));
  SumChunksKernel<<<grid, kScoreThreads, 0, stream>>>(part, table);
  CUDA_CHECK_LAUNCH();
  const auto blocks = static_cast<unsigned>((batch.count * call.tail.heads + kTailWarps - 1) / kTailWarps);
  MergeTailsKernel<<<blocks, kScoreThreads, 0, stream>>>(part, table);
  CUDA_CHECK_LAUNCH();
  if (call.tail.mean_dims == 0) return;
  const dim3 heads(static_cast<unsigned>(batch.count), static_cast<unsigned>(call.tail.heads));
  SumMeansKernel<<<heads, kScoreThreads, 0, stream>>>(part, table);
  CUDA_CHECK_LAUNCH();
}

}  // namespace infinigen
