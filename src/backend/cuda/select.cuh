// Selection in two steps: scores of all visible items of every (token, KV head) go to scratch, then rows are chosen
// from them. kv/select.h defines the choice. Private to backend/cuda.
//
// An item is a row, or a page if rows are selected by pages. A relative score needs the maxima of all query heads over
// all items, so scores pass through memory once: 4 bytes per item and query head, written and read, mostly in L2.
// Reading the sketches twice instead would cost more bytes (42 per item for 40 int8 numbers) and twice the arithmetic.
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

// Items that one block scores: kScoreChunk for sketches, kFineChunk if an item takes more work.
inline constexpr int64_t kScoreChunk = 1024;
inline constexpr int64_t kFineChunk = 64;
inline constexpr int64_t kMaxGroup = 128;
// Batches with more scores than this are processed some tokens at a time, so that scores stay in L2 and scratch stays
// small.
inline constexpr int64_t kScoreBytes = int64_t{64} << 20;

// A matrix of activations as kernels use it.
struct Numbers {
  const std::byte* data;
  DType type;
  int64_t stride;

  explicit Numbers(const ConstTensor& t, int64_t first_row = 0)
      : data(t.row(first_row)), type(t.type), stride(t.stride) {}
  __device__ float operator()(int64_t row, int64_t col) const {
    const int64_t at = row * stride + col;
    if (type == DType::kF32) return reinterpret_cast<const float*>(data)[at];
    if (type == DType::kF16) return AsFloat(reinterpret_cast<const __half*>(data)[at]);
    return AsFloat(reinterpret_cast<const __nv_bfloat16*>(data)[at]);
  }
};

// Shared state of the blocks of one task that choose together (choose_split.cu); zero before they start.
struct alignas(16) ChoiceTally {
  uint32_t bins[kRadixBins];  // candidates by key
  uint32_t passing;           // items that pass the threshold, or rows that hold the rule's mass
  uint32_t extras;            // rows attended regardless of score, if they have to be counted
  uint32_t listed, arrived;   // items on the edge's list; blocks that have added theirs
  RadixCut cut;
};

// Size of the scores: per token `heads` KV heads with `group` query heads each, and up to `items` items.
struct ScoreShape {
  int64_t heads = 0, group = 0, items = 0;
  int64_t chunk = kScoreChunk;  // items that one block scores; maxima are kept per chunk
  bool splits = false;          // several blocks share the choice of a task
  float soft_cap = 0;           // of scores; 0: none
  int64_t tail_floats = 0;      // numbers of a tail's sums; 0: no tail is summed from the scores

  __device__ float Capped(float score) const { return soft_cap > 0 ? SoftCapped(score, soft_cap) : score; }
  int64_t chunks() const { return (items + chunk - 1) / chunk; }
  int64_t stride() const { return chunks() * chunk; }
  // Scores, keys and maxima; with `splits` also the shared state of the blocks; with a tail, its sums by chunks, and
  // the edge, which then cannot take the place of the scores.
  size_t token_bytes() const {
    const int64_t tails = tail_floats > 0 ? group * chunks() * tail_floats + stride() : 0;
    const int64_t numbers = group * (stride() + chunks()) + stride() + (splits ? chunks() : 0) + tails;
    return static_cast<size_t>(heads) *
           (static_cast<size_t>(numbers) * sizeof(float) + (splits ? sizeof(ChoiceTally) : 0));
  }
  // Tokens that are scored at a time.
  int64_t tokens() const { return std::max<int64_t>(1, kScoreBytes / static_cast<int64_t>(token_bytes())); }
};

// The scores of some tokens. A task is one (token, KV head), numbered token · heads + head.
struct ScoreTable : ScoreShape {
  // `memory` holds token_bytes() per token.
  ScoreTable(const ScoreShape& shape, std::byte* memory, int64_t tokens)
      : ScoreShape(shape), row_stride(shape.stride()), chunk_count(shape.chunks()) {
    const int64_t tasks = tokens * heads;
    scores = reinterpret_cast<float*>(memory);
    keys = reinterpret_cast<uint32_t*>(scores + tasks * group * row_stride);
    tallies = reinterpret_cast<ChoiceTally*>(keys + tasks * row_stride);
    offsets = reinterpret_cast<uint32_t*>(tallies + (splits ? tasks : 0));
    maxima = reinterpret_cast<float*>(offsets + (splits ? tasks * chunk_count : 0));
    parts = maxima + tasks * group * chunk_count;
    edges = reinterpret_cast<uint32_t*>(parts + tasks * group * chunk_count * tail_floats);
  }
  __device__ float* Scores(int64_t task, int64_t g) const { return scores + (task * group + g) * row_stride; }
  __device__ float* Maxima(int64_t task, int64_t g) const { return maxima + (task * group + g) * chunk_count; }
  __device__ uint32_t* Keys(int64_t task) const { return keys + task * row_stride; }
  __device__ uint32_t* Offsets(int64_t task) const { return offsets + task * chunk_count; }
  // Without a tail, reuses the memory of the task's scores, which are not needed once the keys exist.
  __device__ uint32_t* Edge(int64_t task) const {
    return tail_floats > 0 ? edges + task * row_stride : reinterpret_cast<uint32_t*>(Scores(task, 0));
  }
  __device__ float* Part(int64_t task, int64_t g, int64_t chunk_index) const {
    return parts + ((task * group + g) * chunk_count + chunk_index) * tail_floats;
  }
  // Leaves a row out of everything that is computed from the scores later.
  __device__ void LeaveOut(int64_t task, int64_t row) const {
    for (int g = 0; g < group; ++g) Scores(task, g)[row] = __uint_as_float(0x7fc00000u);
  }

  int64_t row_stride, chunk_count;  // divided once, on the host
  float* scores;                    // [tasks][group][stride]
  uint32_t* keys;                   // [tasks][stride], see choose.cuh
  ChoiceTally* tallies;             // [tasks]
  uint32_t* offsets;                // [tasks][chunks], see choose_split.cu
  float* maxima;                    // [tasks][group][chunks]
  float* parts;                     // [tasks][group][chunks][tail_floats], see tail.cu
  uint32_t* edges;                  // [tasks][stride], with a tail
  // A selection that exists already, by a guess: its rows have no score, though they count for the maxima. If its rule
  // has no tail, or everything is selected, the task has no items at all. Null: there is none.
  Selection listed;
  bool late = false;  // late rows are chosen, among the rows that are not listed
};

// Called by the block that scores the first chunk of a task, even if there is nothing to score.
__device__ inline void ClearTally(const ScoreTable& table, int64_t task) {
  if (!table.splits || blockIdx.y != 0) return;
  auto* words = reinterpret_cast<uint4*>(&table.tallies[task]);
  for (int i = static_cast<int>(threadIdx.x); i < static_cast<int>(sizeof(ChoiceTally) / sizeof(uint4));
       i += static_cast<int>(blockDim.x))
    words[i] = make_uint4(0, 0, 0, 0);
}

// The largest score of query head g over all chunks; called by one warp, every lane gets it.
__device__ inline float HeadMaximum(const ScoreTable& table, int64_t task, int64_t g, int64_t items) {
  float largest = -INFINITY;
  for (int64_t i = Lane(); i * table.chunk < items; i += 32) largest = fmaxf(largest, table.Maxima(task, g)[i]);
  return WarpMax(largest);
}

// Scratch for Select and the other operations that score, in steps of up to `max_batch` tokens over sequences of up to
// `max_tokens` rows. Shorter sequences need no more: more of their tokens are scored at a time, but at most
// kScoreBytes.
inline size_t ScoreScratchBytes(int64_t max_tokens, int64_t max_batch, int64_t heads, int64_t kv_heads) {
  const int64_t rows = (max_tokens + kExtentTokens - 1) / kExtentTokens * kExtentTokens;
  const auto bytes = [&](int64_t chunk) {
    ScoreShape shape{kv_heads, heads / kv_heads, rows, chunk, /*splits=*/true};
    shape.tail_floats = 2 + kMostValueDims + kMaxHeadDim;
    const size_t all = static_cast<size_t>(max_batch) * shape.token_bytes();
    return std::max(shape.token_bytes(), std::min(all, static_cast<size_t>(kScoreBytes)));
  };
  return std::max(bytes(kScoreChunk), bytes(kFineChunk));
}

// Scratch of SumColumns: the norms of a run's queries.
inline size_t ColumnScratchBytes(int64_t run_tokens, int64_t heads) {
  return static_cast<size_t>(run_tokens * heads) * 2 * sizeof(float);
}

// Calls f(first token, tokens of the part, table) for each part of the batch.
template <class F>
void ForScoredParts(CudaContext& context, const TokenBatch& batch, const ScoreShape& shape, F&& f) {
  CHECK(shape.group > 0 && shape.group <= kMaxGroup && shape.items > 0);
  if (batch.count == 0) return;
  const int64_t together = std::min(batch.count, shape.tokens());
  std::byte* memory = context.Scratch(static_cast<size_t>(together) * shape.token_bytes());
  for (int64_t first = 0; first < batch.count; first += together) {
    const int64_t count = std::min(together, batch.count - first);
    f(first, batch.Range(first, count), ScoreTable(shape, memory, count));
  }
}

// Grid of a scoring kernel: (tasks, chunks).
inline dim3 ScoreGrid(const TokenBatch& batch, const ScoreShape& shape) {
  return {static_cast<unsigned>(batch.count * shape.heads), static_cast<unsigned>(shape.chunks())};
}

// Allows a kernel to use this much dynamic shared memory.
template <class Kernel>
void AllowShared(const CudaContext& context, Kernel* kernel, size_t bytes) {
  CHECK(bytes <= static_cast<size_t>(context.max_shared_bytes()));
  if (bytes > size_t{32} << 10)
    CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes)));
}

// Sums the tails of a part's tokens from the scores of rows that are not left out. `call` is the part's. Defined in
// tail.cu.
void SumScoredTails(cudaStream_t stream, const TokenBatch& batch, const SelectCall& call, const LayerSketches& sketches,
                    const ScoreTable& table);

// Whether several blocks share the choice of a task, which takes memory. Defined in choose.cu.
bool SplitsChoice(const SelectCall& call);

// Chooses the rows of every task from the scores of its items, and adds to the totals. Defined in choose.cu.
void ChooseRows(const CudaContext& context, cudaStream_t stream, const TokenBatch& batch, const SelectCall& call,
                const ScoreTable& table, const Selection& selection);

// For selections without a tail.
struct NoScoredTail {
  void operator()(int64_t, const TokenBatch&, const ScoreTable&) const {}
};

// Selects for all tokens of a batch. score(first token, tokens, table) launches the kernel that writes scores and
// maxima; tail(the same) those that sum the tails, in which the selected rows are left out.
template <class Score, class Tail = NoScoredTail>
void SelectBy(CudaContext& context, cudaStream_t stream, const TokenBatch& batch, const SelectCall& call,
              ScoreShape shape, const Selection& selection, Score&& score, Tail&& tail = {}) {
  CHECK(selection.kv_heads == shape.heads);
  shape.splits = SplitsChoice(call);
  shape.soft_cap = call.soft_cap;
  ForScoredParts(context, batch, shape, [&](int64_t first, const TokenBatch& part, const ScoreTable& table) {
    score(first, part, table);
    ChooseRows(context, stream, part, call, table, selection.From(first));
    tail(first, part, table);
  });
}

}  // namespace infinigen
