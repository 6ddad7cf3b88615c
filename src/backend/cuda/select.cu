// Select: scores of sketches, from which choose.cu chooses rows.
//
// A block scores 1,024 rows of one (token, KV head), as sketch_score.cuh describes.
#include <type_traits>

#include "backend/cuda/cuda_backend.h"
#include "backend/cuda/select.cuh"
#include "backend/cuda/sketch_score.cuh"
#include "kv/index_view.h"

namespace infinigen {
namespace {

static_assert(kScoreThreads * kRowsPerThread == kScoreChunk);

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
  const KeyShape shape(sketches.layout);
  const int group = static_cast<int>(table.group), heads = (group + kHeads - 1) / kHeads * kHeads;
  const int64_t row = start + kRowsPerThread * static_cast<int64_t>(threadIdx.x);
  const bool active = row < visible;
  SketchRows rows(sketches.layout, sketches.Block(batch.slots[token], head, row / kSketchBlock), row);
  if (active) rows.Load(shape.units, shape.groups);  // in flight while the queries are quantised
  const SketchQueryBlock<kType> block(queries + token * query_stride + head * group * shape.dims, shape, group, heads,
                                      shared);
  // Where a tail knows the level of the scores, the cap sees it.
  const float* levels = call.tail && table.soft_cap > 0 ? call.tail.Levels(token) + head * group : nullptr;
  __syncthreads();
  for (int first = 0; first < heads; first += kHeads) {
    float scores[kHeads][kRowsPerThread];
    if (active) {
      if (first > 0) rows.Load(shape.units, shape.groups);
      block.template Score<kHeads>(first, shape, rows, scores);
#pragma unroll
      for (int h = 0; h < kHeads; ++h) {
        const float level = levels != nullptr && first + h < group ? levels[first + h] : 0.0f;
#pragma unroll
        for (float& score : scores[h]) score = table.Capped(levels != nullptr ? score + level : score);
      }
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
    SelectCall of_part = call;
    of_part.tail = call.tail.From(first);
    DispatchScore(layout.type, shape.group, [&](auto kernel, int64_t together) {
      const size_t bytes = QueryBytes(layout, (shape.group + together - 1) / together * together);
      AllowShared(*context_, kernel, bytes);
      kernel<<<ScoreGrid(part, shape), kScoreThreads, bytes, stream>>>(
          sketch_queries.as<float>(first), sketch_queries.stride, part, of_part, sketches, table);
      CUDA_CHECK_LAUNCH();
    });
  };
  SelectBy(*context_, stream, batch, call, shape, selection, score);
  if (call.tail) LaunchTails(*context_, stream, sketch_queries, batch, call, sketches, selection);
}

}  // namespace infinigen
