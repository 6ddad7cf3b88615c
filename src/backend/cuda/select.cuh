// Selection in two moves: scores of all visible items of every (token, KV head) go into scratch, then rows are chosen
// from there. Private to backend/cuda; kv/selection.h defines what is chosen.
//
// An item is a row, or a page where rows come in pages. Its relative score needs the maxima of all query heads over all
// items, so scores pass through memory once: 4 bytes per item and query head, written and read, mostly within L2.
// Reading sketches twice instead would cost more bytes (42 an item for 40 int8 numbers) and twice the arithmetic.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "backend/backend.h"
#include "backend/cuda/check.h"
#include "backend/cuda/context.h"
#include "backend/cuda/radix_select.cuh"
#include "base/check.h"

namespace infinigen {

// Items that one block scores; the maxima are kept per chunk.
inline constexpr int64_t kScoreChunk = 1024;
inline constexpr int64_t kMaxGroup = 128;
// Scores of more tokens are made some tokens at a time, so that they stay near L2 and scratch stays small.
inline constexpr int64_t kScoreBytes = int64_t{64} << 20;

// A matrix of activations as kernels take it.
struct Numbers {
  const std::byte* data;
  DType type;
  int64_t stride;

  Numbers(const ConstTensor& t)
      : data(t.data), type(t.type), stride(t.stride) {}  // NOLINT(google-explicit-constructor)
  __device__ float operator()(int64_t row, int64_t col) const {
    const int64_t at = row * stride + col;
    if (type == DType::kF32) return reinterpret_cast<const float*>(data)[at];
    if (type == DType::kF16) return AsFloat(reinterpret_cast<const __half*>(data)[at]);
    return AsFloat(reinterpret_cast<const __nv_bfloat16*>(data)[at]);
  }
};

// The scores of some tokens; a task is a (token, KV head), numbered token · heads + head.
struct ScoreTable {
  int64_t heads = 0, group = 0;
  int64_t stride = 0;          // items with room, a multiple of kScoreChunk
  float* scores = nullptr;     // [tasks][group][stride]
  float* maxima = nullptr;     // [tasks][group][chunks]
  uint32_t* keys = nullptr;    // [tasks][stride], see select.cu
  int32_t* passing = nullptr;  // [tasks]

  __host__ __device__ int64_t chunks() const { return stride / kScoreChunk; }
  __device__ float* Scores(int64_t task, int64_t g) const { return scores + (task * group + g) * stride; }
  __device__ float* Maxima(int64_t task, int64_t g) const { return maxima + (task * group + g) * chunks(); }

  static int64_t Stride(int64_t items) {
    return (std::max<int64_t>(items, 1) + kScoreChunk - 1) / kScoreChunk * kScoreChunk;
  }
  static size_t TokenBytes(int64_t items, int64_t heads, int64_t group) {
    const int64_t stride = Stride(items), chunks = stride / kScoreChunk;
    return static_cast<size_t>(heads * (group * (stride + chunks) + stride + 1)) * 4;
  }
  // How many tokens are scored at a time.
  static int64_t Tokens(int64_t items, int64_t heads, int64_t group) {
    return std::max<int64_t>(1, kScoreBytes / static_cast<int64_t>(TokenBytes(items, heads, group)));
  }
  static ScoreTable Carve(std::byte* memory, int64_t tokens, int64_t items, int64_t heads, int64_t group) {
    ScoreTable table{.heads = heads, .group = group, .stride = Stride(items)};
    const int64_t tasks = tokens * heads;
    table.scores = reinterpret_cast<float*>(memory);
    table.keys = reinterpret_cast<uint32_t*>(table.scores + tasks * group * table.stride);
    table.maxima = reinterpret_cast<float*>(table.keys + tasks * table.stride);
    table.passing = reinterpret_cast<int32_t*>(table.maxima + tasks * group * table.chunks());
    return table;
  }
};

// The largest score of query head g, from those of the chunks; by one warp, for every lane.
__device__ inline float HeadMaximum(const ScoreTable& table, int64_t task, int64_t g, int64_t items) {
  float largest = -INFINITY;
  for (int64_t chunk = Lane(); chunk * kScoreChunk < items; chunk += 32)
    largest = fmaxf(largest, table.Maxima(task, g)[chunk]);
  return WarpMax(largest);
}

// Scratch of steps of up to `max_batch` tokens over sequences of up to `max_tokens` rows.
inline size_t ScoreScratchBytes(int64_t max_tokens, int64_t max_batch, int64_t heads, int64_t kv_heads) {
  const int64_t group = heads / kv_heads;
  const int64_t tokens = std::min(max_batch, ScoreTable::Tokens(max_tokens, kv_heads, group));
  return static_cast<size_t>(tokens) * ScoreTable::TokenBytes(max_tokens, kv_heads, group);
}

// Calls f(first token, the tokens of the part, table) for parts of the batch; the table has room for `items` each.
template <class F>
void ForScoredParts(CudaContext& context, const TokenBatch& batch, int64_t items, int64_t heads, int64_t group, F&& f) {
  CHECK(group > 0 && group <= kMaxGroup);
  if (batch.count == 0) return;
  const int64_t together = std::min(batch.count, ScoreTable::Tokens(items, heads, group));
  std::byte* memory = context.Scratch(static_cast<size_t>(together) * ScoreTable::TokenBytes(items, heads, group));
  for (int64_t first = 0; first < batch.count; first += together) {
    const int64_t count = std::min(together, batch.count - first);
    f(first, batch.Range(first, count), ScoreTable::Carve(memory, count, items, heads, group));
  }
}

// Chooses the rows of every task from the scores of its items, and adds to the totals. select.cu
void ChooseRows(const CudaContext& context, cudaStream_t stream, const TokenBatch& batch, const SelectCall& call,
                const ScoreTable& table, const Selection& selection);

// Selects for all tokens of a batch; score(first token, tokens, table) launches what makes scores and maxima.
template <class Score>
void SelectBy(CudaContext& context, cudaStream_t stream, const TokenBatch& batch, const SelectCall& call, int64_t heads,
              int64_t group, const Selection& selection, Score&& score) {
  CHECK(selection.kv_heads == heads && call.page > 0);
  const int64_t items = (call.max_rows + call.page - 1) / call.page;
  ForScoredParts(context, batch, items, heads, group,
                 [&](int64_t first, const TokenBatch& part, const ScoreTable& table) {
                   score(first, part, table);
                   Selection chosen = selection;
                   chosen.rows += first * heads * selection.capacity;
                   chosen.counts += first * heads;
                   ChooseRows(context, stream, part, call, table, chosen);
                 });
}

}  // namespace infinigen
