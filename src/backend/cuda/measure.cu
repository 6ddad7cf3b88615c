// SelectExact, MeasureMass and SumAttention, which need true scores. Every key is read once, for all query heads of its
// group: one warp per row, lanes over the head's dimensions, several rows in flight. The scores go to the table that
// selections are made from (select.cuh).
#include <cuda_runtime.h>

#include <type_traits>

#include "backend/cuda/context.h"
#include "backend/cuda/cuda_backend.h"
#include "backend/cuda/entry_number.cuh"
#include "backend/cuda/select.cuh"

namespace infinigen {
namespace {

constexpr int kMeasureThreads = 256;
constexpr int kMeasureWarps = kMeasureThreads / 32;

// Grid (tasks, chunks). A lane holds kStrips numbers of each of its kRows keys. Shared memory: queries
// [group][head_dim].
template <StoreType kType, int kStrips>
__global__ __launch_bounds__(kMeasureThreads) void ScoreEntriesKernel(Numbers queries, TokenBatch batch,
                                                                      SelectCall call, float scale,
                                                                      LayerEntries entries, ScoreTable table) {
  constexpr int kRows = kStrips <= 4 ? 4 : 1;
  extern __shared__ __align__(16) float query[];
  __shared__ float warp_maxima[kMeasureWarps][kMaxGroup];
  const int64_t task = blockIdx.x, token = task / table.heads, head = task % table.heads, slot = batch.slots[token];
  const int64_t visible = call.Visible(batch.rows[token]), start = blockIdx.y * kFineChunk;
  ClearTally(table, task);
  if (start >= visible) return;
  const int d = static_cast<int>(entries.layout.head_dim), group = static_cast<int>(table.group);
  for (int i = static_cast<int>(threadIdx.x); i < group * d; i += kMeasureThreads)
    query[i] = queries(token, head * group * d + i);
  for (int g = Lane(); g < group; g += 32) warp_maxima[Warp()][g] = -INFINITY;
  __syncthreads();
  const int64_t end = min(start + kFineChunk, visible);
  for (int64_t first = start + Warp() * kRows; first < end; first += kMeasureWarps * kRows) {
    float keys[kRows][kStrips];
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const std::byte* key = entries.Entry(slot, head, min(first + r, end - 1));
#pragma unroll
      for (int strip = 0; strip < kStrips; ++strip) {
        const int i = strip * 32 + Lane();
        keys[r][strip] = i < d ? EntryNumber<kType>(key, d, i) : 0.0f;
      }
    }
    for (int g = 0; g < group; ++g) {
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        float sum = 0;
#pragma unroll
        for (int strip = 0; strip < kStrips; ++strip) {
          const int i = strip * 32 + Lane();
          if (i < d) sum = __fmaf_rn(query[g * d + i], keys[r][strip], sum);
        }
        const float score = table.Capped(__fmul_rn(WarpSum(sum), scale));
        if (Lane() != 0 || first + r >= end) continue;
        table.Scores(task, g)[first + r] = score;
        warp_maxima[Warp()][g] = fmaxf(warp_maxima[Warp()][g], score);
      }
    }
  }
  __syncthreads();
  for (int g = static_cast<int>(threadIdx.x); g < group; g += kMeasureThreads) {
    float best = warp_maxima[0][g];
    for (int w = 1; w < kMeasureWarps; ++w) best = fmaxf(best, warp_maxima[w][g]);
    table.Maxima(task, g)[blockIdx.y] = best;
  }
}

struct EntryScores {
  const CudaContext& context;
  cudaStream_t stream;
  const ConstTensor& queries;
  const AttentionShape& shape;
  const LayerEntries& entries;

  ScoreShape Shape(int64_t rows) const {
    const EntryLayout& layout = entries.layout;
    CHECK(shape.heads % layout.kv_heads == 0 && layout.head_dim <= kMaxHeadDim);
    CHECK(queries.cols == shape.heads * layout.head_dim);
    return {.heads = layout.kv_heads,
            .group = shape.heads / layout.kv_heads,
            .items = rows,
            .chunk = kFineChunk,
            .soft_cap = shape.soft_cap};
  }
  // Scores the tokens of `part`, which begins at token `first`.
  void Launch(int64_t first, const TokenBatch& part, const SelectCall& call, const ScoreTable& table) const {
    CHECK(queries.rows >= first + part.count);
    switch (entries.layout.key_type()) {
      case StoreType::kF32:
        return LaunchFor<StoreType::kF32>(first, part, call, table);
      case StoreType::kF16:
        return LaunchFor<StoreType::kF16>(first, part, call, table);
      case StoreType::kBF16:
        return LaunchFor<StoreType::kBF16>(first, part, call, table);
      case StoreType::kInt8:
        return LaunchFor<StoreType::kInt8>(first, part, call, table);
      case StoreType::kInt6:
        return LaunchFor<StoreType::kInt6>(first, part, call, table);
      case StoreType::kInt4:  // not a type of keys
        CHECK(false);
    }
  }

 private:
  template <StoreType kType>
  void LaunchFor(int64_t first, const TokenBatch& part, const SelectCall& call, const ScoreTable& table) const {
    const auto kernel = entries.layout.head_dim <= 128 ? ScoreEntriesKernel<kType, 4>
                                                       : ScoreEntriesKernel<kType, static_cast<int>(kMaxHeadDim / 32)>;
    const size_t bytes = static_cast<size_t>(table.group * entries.layout.head_dim) * sizeof(float);
    AllowShared(context, kernel, bytes);
    kernel<<<ScoreGrid(part, table), kMeasureThreads, bytes, stream>>>(Numbers(queries, first), part, call, shape.scale,
                                                                       entries, table);
    CUDA_CHECK_LAUNCH();
  }
};

// ---- Sums of weights

struct SumScratch {
  double warps[kMeasureWarps];
};
// Sums in a fixed order; every thread gets the result.
__device__ double BlockSumOf(double x, SumScratch& s) {
  for (int step = 16; step > 0; step /= 2) x += __shfl_xor_sync(kAllLanes, x, step);
  if (Lane() == 0) s.warps[Warp()] = x;
  __syncthreads();
  double sum = 0;
  for (int w = 0; w < kMeasureWarps; ++w) sum += s.warps[w];
  __syncthreads();
  return sum;
}

// Σ e^(score − maximum) over rows [0, rows) of query head g; sets `largest` to the maximum.
__device__ double WeightSum(const ScoreTable& table, int64_t task, int64_t g, int64_t rows, float& largest,
                            SumScratch& s) {
  largest = HeadMaximum(table, task, g, rows);
  const float* scores = table.Scores(task, g);
  double sum = 0;
  for (int64_t row = threadIdx.x; row < rows; row += kMeasureThreads)
    sum += static_cast<double>(expf(scores[row] - largest));
  return BlockSumOf(sum, s);
}

// Grid (tasks): shares [tasks][group] of the attention that falls on the selected rows.
__global__ __launch_bounds__(kMeasureThreads) void ShareInsideKernel(TokenBatch batch, ScoreTable table,
                                                                     Selection selection, double* shares) {
  __shared__ SumScratch scratch;
  const int64_t task = blockIdx.x, token = task / table.heads, head = task % table.heads;
  const int32_t* rows = selection.Rows(token, head);
  const int64_t count = selection.Count(token, head);
  for (int64_t g = 0; g < table.group; ++g) {
    float largest;
    const double total = WeightSum(table, task, g, batch.rows[token] + 1, largest, scratch);
    const float* scores = table.Scores(task, g);
    double inside = 0;
    for (int64_t i = threadIdx.x; i < count; i += kMeasureThreads)
      inside += static_cast<double>(expf(scores[rows[i]] - largest));
    const double share = BlockSumOf(inside, scratch) / total;
    // A NaN share counts as 0.
    if (threadIdx.x == 0) shares[task * table.group + g] = share > 0 ? fmin(share, 1.0) : 0.0;
  }
}

// One block: sums in a fixed order.
__global__ __launch_bounds__(kMeasureThreads) void AddMassKernel(const double* shares, int64_t count,
                                                                 MassTotals* mass) {
  __shared__ SumScratch scratch;
  using Word = unsigned long long;
  double sum = 0;
  for (int64_t i = threadIdx.x; i < count; i += kMeasureThreads) {
    sum += shares[i];
    atomicAdd(reinterpret_cast<Word*>(&mass->bins[static_cast<int>(shares[i] * MassTotals::kBins)]), Word{1});
  }
  sum = BlockSumOf(sum, scratch);
  if (threadIdx.x == 0) {
    mass->count += static_cast<uint64_t>(count);
    mass->sum += sum;
  }
}

// Grid (tasks). The block of a sequence's first token in this part adds for all of the sequence's tokens, in order.
__global__ __launch_bounds__(kMeasureThreads) void AddWeightsKernel(TokenBatch batch, ScoreTable table,
                                                                    EvictionState retained) {
  __shared__ SumScratch scratch;
  __shared__ float maxima[kMaxGroup], factors[kMaxGroup];
  const int64_t first = blockIdx.x / table.heads, head = blockIdx.x % table.heads, slot = batch.slots[first];
  for (int64_t t = 0; t < first; ++t)
    if (batch.slots[t] == slot) return;
  float* priorities = retained.Priorities(slot, head);
  for (int64_t token = first; token < batch.count; ++token) {
    if (batch.slots[token] != slot) continue;
    const int64_t task = token * table.heads + head, rows = batch.rows[token] + 1;
    for (int64_t g = 0; g < table.group; ++g) {
      float largest;
      const double total = WeightSum(table, task, g, rows, largest, scratch);
      if (threadIdx.x == 0) {
        maxima[g] = largest;
        factors[g] = static_cast<float>(1.0 / total);
      }
    }
    __syncthreads();
    for (int64_t row = threadIdx.x; row < rows; row += kMeasureThreads) {
      float priority = priorities[row];
      for (int64_t g = 0; g < table.group; ++g) priority += expf(table.Scores(task, g)[row] - maxima[g]) * factors[g];
      priorities[row] = priority;
    }
    __syncthreads();
  }
}

}  // namespace

void CudaBackend::SelectExact(Queue queue, const ConstTensor& queries, const TokenBatch& batch, const SelectCall& call,
                              const AttentionShape& shape, const LayerEntries& entries, const Selection& selection) {
  const ZoneClock::Scope timed(context_->zones, CudaZone::kSelection, context_->stream(queue));
  CHECK(call.page == 1);
  const EntryScores scores{*context_, context_->stream(queue), queries, shape, entries};
  SelectBy(
      *context_, scores.stream, batch, call, scores.Shape(call.max_rows), selection,
      [&](int64_t first, const TokenBatch& part, const ScoreTable& table) { scores.Launch(first, part, call, table); });
}

void CudaBackend::MeasureMass(Queue queue, const ConstTensor& queries, const TokenBatch& batch,
                              const Selection& selection, const AttentionShape& shape, const LayerEntries& entries,
                              MassTotals* mass) {
  const ZoneClock::Scope timed(context_->zones, CudaZone::kSelection, context_->stream(queue));
  CHECK(selection.kv_heads == entries.layout.kv_heads);
  const EntryScores scores{*context_, context_->stream(queue), queries, shape, entries};
  const ScoreShape all = scores.Shape(entries.extents_per_slot * kExtentTokens);
  ForScoredParts(*context_, batch, all, [&](int64_t first, const TokenBatch& part, const ScoreTable& table) {
    scores.Launch(first, part, {}, table);
    Selection selected = selection;
    selected.rows += first * all.heads * selection.capacity;
    selected.counts += first * all.heads;
    auto* shares = reinterpret_cast<double*>(table.keys);  // the memory of the keys, which only selections use
    const int64_t tasks = part.count * all.heads;
    ShareInsideKernel<<<static_cast<unsigned>(tasks), kMeasureThreads, 0, scores.stream>>>(part, table, selected,
                                                                                           shares);
    CUDA_CHECK_LAUNCH();
    AddMassKernel<<<1, kMeasureThreads, 0, scores.stream>>>(shares, tasks * all.group, mass);
    CUDA_CHECK_LAUNCH();
  });
}

void CudaBackend::SumAttention(Queue queue, const ConstTensor& queries, const TokenBatch& batch,
                               const AttentionShape& shape, const LayerCache& cache) {
  const ZoneClock::Scope timed(context_->zones, CudaZone::kSelection, context_->stream(queue));
  const EntryScores scores{*context_, context_->stream(queue), queries, shape, cache.entries};
  const ScoreShape all = scores.Shape(cache.retained.capacity);
  ForScoredParts(*context_, batch, all, [&](int64_t first, const TokenBatch& part, const ScoreTable& table) {
    scores.Launch(first, part, {}, table);
    AddWeightsKernel<<<static_cast<unsigned>(part.count * all.heads), kMeasureThreads, 0, scores.stream>>>(
        part, table, cache.retained);
    CUDA_CHECK_LAUNCH();
  });
}

}  // namespace infinigen
