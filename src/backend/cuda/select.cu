// Select: scores of sketches, from which choose.cu chooses rows.
//
// A block scores 1,024 rows of one (token, KV head). A thread owns four adjacent rows, which are adjacent in every unit
// of a sketch block too, so that a warp reads whole cache lines and no sum crosses lanes. The queries are in shared
// memory, quantised once per block as kv/index.h defines. Integer sums are exact, so the scores equal the host's bit
// for bit.
#include <type_traits>

#include "backend/cuda/cuda_backend.h"
#include "backend/cuda/select.cuh"
#include "kv/index_view.h"

namespace infinigen {
namespace {

constexpr int kScoreThreads = 256;
constexpr int kRowsPerThread = 4;  // 16 bytes of a unit
static_assert(kScoreThreads * kRowsPerThread == kScoreChunk);
constexpr int kUnitVectors = kSketchBlock / kRowsPerThread;  // vectors from unit to unit

// Queries of the group in shared memory. Heads are the innermost dimension, padded to a multiple of kHeads, so that a
// thread reads the heads it works on as one run.
struct IntQueries {
  const int2* quads;    // [dims / 4][heads] four values of 16 bits
  const float* scales;  // [heads]
  const int32_t* sums;  // [heads] sums of values
};

size_t QueryBytes(const SketchLayout& layout, int64_t heads) {
  if (!layout.has_scales()) return static_cast<size_t>(layout.dims * heads) * sizeof(float);
  return static_cast<size_t>(layout.dims * heads) * sizeof(int16_t) + static_cast<size_t>(heads) * 8;
}

__device__ bool IsFinite(float x) { return fabsf(x) <= 3.402823466e38f; }

// Quantises the queries of one KV head (QuantiseQuery in kv/index.h), one warp per query head.
__device__ IntQueries QuantiseQueries(const float* queries, int dims, int group, int heads, std::byte* shared) {
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
    int32_t sum = 0;
    for (int i = Lane(); i < dims; i += 32) {
      const float number = h < group ? queries[h * dims + i] : 0.0f;
      const float rounded = IsFinite(number) ? rintf(__fmul_rn(number, inverse)) : 0.0f;
      const int32_t value = static_cast<int32_t>(fminf(fmaxf(rounded, -most), most));
      values[((i / 4) * heads + h) * 4 + i % 4] = static_cast<int16_t>(value);
      sum += value;
    }
    sum = __reduce_add_sync(kAllLanes, sum);
    if (Lane() == 0) {
      scales[h] = scale;
      sums[h] = sum;
    }
  }
  return {reinterpret_cast<const int2*>(values), scales, sums};
}

// Units of the four rows that are loaded ahead. Sketches are read once per step: streaming loads, so that the cache
// keeps the scores.
constexpr int kAhead = 4;
__device__ void LoadUnits(const uint4* block, int first, int units, uint4 (&ahead)[kAhead]) {
#pragma unroll
  for (int i = 0; i < kAhead; ++i)
    if (first + i < units) ahead[i] = __ldcs(block + (first + i) * kUnitVectors);
}
// Calls use(u, unit u of the four rows) for all units; `now` holds the first ones.
template <class Use>
__device__ void ForUnits(const uint4* block, int units, uint4 (&now)[kAhead], const Use& use) {
  for (int u = 0; u < units; u += kAhead) {
    uint4 next[kAhead] = {};
    LoadUnits(block, u + kAhead, units, next);
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const uint32_t rows[kRowsPerThread] = {now[i].x, now[i].y, now[i].z, now[i].w};
      if (u + i < units) use(u + i, rows);
      now[i] = next[i];
    }
  }
}

// Scores of four rows for kHeads query heads from `first` on. block: the rows' place in their sketch block; ahead: its
// first units.
template <SketchType kType, int kHeads>
__device__ void ScoreInts(const IntQueries& queries, int first, int heads, const uint4* block, uint4 (&ahead)[kAhead],
                          uint2 row_scales, int units, float (&scores)[kHeads][kRowsPerThread]) {
  int32_t sums[kHeads][kRowsPerThread] = {};
  ForUnits(block, units, ahead, [&](int u, const uint32_t(&rows)[kRowsPerThread]) {
    constexpr int kQuads = kType == SketchType::kInt8 ? 1 : 2;
#pragma unroll
    for (int half = 0; half < kQuads; ++half) {
      const int2* quads = queries.quads + (u * kQuads + half) * heads + first;
#pragma unroll
      for (int h = 0; h < kHeads; ++h) {
        const int2 quad = quads[h];
#pragma unroll
        for (int r = 0; r < kRowsPerThread; ++r) {
          // Stored as value + 128, or as value + 8; the offset is subtracted at the end.
          const int bytes = static_cast<int>(kType == SketchType::kInt8 ? rows[r] ^ 0x80808080u
                                                                        : rows[r] >> (4 * half) & 0x0f0f0f0fu);
          sums[h][r] = __dp2a_hi(quad.y, bytes, __dp2a_lo(quad.x, bytes, sums[h][r]));
        }
      }
    }
  });
  const uint32_t bits[kRowsPerThread] = {row_scales.x << 16, row_scales.x & 0xffff0000u, row_scales.y << 16,
                                         row_scales.y & 0xffff0000u};
#pragma unroll
  for (int h = 0; h < kHeads; ++h) {
    const int32_t excess = kType == SketchType::kInt8 ? 0 : 8 * queries.sums[first + h];
    const float scale = queries.scales[first + h];
#pragma unroll
    for (int r = 0; r < kRowsPerThread; ++r)
      scores[h][r] = __fmul_rn(__fmul_rn(static_cast<float>(sums[h][r] - excess), scale), __uint_as_float(bits[r]));
  }
}

// The same for bf16 sketches; queries [dims / 2][heads] pairs.
template <int kHeads>
__device__ void ScoreFloats(const float2* queries, int first, int heads, const uint4* block, uint4 (&ahead)[kAhead],
                            int units, float (&scores)[kHeads][kRowsPerThread]) {
#pragma unroll
  for (int h = 0; h < kHeads; ++h)
#pragma unroll
    for (int r = 0; r < kRowsPerThread; ++r) scores[h][r] = 0;
  ForUnits(block, units, ahead, [&](int u, const uint32_t(&rows)[kRowsPerThread]) {
#pragma unroll
    for (int h = 0; h < kHeads; ++h) {
      const float2 pair = queries[u * heads + first + h];
#pragma unroll
      for (int r = 0; r < kRowsPerThread; ++r) {
        scores[h][r] = __fmaf_rn(pair.x, __uint_as_float(rows[r] << 16), scores[h][r]);
        scores[h][r] = __fmaf_rn(pair.y, __uint_as_float(rows[r] & 0xffff0000u), scores[h][r]);
      }
    }
  });
}

// Grid (tasks, chunks). A pass over the sketches scores kHeads query heads; more heads take more passes.
template <SketchType kType, int kHeads>
__global__ __launch_bounds__(kScoreThreads) void ScoreSketchesKernel(const float* queries, int64_t query_stride,
                                                                     TokenBatch batch, SelectCall call,
                                                                     LayerSketches sketches, ScoreTable table) {
  extern __shared__ __align__(16) std::byte shared[];
  __shared__ float warp_maxima[kScoreThreads / 32][kMaxGroup];
  const int64_t task = blockIdx.x, token = task / table.heads, head = task % table.heads;
  const int64_t visible = call.Visible(batch.rows[token]), start = blockIdx.y * kScoreChunk;
  ClearTally(table, task);
  if (start >= visible) return;
  const int dims = static_cast<int>(sketches.layout.dims), group = static_cast<int>(table.group);
  const int heads = (group + kHeads - 1) / kHeads * kHeads, units = static_cast<int>(sketches.layout.units());
  const int64_t row = start + kRowsPerThread * static_cast<int64_t>(threadIdx.x);
  const bool active = row < visible;
  const std::byte* block = sketches.Block(batch.slots[token], head, row / kSketchBlock);
  const auto* units_at = reinterpret_cast<const uint4*>(block) + row % kSketchBlock / kRowsPerThread;
  uint4 ahead[kAhead] = {};  // in flight while the queries are quantised
  uint2 row_scales = {};
  if (active) {
    LoadUnits(units_at, 0, units, ahead);
    if constexpr (kType != SketchType::kBF16)
      row_scales = __ldcs(reinterpret_cast<const uint2*>(block + sketches.layout.scales_offset()) +
                          row % kSketchBlock / kRowsPerThread);
  }
  queries += token * query_stride + head * group * dims;
  IntQueries ints{};
  if constexpr (kType == SketchType::kBF16) {
    auto* numbers = reinterpret_cast<float*>(shared);
    for (int i = static_cast<int>(threadIdx.x); i < heads * dims; i += kScoreThreads) {
      const int h = i / dims, n = i % dims;
      numbers[((n / 2) * heads + h) * 2 + n % 2] = h < group ? queries[i] : 0.0f;
    }
  } else {
    ints = QuantiseQueries(queries, dims, group, heads, shared);
  }
  __syncthreads();
  for (int first = 0; first < heads; first += kHeads) {
    float scores[kHeads][kRowsPerThread];
    if (active) {
      if (first > 0) LoadUnits(units_at, 0, units, ahead);
      if constexpr (kType == SketchType::kBF16)
        ScoreFloats<kHeads>(reinterpret_cast<const float2*>(shared), first, heads, units_at, ahead, units, scores);
      else
        ScoreInts<kType, kHeads>(ints, first, heads, units_at, ahead, row_scales, units, scores);
#pragma unroll
      for (auto& of_head : scores)
#pragma unroll
        for (float& score : of_head) score = table.Capped(score);
    }
#pragma unroll
    for (int h = 0; h < kHeads; ++h) {
      if (first + h >= group) break;
      float largest = -INFINITY;
      if (active) {
        *reinterpret_cast<float4*>(table.Scores(task, first + h) + row) =
            make_float4(scores[h][0], scores[h][1], scores[h][2], scores[h][3]);
#pragma unroll
        for (int r = 0; r < kRowsPerThread; ++r)
          if (row + r < visible) largest = fmaxf(largest, scores[h][r]);
      }
      largest = WarpMax(largest);
      if (Lane() == 0) warp_maxima[Warp()][first + h] = largest;
    }
  }
  __syncthreads();
  for (int g = static_cast<int>(threadIdx.x); g < group; g += kScoreThreads) {
    float largest = warp_maxima[0][g];
    for (int w = 1; w < kScoreThreads / 32; ++w) largest = fmaxf(largest, warp_maxima[w][g]);
    table.Maxima(task, g)[blockIdx.y] = largest;
  }
}

template <class F>
void DispatchScore(SketchType type, int64_t group, F&& f) {
  const auto with_type = [&](auto tag) {
    if (group == 1)
      f(ScoreSketchesKernel<decltype(tag)::value, 1>, 1);
    else
      f(ScoreSketchesKernel<decltype(tag)::value, 4>, 4);
  };
  if (type == SketchType::kBF16) return with_type(std::integral_constant<SketchType, SketchType::kBF16>());
  if (type == SketchType::kInt8) return with_type(std::integral_constant<SketchType, SketchType::kInt8>());
  with_type(std::integral_constant<SketchType, SketchType::kInt4>());
}

}  // namespace

void CudaBackend::Select(Queue queue, const ConstTensor& sketch_queries, const TokenBatch& batch,
                         const SelectCall& call, const LayerSketches& sketches, const Selection& selection) {
  const ZoneClock::Scope timed(context_->zones, CudaZone::kSelection, context_->stream(queue));
  const SketchLayout& layout = sketches.layout;
  CHECK(layout.dims % kSketchDimStep == 0 && layout.dims <= kMaxHeadDim && call.page == 1);
  CHECK(sketch_queries.type == DType::kF32 && sketch_queries.cols % (layout.kv_heads * layout.dims) == 0 &&
        sketch_queries.rows >= batch.count);
  CHECK((reinterpret_cast<uintptr_t>(sketches.data) | sketches.head_stride | sketches.slot_stride) % 16 == 0);
  const ScoreShape shape{layout.kv_heads, sketch_queries.cols / layout.dims / layout.kv_heads, call.max_rows};
  const cudaStream_t stream = context_->stream(queue);
  const auto score = [&](int64_t first, const TokenBatch& part, const ScoreTable& table) {
    DispatchScore(layout.type, shape.group, [&](auto kernel, int64_t together) {
      const size_t bytes = QueryBytes(layout, (shape.group + together - 1) / together * together);
      AllowShared(*context_, kernel, bytes);
      kernel<<<ScoreGrid(part, shape), kScoreThreads, bytes, stream>>>(
          sketch_queries.as<float>(first), sketch_queries.stride, part, call, sketches, table);
      CUDA_CHECK_LAUNCH();
    });
  };
  SelectBy(*context_, stream, batch, call, shape, selection, score);
}

}  // namespace infinigen
