// Select and SumTails: scores of sketches, from which choose.cu chooses rows and tail.cu sums the tails.
//
// A block scores chunks of 1,024 rows of one (token, KV head): int4 sketches on tensor cores (sketch_tensor.cuh),
// others in registers (sketch_score.cuh). Both selections and tails read the scores from memory, mostly L2, so that
// sketches of keys are read once per query.
//
// SumTails knows the selection before it scores: the rows of a selection count for the maxima, then their scores become
// NaN, which leaves them out of late rows and tails.
#include <algorithm>
#include <type_traits>

#include "backend/cuda/choose.cuh"
#include "backend/cuda/cuda_backend.h"
#include "backend/cuda/select.cuh"
#include "backend/cuda/sketch_score.cuh"
#include "backend/cuda/sketch_tensor.cuh"
#include "kv/index_view.h"

namespace infinigen {
namespace {

static_assert(kScoreThreads * kRowsPerThread == kScoreChunk && kScoreThreads / 32 * kWarpRows == kScoreChunk);
constexpr int kScoreWarps = kScoreThreads / 32;
constexpr size_t kStaticBytes = sizeof(float[kScoreWarps][kMaxGroup]);  // shared memory beside the dynamic
constexpr unsigned kListParts = 4;                                      // blocks that share a list

struct ScoreCall {
  const float* queries = nullptr;  // [tokens][query heads · dims]
  int64_t query_stride = 0;
  TokenBatch batch;
  SelectCall call;
  LayerSketches sketches;
};

// One (token, KV head), and where its block begins.
struct ScoreTask {
  __device__ ScoreTask(const ScoreCall& c, const ScoreTable& table)
      : index(blockIdx.x),
        token(index / table.heads),
        head(index % table.heads),
        slot(c.batch.slots[token]),
        visible(ItemsOf(c.batch, c.call, table, index)),
        start(blockIdx.y * kScoreChunk),
        queries(c.queries + token * c.query_stride + head * table.group * c.sketches.layout.dims),
        // Where a tail knows the level of the scores, the cap sees it.
        levels(c.call.tail && table.soft_cap > 0 ? c.call.tail.Levels(token) + head * table.group : nullptr) {}

  __device__ float Capped(const ScoreTable& table, float score, int g) const {
    return table.Capped(levels != nullptr ? score + levels[g] : score);
  }

  int64_t index, token, head, slot;
  int64_t visible, start;
  const float* queries;
  const float* levels;
};

// The maxima of the block's chunks from those of its warps: one for all of them, since only the largest of a task
// counts.
__device__ void PutMaxima(const ScoreTable& table, int64_t task, int64_t visible,
                          const float (&warp_maxima)[kScoreWarps][kMaxGroup]) {
  __syncthreads();
  for (int g = static_cast<int>(threadIdx.x); g < table.group; g += kScoreThreads) {
    float largest = warp_maxima[0][g];
#pragma unroll
    for (int w = 1; w < kScoreWarps; ++w) largest = fmaxf(largest, warp_maxima[w][g]);
    for (int64_t chunk = blockIdx.y; chunk * kScoreChunk < visible; chunk += gridDim.y)
      table.Maxima(task, g)[chunk] = largest;
  }
}

// Grid (tasks, chunks). A pass over the sketches scores kHeads query heads; more heads take more passes.
template <SketchType kType, int kHeads>
__global__ __launch_bounds__(kScoreThreads) void ScoreSketchesKernel(const __grid_constant__ ScoreCall c,
                                                                     const __grid_constant__ ScoreTable table) {
  extern __shared__ __align__(16) std::byte shared[];
  __shared__ float warp_maxima[kScoreWarps][kMaxGroup];
  const ScoreTask task(c, table);
  ClearTally(table, task.index);
  if (task.start >= task.visible) return;
  const KeyShape shape(c.sketches.layout);
  const int group = static_cast<int>(table.group), heads = (group + kHeads - 1) / kHeads * kHeads;
  const int64_t row = task.start + kRowsPerThread * static_cast<int64_t>(threadIdx.x);
  const bool active = row < task.visible;
  SketchRows rows(c.sketches.layout, c.sketches.Block(task.slot, task.head, row / kSketchBlock), row);
  if (active) rows.Load(shape.units, shape.groups);  // in flight while the queries are quantised
  const SketchQueryBlock<kType> block(task.queries, shape, group, heads, shared);
  __syncthreads();
  for (int first = 0; first < heads; first += kHeads) {
    float scores[kHeads][kRowsPerThread];
    if (active) {
      if (first > 0) rows.Load(shape.units, shape.groups);
      block.template Score<kHeads>(first, shape, rows, scores);
    }
#pragma unroll
    for (int h = 0; h < kHeads; ++h) {
      if (first + h >= group) break;
      float largest = -INFINITY;
      if (active) {
#pragma unroll
        for (int r = 0; r < kRowsPerThread; ++r) {
          scores[h][r] = task.Capped(table, scores[h][r], first + h);
          if (row + r < task.visible) largest = fmaxf(largest, scores[h][r]);
        }
        *reinterpret_cast<float4*>(table.Scores(task.index, first + h) + row) =
            make_float4(scores[h][0], scores[h][1], scores[h][2], scores[h][3]);
      }
      largest = WarpMax(largest);
      if (Lane() == 0) warp_maxima[Warp()][first + h] = largest;
    }
  }
  PutMaxima(table, task.index, task.visible, warp_maxima);
}

// The same on tensor cores. Grid (tasks, blocks of a task): a block takes every gridDim.y-th chunk, so that what comes
// before the first score is paid once.
__global__ __launch_bounds__(kScoreThreads,
                             kTensorBlocks) void ScoreInt4Kernel(const __grid_constant__ ScoreCall c,
                                                                 const __grid_constant__ ScoreTable table) {
  extern __shared__ __align__(16) std::byte shared[];
  __shared__ float warp_maxima[kScoreWarps][kMaxGroup];
  const ScoreTask task(c, table);
  ClearTally(table, task.index);
  if (task.start >= task.visible) return;
  const KeyShape shape(c.sketches.layout);
  const int group = static_cast<int>(table.group), passes = (group + kTensorHeads - 1) / kTensorHeads;
  const int heads = passes * kTensorHeads, steps = TensorSteps(shape.dims);
  const TensorMemory memory(c.sketches.layout, heads);
  const int64_t own = task.start + Warp() * kWarpRows;
  TensorScorer scorer(shape, c.sketches, task.slot, task.head, own, task.visible, memory, shared);
  const IntQueries queries =
      QuantiseQueries(task.queries, shape.dims, shape.group_dims, group, heads, shared + memory.queries);
  auto* words = reinterpret_cast<uint32_t*>(shared + memory.words);
  for (int g = Lane(); g < group; g += 32) warp_maxima[Warp()][g] = -INFINITY;
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < passes * steps * 32; i += kScoreThreads)
    words[i] = QueryBytesOf(queries, shape.dims, heads, i / 32 / steps, i / 32 % steps, i % 32);
  __syncthreads();
  scorer.Run(queries, heads, words, [&](int64_t block_row, int pass, float(&scores)[kBlockTiles][kRowsPerThread]) {
    const int g = pass * kTensorHeads + Lane() % 4;
    float largest = -INFINITY;
#pragma unroll
    for (int tile = 0; tile < kBlockTiles; ++tile) {
      const int64_t row = block_row + tile * kTileRows32 + Lane() / 4 * kRowsPerThread;
      if (g >= group || row >= task.visible) continue;
#pragma unroll
      for (int r = 0; r < kRowsPerThread; ++r) {
        scores[tile][r] = task.Capped(table, scores[tile][r], g);
        if (row + r < task.visible) largest = fmaxf(largest, scores[tile][r]);
      }
      *reinterpret_cast<float4*>(table.Scores(task.index, g) + row) =
          make_float4(scores[tile][0], scores[tile][1], scores[tile][2], scores[tile][3]);
    }
#pragma unroll
    for (int step = 4; step < 32; step *= 2) largest = fmaxf(largest, __shfl_xor_sync(kAllLanes, largest, step));
    // The same lane in all blocks.
    if (Lane() < 4 && g < group) warp_maxima[Warp()][g] = fmaxf(warp_maxima[Warp()][g], largest);
  });
  PutMaxima(table, task.index, task.visible, warp_maxima);
}

// The rows of the table's listed selections have no score from here on. Grid (tasks, parts of a list).
__global__ __launch_bounds__(kScoreThreads) void LeaveOutListedKernel(TokenBatch batch, SelectCall call,
                                                                      ScoreTable table) {
  const int64_t task = blockIdx.x, token = task / table.heads, head = task % table.heads;
  if (ItemsOf(batch, call, table, task) == 0) return;
  const int32_t* rows = table.listed.Rows(token, head);
  const int count = table.listed.Count(token, head), step = static_cast<int>(gridDim.y) * kScoreThreads;
  for (int i = static_cast<int>(blockIdx.y) * kScoreThreads + static_cast<int>(threadIdx.x); i < count; i += step)
    table.LeaveOut(task, rows[i]);
}

template <class F>
void DispatchScore(const SketchLayout& layout, int64_t group, bool on_tensor_cores, F&& f) {
  if (on_tensor_cores) return f(ScoreInt4Kernel, TensorSharedBytes(layout, group));
  const auto with_type = [&](auto tag) {
    if (group == 1)
      f(ScoreSketchesKernel<decltype(tag)::value, 1>, QueryBytes(layout, 1));
    else
      f(ScoreSketchesKernel<decltype(tag)::value, 4>, QueryBytes(layout, (group + 3) / 4 * 4));
  };
  if (layout.type == SketchType::kBF16) return with_type(std::integral_constant<SketchType, SketchType::kBF16>());
  if (layout.type == SketchType::kInt8) return with_type(std::integral_constant<SketchType, SketchType::kInt8>());
  with_type(std::integral_constant<SketchType, SketchType::kInt4>());
}

// The part of a call for tokens from `first` on.
SelectCall CallFrom(const SelectCall& call, int64_t first) {
  SelectCall part = call;
  part.tail = call.tail.From(first);
  part.late = call.late.From(first);
  return part;
}

// Launches the scoring of a batch's parts.
class SketchScorer {
 public:
  SketchScorer(const CudaContext& context, cudaStream_t stream, const ConstTensor& queries, const SelectCall& call,
               const LayerSketches& sketches)
      : context_(context), stream_(stream), queries_(queries), call_(call), sketches_(sketches) {
    const SketchLayout& layout = sketches.layout;
    CHECK(layout.dims % kSketchDimStep == 0 && layout.dims <= kMaxHeadDim && call.page == 1);
    CHECK(queries.type == DType::kF32 && queries.cols % (layout.kv_heads * layout.dims) == 0);
    CHECK((reinterpret_cast<uintptr_t>(sketches.data) | sketches.head_stride | sketches.slot_stride) % 16 == 0);
    CHECK(layout.block_bytes() % 16 == 0);
    shape_ = {layout.kv_heads, queries.cols / layout.dims / layout.kv_heads, call.max_rows};
    shape_.soft_cap = call.soft_cap;
    if (!call.tail) return;
    CHECK(layout.has_values() && layout.value_dims == call.tail.basis.value_dims);
    CHECK(call.tail.heads == shape_.heads * shape_.group);
    CHECK(layout.mean_dims == call.tail.mean_dims);
    shape_.tail_floats = call.tail.sums_floats();
  }
  const ScoreShape& shape() const { return shape_; }

  void operator()(int64_t first, const TokenBatch& part, const ScoreTable& table) const {
    CHECK(queries_.rows >= first + part.count);
    const ScoreCall call{queries_.as<float>(first), queries_.stride, part, CallFrom(call_, first), sketches_};
    dim3 grid = ScoreGrid(part, shape_);
    // As many blocks as the device holds at a time.
    const size_t most_bytes = static_cast<size_t>(context_.max_shared_bytes()) - kStaticBytes;
    const bool on_tensor_cores = TensorCoresScore(sketches_.layout, shape_.group, most_bytes);
    if (on_tensor_cores)
      grid.y = std::min(grid.y, std::max(1u, static_cast<unsigned>(kTensorBlocks * context_.sms()) / grid.x));
    DispatchScore(sketches_.layout, shape_.group, on_tensor_cores, [&](auto kernel, size_t bytes) {
      AllowShared(context_, kernel, bytes);
      kernel<<<grid, kScoreThreads, bytes, stream_>>>(call, table);
      CUDA_CHECK_LAUNCH();
    });
  }

 private:
  const CudaContext& context_;
  cudaStream_t stream_;
  const ConstTensor& queries_;
  const SelectCall& call_;
  const LayerSketches& sketches_;
  ScoreShape shape_;
};

}  // namespace

void CudaBackend::Select(Queue queue, const ConstTensor& sketch_queries, const TokenBatch& batch,
                         const SelectCall& call, const LayerSketches& sketches, const Selection& selection) {
  const cudaStream_t stream = context_->stream(queue);
  const ZoneClock::Scope timed(context_->zones, CudaZone::kSelection, stream);
  const SketchScorer score(*context_, stream, sketch_queries, call, sketches);
  SelectBy(*context_, stream, batch, call, score.shape(), selection, score,
           [&](int64_t first, const TokenBatch& part, const ScoreTable& table) {
             if (call.tail) SumScoredTails(stream, part, CallFrom(call, first), sketches, table);
           });
}

void CudaBackend::SumTails(Queue queue, const ConstTensor& sketch_queries, const TokenBatch& batch,
                           const SelectCall& call, const LayerSketches& sketches, const Selection& selection) {
  const cudaStream_t stream = context_->stream(queue);
  const ZoneClock::Scope timed(context_->zones, CudaZone::kSelection, stream);
  CHECK(call.tail);
  const SketchScorer score(*context_, stream, sketch_queries, call, sketches);
  ScoreShape shape = score.shape();
  shape.splits = static_cast<bool>(call.late);
  ForScoredParts(*context_, batch, shape, [&](int64_t first, const TokenBatch& part, ScoreTable table) {
    const SelectCall of_part = CallFrom(call, first);
    table.listed = selection.From(first);
    score(first, part, table);
    const dim3 lists(static_cast<unsigned>(part.count * shape.heads), kListParts);
    LeaveOutListedKernel<<<lists, kScoreThreads, 0, stream>>>(part, of_part, table);
    CUDA_CHECK_LAUNCH();
    if (call.late) {
      table.late = true;
      ChooseLateRows(stream, part, of_part, table);
    }
    SumScoredTails(stream, part, of_part, sketches, table);
  });
}

}  // namespace infinigen
