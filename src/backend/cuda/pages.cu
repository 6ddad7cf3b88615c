// AppendBounds and SelectPages: page bounds (kv/index.h) and the scores of pages.
//
// The block of a page's first token in a call (backend/cuda/page_tokens.cuh) processes all tokens of the page and keeps
// the bounds in registers.
#include <cuda_runtime.h>

#include "backend/cuda/context.h"
#include "backend/cuda/cuda_backend.h"
#include "backend/cuda/page_tokens.cuh"
#include "backend/cuda/select.cuh"
#include "kv/index_view.h"

namespace infinigen {
namespace {

constexpr int kPageThreads = 256;
constexpr int kHeads = 4;  // query heads scored per pass over a page

// [2][head_dim]; kv/index_view.h.
__device__ BF16* PageOf(const LayerPageBounds& bounds, int64_t slot, int64_t head, int64_t page) {
  return reinterpret_cast<BF16*>(bounds.data + static_cast<size_t>(slot) * bounds.slot_stride +
                                 static_cast<size_t>(head) * bounds.head_stride) +
         page * bounds.layout.page_numbers();
}

// The least bf16 that is not below a finite number; at most the largest finite bf16.
__device__ BF16 RoundUp(float number) {
  const uint32_t bits = __float_as_uint(number);
  const uint32_t up = (bits & 0x80000000u) != 0 ? bits >> 16 : (bits + 0xffffu) >> 16;
  return {static_cast<uint16_t>(up == 0x7f80u ? 0x7f7fu : up)};
}
__device__ BF16 RoundDown(float number) { return {static_cast<uint16_t>(RoundUp(-number).bits ^ 0x8000u)}; }

// Grid (tokens).
__global__ __launch_bounds__(kPageThreads) void AppendBoundsKernel(TokenBatch batch, Numbers keys,
                                                                   LayerPageBounds bounds) {
  __shared__ PageTokens page;
  if (Warp() == 0) FindTokens(batch, blockIdx.x, page);
  __syncthreads();
  if (page.count == 0) return;
  const int64_t slot = batch.slots[blockIdx.x], index = batch.rows[blockIdx.x] / kPageRows;
  const int64_t d = bounds.layout.head_dim;
  for (int64_t c = threadIdx.x; c < bounds.layout.kv_heads * d; c += kPageThreads) {
    BF16* least = PageOf(bounds, slot, c / d, index) + c % d;
    BF16* largest = least + d;
    BF16 low = *least, high = *largest;
    for (int i = 0; i < page.count; ++i) {
      const int64_t token = page.tokens[i];
      const bool starts = batch.rows[token] % kPageRows == 0;
      const float key = keys(token, c);
      const float number = fabsf(key) <= 3.402823466e38f ? key : 0.0f;
      const BF16 down = RoundDown(number), up = RoundUp(number);
      if (starts || ToFloat(down) < ToFloat(low)) low = down;
      if (starts || ToFloat(up) > ToFloat(high)) high = up;
    }
    *least = low;
    *largest = high;
  }
}

// Grid (tasks, chunks of pages): one warp per page, one lane per dimension, all query heads of the group. Shared memory
// [group][head_dim]: the scaled queries.
__global__ __launch_bounds__(kPageThreads) void ScorePagesKernel(Numbers queries, TokenBatch batch, SelectCall call,
                                                                 float scale, LayerPageBounds bounds,
                                                                 ScoreTable table) {
  extern __shared__ __align__(16) float query[];
  __shared__ float warp_maxima[kPageThreads / 32][kMaxGroup];
  const int64_t task = blockIdx.x, token = task / table.heads, head = task % table.heads;
  const int64_t pages = call.Visible(batch.rows[token]) / call.page, start = blockIdx.y * kFineChunk;
  ClearTally(table, task);
  if (start >= pages) return;
  const int d = static_cast<int>(bounds.layout.head_dim), group = static_cast<int>(table.group);
  for (int i = static_cast<int>(threadIdx.x); i < group * d; i += kPageThreads)
    query[i] = __fmul_rn(queries(token, head * group * d + i), scale);
  for (int g = Lane(); g < group; g += 32) warp_maxima[Warp()][g] = -INFINITY;
  __syncthreads();
  const BF16* first = PageOf(bounds, batch.slots[token], head, 0);
  const int64_t end = min(start + kFineChunk, pages);
  for (int64_t page = start + Warp(); page < end; page += kPageThreads / 32) {
    const BF16* least = first + page * 2 * d;
    for (int g = 0; g < group; g += kHeads) {
      float sums[kHeads] = {};
      for (int i = Lane(); i < d; i += 32) {
        const float low = ToFloat(least[i]), high = ToFloat(least[d + i]);
#pragma unroll
        for (int h = 0; h < kHeads; ++h) {
          const float number = query[min(g + h, group - 1) * d + i];
          sums[h] = __fmaf_rn(number, number > 0 ? high : low, sums[h]);
        }
      }
#pragma unroll
      for (int h = 0; h < kHeads; ++h) {
        if (g + h >= group) break;
        const float sum = table.Capped(WarpSum(sums[h]));
        if (Lane() != 0) continue;
        table.Scores(task, g + h)[page] = sum;
        warp_maxima[Warp()][g + h] = fmaxf(warp_maxima[Warp()][g + h], sum);
      }
    }
  }
  __syncthreads();
  for (int g = static_cast<int>(threadIdx.x); g < group; g += kPageThreads) {
    float best = warp_maxima[0][g];
    for (int w = 1; w < kPageThreads / 32; ++w) best = fmaxf(best, warp_maxima[w][g]);
    table.Maxima(task, g)[blockIdx.y] = best;
  }
}

}  // namespace

void CudaBackend::AppendBounds(Queue queue, const TokenBatch& batch, const ConstTensor& keys,
                               const LayerPageBounds& bounds) {
  const ZoneClock::Scope timed(context_->zones, CudaZone::kSelection, context_->stream(queue));
  CHECK(keys.cols == bounds.layout.kv_heads * bounds.layout.head_dim && keys.rows >= batch.count);
  if (batch.count == 0) return;
  AppendBoundsKernel<<<static_cast<unsigned>(batch.count), kPageThreads, 0, context_->stream(queue)>>>(
      batch, Numbers(keys), bounds);
  CUDA_CHECK_LAUNCH();
}

void CudaBackend::SelectPages(Queue queue, const ConstTensor& queries, const TokenBatch& batch, const SelectCall& call,
                              const AttentionShape& shape, const LayerPageBounds& bounds, const Selection& selection) {
  const ZoneClock::Scope timed(context_->zones, CudaZone::kSelection, context_->stream(queue));
  const PageBoundsLayout& layout = bounds.layout;
  CHECK(call.page == kPageRows && shape.heads % layout.kv_heads == 0 && layout.head_dim <= kMaxHeadDim);
  CHECK(queries.cols == shape.heads * layout.head_dim && queries.rows >= batch.count);
  const ScoreShape scores{layout.kv_heads, shape.heads / layout.kv_heads, (call.max_rows + kPageRows - 1) / kPageRows,
                          kFineChunk};
  const cudaStream_t stream = context_->stream(queue);
  const size_t bytes = static_cast<size_t>(scores.group * layout.head_dim) * sizeof(float);
  AllowShared(*context_, ScorePagesKernel, bytes);
  const auto score = [&](int64_t first, const TokenBatch& part, const ScoreTable& table) {
    ScorePagesKernel<<<ScoreGrid(part, scores), kPageThreads, bytes, stream>>>(Numbers(queries, first), part, call,
                                                                               shape.scale, bounds, table);
    CUDA_CHECK_LAUNCH();
  };
  SelectBy(*context_, stream, batch, call, scores, selection, score);
}

}  // namespace infinigen
