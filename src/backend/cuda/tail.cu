// SumTails: the estimated attention to rows outside a selection (kv/tail.h), from the sketches of keys and values.
//
// A block sums the tail of 1,024 rows of one (token, KV head), for all query heads of the group. Scores are computed
// again as in Select (sketch_score.cuh): they cost less to compute than to keep. Every warp has a partial result of its
// 128 rows (largest score, sum of weights, weighted value sketches); the block merges those of its warps, and a second
// kernel those of the blocks, both in the order of rows. Divisions depend on row numbers only, so a tail is the same in
// any batch.
#include <cuda_runtime.h>

#include <type_traits>

#include "backend/cuda/context.h"
#include "backend/cuda/cuda_backend.h"
#include "backend/cuda/mma.cuh"
#include "backend/cuda/select.cuh"
#include "backend/cuda/sketch_score.cuh"

namespace infinigen {
namespace {

constexpr int kTailWarps = kScoreThreads / 32;
constexpr int kWarpRows = 32 * kRowsPerThread;
constexpr int kUnitValues = SketchLayout::kInt4PerUnit;
constexpr int kMostValueUnits = kMostValueDims / kUnitValues;
constexpr int kMostTailFloats = 2 + kMostValueDims;
constexpr float kBase2 = 1.44269504f;  // log2(e)
static_assert(kScoreThreads * kRowsPerThread == kScoreChunk && kWarpRows == 4 * 32 && kMostTailFloats <= 32);

struct TailCall {
  const float* queries = nullptr;  // [tokens][query heads · dims]
  int64_t query_stride = 0;
  TokenBatch batch;
  SelectCall call;
  LayerSketches sketches;
  Selection selection;
  int group = 0;           // query heads per KV head
  int64_t chunks = 0;      // that scratch has room for
  float* parts = nullptr;  // [tokens][query heads][chunks][2 + value_dims]

  // Rows that may be in the tail: none if the rule has no tail, or if everything is selected.
  __device__ int64_t Rows(int64_t token, int64_t head) const {
    const int64_t current = batch.rows[token];
    if (!call.rules[batch.slots[token]].tail || selection.Count(token, head) > current) return 0;
    return call.Visible(current);
  }
  __device__ float* Part(int64_t token, int64_t query_head, int64_t chunk) const {
    return parts + ((token * call.tail.heads + query_head) * chunks + chunk) * call.tail.sums_floats();
  }
};

// e^x
__device__ float Exp(float x) { return Exp2(x * kBase2); }

// Bit r of the result: row first + 4 · lane + r is listed. `rows` ascends. Called by one warp, whose rows begin at
// `first`.
__device__ uint32_t ListedOfLane(const int32_t* rows, int count, int first) {
  // The number of listed rows before `first`: 32 probes at a time. Rows before `low` are smaller, those from `high` on
  // are not.
  int low = 0, high = count;
  while (low < high) {
    const int step = (high - low) / 33 + 1, at = low + (Lane() + 1) * step - 1;
    const int below = __popc(__ballot_sync(kAllLanes, at < high && rows[at] < first));
    high = min(high, low + (below + 1) * step - 1);
    low += below * step;
  }
  uint32_t words[kWarpRows / 32] = {};
  for (bool more = true; more; low += 32) {
    const int at = low + Lane(), offset = at < count ? rows[at] - first : kWarpRows;
#pragma unroll
    for (int w = 0; w < kWarpRows / 32; ++w)
      words[w] |= __reduce_or_sync(kAllLanes, offset / 32 == w ? 1u << (offset % 32) : 0u);
    more = __all_sync(kAllLanes, offset < kWarpRows);
  }
  const int word = Lane() / 8;
  const uint32_t mine = word < 2 ? (word == 0 ? words[0] : words[1]) : (word == 2 ? words[2] : words[3]);
  return mine >> (Lane() % 8 * kRowsPerThread) & 15u;
}

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

// Turns the scores of one query head into the weights of a thread's rows: e^(score − the warp's largest), 0 for rows
// that are left out and for NaN. Writes the warp's largest score and sum of weights to part[0] and part[1].
__device__ void WeighRows(float (&scores)[kRowsPerThread], uint32_t left_out, float soft_cap, float level,
                          float* part) {
  float top = -INFINITY;
#pragma unroll
  for (int r = 0; r < kRowsPerThread; ++r) {
    if (soft_cap > 0) scores[r] = SoftCapped(scores[r] + level, soft_cap);
    if ((left_out >> r & 1u) != 0) scores[r] = -INFINITY;
    top = fmaxf(top, scores[r]);  // not NaN
  }
  top = WarpMax(top);
  const bool finite = IsFinite(top);
  float sum = 0;
#pragma unroll
  for (int r = 0; r < kRowsPerThread; ++r) {
    scores[r] = finite && scores[r] <= top ? Exp(scores[r] - top) : 0.0f;
    sum += scores[r];
  }
  sum = WarpSum(sum);
  if (Lane() == 0) part[0] = top, part[1] = sum;
}

// Grid (tasks, chunks). A pass over the sketches of keys handles kHeads query heads; more heads take more passes.
template <SketchType kType, int kHeads>
__global__ __launch_bounds__(kScoreThreads, 2) void SumChunksKernel(const __grid_constant__ TailCall c) {
  extern __shared__ __align__(16) std::byte shared[];
  __shared__ float parts[kTailWarps][kHeads][kMostTailFloats];
  const SketchLayout& layout = c.sketches.layout;
  const int64_t token = blockIdx.x / layout.kv_heads, head = blockIdx.x % layout.kv_heads;
  const int64_t visible = c.Rows(token, head), start = blockIdx.y * kScoreChunk;
  if (start >= visible) return;
  const KeyShape shape(layout);
  const int group = c.group, heads = (group + kHeads - 1) / kHeads * kHeads;
  const int64_t row = start + kRowsPerThread * static_cast<int64_t>(threadIdx.x);
  const bool active = row < visible;
  const std::byte* block = c.sketches.Block(c.batch.slots[token], head, row / kSketchBlock);
  SketchRows rows(layout, block, row);
  ValueRows values;
  if (active) {  // in flight while the queries are quantised
    rows.Load(shape.units, shape.groups);
    values.Load(layout, block, row);
  }
  const SketchQueryBlock<kType> queries(c.queries + token * c.query_stride + head * group * shape.dims, shape, group,
                                        heads, shared);
  uint32_t left_out = ListedOfLane(c.selection.Rows(token, head), c.selection.Count(token, head),
                                   static_cast<int>(start) + Warp() * kWarpRows);
#pragma unroll
  for (int r = 0; r < kRowsPerThread; ++r)
    if (row + r >= visible) left_out |= 1u << r;
  const float* levels = c.call.tail.Levels(token) + head * group;
  const FourScales scales(values.scales);
  const int floats = static_cast<int>(c.call.tail.sums_floats()), value_units = static_cast<int>(layout.value_units());
  __syncthreads();  // the queries are there

  for (int first = 0; first < heads; first += kHeads) {
    values.Hold();
    float weights[kHeads][kRowsPerThread] = {};  // first the scores
    if (active) {
      if (first > 0) rows.Load(shape.units, shape.groups);
      queries.template Score<kHeads>(first, shape, rows, weights);
    }
#pragma unroll
    for (int h = 0; h < kHeads; ++h) {
      WeighRows(weights[h], left_out, c.call.soft_cap, first + h < group ? levels[first + h] : 0.0f, parts[Warp()][h]);
      // A row without a weight may have no value sketch: its scale may be anything.
#pragma unroll
      for (int r = 0; r < kRowsPerThread; ++r) weights[h][r] = weights[h][r] > 0 ? weights[h][r] * scales.of[r] : 0.0f;
    }
#pragma unroll
    for (int u = 0; u < kMostValueUnits; ++u) {
      if (u >= value_units) break;
      float sums[kHeads][kUnitValues] = {};
#pragma unroll
      for (int i = 0; i < kUnitValues; ++i)
#pragma unroll
        for (int r = 0; r < kRowsPerThread; ++r) {
          const float number = values.Number(u, i, r);
#pragma unroll
          for (int h = 0; h < kHeads; ++h) sums[h][i] = __fmaf_rn(weights[h][r], number, sums[h][i]);
        }
#pragma unroll
      for (int h = 0; h < kHeads; ++h) {
        const float sum = SumEight(sums[h]);
        if (Lane() % 4 == 0) parts[Warp()][h][2 + u * kUnitValues + Lane() / 4] = sum;
      }
    }
    __syncthreads();  // the partial results of the warps are there
    for (int i = static_cast<int>(threadIdx.x); i < min(kHeads, group - first) * floats; i += kScoreThreads) {
      const int h = i / floats, number = i % floats;
      float top = parts[0][h][0], sum = 0;
#pragma unroll
      for (int w = 1; w < kTailWarps; ++w) top = fmaxf(top, parts[w][h][0]);
#pragma unroll
      for (int w = 0; w < kTailWarps; ++w)
        if (parts[w][h][1] > 0) sum = __fmaf_rn(Exp(parts[w][h][0] - top), parts[w][h][number], sum);
      c.Part(token, head * group + first + h, blockIdx.y)[number] = number == 0 ? top : sum;
    }
    __syncthreads();  // the next pass overwrites them
  }
}

// One warp per (token, query head) merges the partial results of the chunks; lane i has number i.
__global__ __launch_bounds__(kScoreThreads) void MergeTailsKernel(const __grid_constant__ TailCall c) {
  const TailView& tail = c.call.tail;
  const int64_t index = static_cast<int64_t>(blockIdx.x) * kTailWarps + Warp();
  if (index >= c.batch.count * tail.heads) return;
  const int64_t token = index / tail.heads, head = index % tail.heads;
  const int floats = static_cast<int>(tail.sums_floats());
  const int chunks = static_cast<int>((c.Rows(token, head / c.group) + kScoreChunk - 1) / kScoreChunk);
  const float* parts = c.Part(token, head, 0);
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

template <class F>
void DispatchTail(SketchType type, int64_t group, F&& f) {
  const auto with_type = [&](auto tag) {
    if (group == 1)
      f(SumChunksKernel<decltype(tag)::value, 1>, 1);
    else
      f(SumChunksKernel<decltype(tag)::value, 4>, 4);
  };
  if (type == SketchType::kBF16) return with_type(std::integral_constant<SketchType, SketchType::kBF16>());
  if (type == SketchType::kInt8) return with_type(std::integral_constant<SketchType, SketchType::kInt8>());
  with_type(std::integral_constant<SketchType, SketchType::kInt4>());
}

}  // namespace

void LaunchTails(CudaContext& context, cudaStream_t stream, const ConstTensor& sketch_queries, const TokenBatch& batch,
                 const SelectCall& call, const LayerSketches& sketches, const Selection& selection) {
  const SketchLayout& layout = sketches.layout;
  CHECK(layout.dims % kSketchDimStep == 0 && layout.dims <= kMaxHeadDim && call.page == 1 && call.tail);
  CHECK(layout.has_values() && layout.value_dims % kUnitValues == 0 && layout.value_dims <= kMostValueDims);
  CHECK(layout.value_dims == call.tail.basis.value_dims && selection.kv_heads == layout.kv_heads);
  CHECK(sketch_queries.type == DType::kF32 && sketch_queries.cols == call.tail.heads * layout.dims &&
        sketch_queries.rows >= batch.count && call.tail.heads % layout.kv_heads == 0);
  CHECK((reinterpret_cast<uintptr_t>(sketches.data) | sketches.head_stride | sketches.slot_stride) % 16 == 0);
  const int64_t group = call.tail.heads / layout.kv_heads, chunks = (call.max_rows + kScoreChunk - 1) / kScoreChunk;
  CHECK(chunks > 0);
  // More tokens than a step has are divided into parts that fit the scratch reserved for steps.
  const size_t token_bytes = static_cast<size_t>(call.tail.heads * chunks * call.tail.sums_floats()) * sizeof(float);
  const auto together = std::max<int64_t>(8, static_cast<int64_t>(context.scratch.bytes() / token_bytes));
  for (int64_t first = 0; first < batch.count; first += together) {
    const int64_t count = std::min(together, batch.count - first);
    TailCall part{.queries = sketch_queries.as<float>(first),
                  .query_stride = sketch_queries.stride,
                  .batch = batch.Range(first, count),
                  .call = call,
                  .sketches = sketches,
                  .selection = selection,
                  .group = static_cast<int>(group),
                  .chunks = chunks};
    part.call.tail = call.tail.From(first);
    part.selection.rows += first * selection.kv_heads * selection.capacity;
    part.selection.counts += first * selection.kv_heads;
    part.parts = reinterpret_cast<float*>(context.Scratch(static_cast<size_t>(count) * token_bytes));
    DispatchTail(layout.type, group, [&](auto kernel, int64_t heads) {
      const size_t bytes = QueryBytes(layout, (group + heads - 1) / heads * heads);
      AllowShared(context, kernel, bytes);
      const dim3 grid(static_cast<unsigned>(count * layout.kv_heads), static_cast<unsigned>(chunks));
      kernel<<<grid, kScoreThreads, bytes, stream>>>(part);
      CUDA_CHECK_LAUNCH();
    });
    const auto blocks = static_cast<unsigned>((count * call.tail.heads + kTailWarps - 1) / kTailWarps);
    MergeTailsKernel<<<blocks, kScoreThreads, 0, stream>>>(part);
    CUDA_CHECK_LAUNCH();
  }
}

void CudaBackend::SumTails(Queue queue, const ConstTensor& sketch_queries, const TokenBatch& batch,
                           const SelectCall& call, const LayerSketches& sketches, const Selection& selection) {
  const ZoneClock::Scope timed(context_->zones, CudaZone::kSelection, context_->stream(queue));
  LaunchTails(*context_, context_->stream(queue), sketch_queries, batch, call, sketches, selection);
}

}  // namespace infinigen
