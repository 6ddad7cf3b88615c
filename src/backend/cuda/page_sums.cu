// AppendPageSums and SelectPageMeans: page sums (kv/page_sums.h) and the scores of pages.
//
// One thread adds the keys of a dimension in row order, so sums have the bits of the host form. Scores are summed over
// lanes: they differ from the host's by rounding, and do not depend on how tokens are divided into calls.
#include <cuda_runtime.h>

#include "backend/cuda/context.h"
#include "backend/cuda/cuda_backend.h"
#include "backend/cuda/page_tokens.cuh"
#include "backend/cuda/select.cuh"
#include "kv/page_sums_view.h"

namespace infinigen {
namespace {

constexpr int kMeanThreads = 256;
constexpr int kMeanWarps = kMeanThreads / 32;
constexpr int kMeanHeads = 4;  // query heads that are scored together, so that a page is read once for four heads

// [head_dim]; the next page follows. kv/page_sums_view.h.
__device__ float* PageSumOf(const LayerPageSums& sums, int64_t slot, int64_t head, int64_t page) {
  return reinterpret_cast<float*>(sums.index.Head(slot, head)) + page * sums.layout.head_dim;
}

// Grid (tokens); a thread per number of all KV heads. Blocks of tokens that are not the first of their page leave.
__global__ __launch_bounds__(kMeanThreads) void AppendPageSumsKernel(TokenBatch batch, Numbers keys,
                                                                     LayerPageSums sums) {
  __shared__ PageTokens page;
  if (Warp() == 0) FindTokens(batch, blockIdx.x, page);
  __syncthreads();
  if (page.count == 0) return;
  const int64_t slot = batch.slots[blockIdx.x], index = batch.rows[blockIdx.x] / kPageRows;
  const int64_t d = sums.layout.head_dim;
  for (int64_t c = threadIdx.x; c < sums.layout.kv_heads * d; c += kMeanThreads) {
    float* total = PageSumOf(sums, slot, c / d, index) + c % d;
    float sum = *total;
    for (int i = 0; i < page.count; ++i) {
      const int64_t token = page.tokens[i];
      const float key = keys(token, c);
      const float number = isfinite(key) ? key : 0.0f;
      sum = batch.rows[token] % kPageRows == 0 ? number : __fadd_rn(sum, number);
    }
    *total = sum;
  }
}

// By one warp, for every lane: what a page scores with query heads [first, first + kMeanHeads) of a group. Past the
// group's end the last head stands in. query [group][d], sum [d].
__device__ void ScoreMean(const float* sum, const float* query, int d, int first, int group,
                          float (&scores)[kMeanHeads]) {
#pragma unroll
  for (int h = 0; h < kMeanHeads; ++h) scores[h] = 0;
  for (int i = Lane(); i < d; i += 32) {
    const float number = sum[i];
#pragma unroll
    for (int h = 0; h < kMeanHeads; ++h)
      scores[h] = __fmaf_rn(query[min(first + h, group - 1) * d + i], number, scores[h]);
  }
#pragma unroll
  for (int h = 0; h < kMeanHeads; ++h) scores[h] = WarpSum(scores[h]);
}

// Grid (tasks, chunks of pages): a warp per page, a lane per dimension. Shared memory [group][head_dim]: the queries
// times `scale`, in which the division by 16 is.
__global__ __launch_bounds__(kMeanThreads) void ScorePageMeansKernel(Numbers queries, TokenBatch batch, SelectCall call,
                                                                     float scale, LayerPageSums sums,
                                                                     ScoreTable table) {
  extern __shared__ __align__(16) float scaled_query[];
  __shared__ float maxima[kMeanWarps][kMaxGroup];
  const int64_t task = blockIdx.x, token = task / table.heads, head = task % table.heads;
  const int64_t pages = call.Visible(batch.rows[token]) / call.page, start = blockIdx.y * kFineChunk;
  ClearTally(table, task);
  if (start >= pages) return;
  const int d = static_cast<int>(sums.layout.head_dim), group = static_cast<int>(table.group);
  for (int i = static_cast<int>(threadIdx.x); i < group * d; i += kMeanThreads)
    scaled_query[i] = __fmul_rn(queries(token, head * group * d + i), scale);
  for (int g = Lane(); g < group; g += 32) maxima[Warp()][g] = -INFINITY;
  __syncthreads();
  const float* first = PageSumOf(sums, batch.slots[token], head, 0);
  const int64_t end = min(start + kFineChunk, pages);
  for (int64_t page = start + Warp(); page < end; page += kMeanWarps) {
    for (int g = 0; g < group; g += kMeanHeads) {
      float scores[kMeanHeads];
      ScoreMean(first + page * d, scaled_query, d, g, group, scores);
      if (Lane() != 0) continue;
#pragma unroll
      for (int h = 0; h < kMeanHeads; ++h) {
        if (g + h >= group) break;
        const float score = table.Capped(scores[h]);
        table.Scores(task, g + h)[page] = score;
        maxima[Warp()][g + h] = fmaxf(maxima[Warp()][g + h], score);
      }
    }
  }
  __syncthreads();
  for (int g = static_cast<int>(threadIdx.x); g < group; g += kMeanThreads) {
    float best = maxima[0][g];
    for (int w = 1; w < kMeanWarps; ++w) best = fmaxf(best, maxima[w][g]);
    table.Maxima(task, g)[blockIdx.y] = best;
  }
}

}  // namespace

void CudaBackend::AppendPageSums(Queue queue, const TokenBatch& batch, const ConstTensor& keys,
                                 const LayerPageSums& sums) {
  const cudaStream_t stream = context_->stream(queue);
  const ZoneClock::Scope timed(context_->zones, CudaZone::kSelection, stream);
  CHECK(keys.cols == sums.layout.kv_heads * sums.layout.head_dim && keys.rows >= batch.count);
  if (batch.count == 0) return;
  AppendPageSumsKernel<<<static_cast<unsigned>(batch.count), kMeanThreads, 0, stream>>>(batch, Numbers(keys), sums);
  CUDA_CHECK_LAUNCH();
}

void CudaBackend::SelectPageMeans(Queue queue, const ConstTensor& queries, const TokenBatch& batch,
                                  const SelectCall& call, const AttentionShape& shape, const LayerPageSums& sums,
                                  const Selection& selection) {
  const cudaStream_t stream = context_->stream(queue);
  const ZoneClock::Scope timed(context_->zones, CudaZone::kSelection, stream);
  const PageSumsLayout& layout = sums.layout;
  CHECK(call.page == kPageRows && shape.heads % layout.kv_heads == 0 && layout.head_dim <= kMaxHeadDim);
  CHECK(queries.cols == shape.heads * layout.head_dim && queries.rows >= batch.count);
  const ScoreShape scores{layout.kv_heads, shape.heads / layout.kv_heads, (call.max_rows + kPageRows - 1) / kPageRows,
                          kFineChunk};
  const float scale = shape.scale / static_cast<float>(kPageRows);
  const size_t bytes = static_cast<size_t>(scores.group * layout.head_dim) * sizeof(float);
  AllowShared(*context_, ScorePageMeansKernel, bytes);
  const auto score = [&](int64_t first, const TokenBatch& part, const ScoreTable& table) {
    ScorePageMeansKernel<<<ScoreGrid(part, scores), kMeanThreads, bytes, stream>>>(Numbers(queries, first), part, call,
                                                                                   scale, sums, table);
    CUDA_CHECK_LAUNCH();
  };
  SelectBy(*context_, stream, batch, call, scores, selection, score);
}

}  // namespace infinigen
