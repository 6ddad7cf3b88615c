// SumColumns: adds to the priority of every row the attention that it gets from the tokens of a prefill.
//
// The weights of 2,048 tokens over 32K rows are never stored all at once. Two passes over tiles of 64 queries and 64
// keys:
//
//   1. norms: a block owns 64 queries of one query head and walks over the keys. Every thread keeps the maximum and the
//      sum of its scores; the threads of a query combine theirs at the end.
//   2. sums: a block owns 64 keys of one KV head and walks over the queries of all its query heads. Norms are
//      known, so every weight is final, and a column is summed in a fixed order.
//
// Both passes compute the same scores, in f32, because eviction compares priorities that may be close.
#include <cuda_runtime.h>

#include "backend/cuda/context.h"
#include "backend/cuda/cuda_backend.h"
#include "backend/cuda/entry_number.cuh"
#include "backend/cuda/select.cuh"

namespace infinigen {
namespace {

constexpr int kTile = 64;            // queries or keys per tile
constexpr int kDepth = 32;           // dimensions per step
constexpr int kColumnThreads = 256;  // 16 x 16, four queries and four keys each
constexpr int kEach = 4;
constexpr int kPitch = kTile + 4;  // row length in shared memory, aligned for vectors of four

struct ColumnCall {
  Numbers queries;
  LayerEntries entries;
  int64_t slot, first_row, count;  // the run of tokens
  int64_t heads, group;            // query heads; query heads per KV head
  float scale, soft_cap;           // soft_cap 0: none
  float2* norms;                   // [heads][count]: maximum, 1 / sum
  float* priorities;               // [kv_heads][capacity] of the slot
  int64_t capacity;
};

__device__ float ScaledScore(const ColumnCall& c, float score) {
  score *= c.scale;
  return c.soft_cap > 0 ? SoftCapped(score, c.soft_cap) : score;
}

struct TileShared {
  float queries[kDepth][kPitch], keys[kDepth][kPitch];
  const std::byte* rows[kTile];
};

// scores[q][k] of queries first_query + 4 · ty + q and keys first_key + 4 · tx + k, unscaled. Scores of queries or keys
// that do not exist are arbitrary.
__device__ void ScoreTile(const ColumnCall& c, int64_t head, int64_t first_query, int64_t first_key, TileShared& s,
                          float (&scores)[kEach][kEach]) {
  const int tx = static_cast<int>(threadIdx.x) % 16, ty = static_cast<int>(threadIdx.x) / 16;
  const int64_t d = c.entries.layout.head_dim, length = c.first_row + c.count;
  if (threadIdx.x < kTile)
    s.rows[threadIdx.x] =
        c.entries.Entry(c.slot, head / c.group, min(first_key + static_cast<int64_t>(threadIdx.x), length - 1));
#pragma unroll
  for (int q = 0; q < kEach; ++q)
#pragma unroll
    for (int k = 0; k < kEach; ++k) scores[q][k] = 0;
  for (int64_t first = 0; first < d; first += kDepth) {
    __syncthreads();  // the rows have arrived, and the previous numbers have been read
    for (int i = static_cast<int>(threadIdx.x); i < kTile * kDepth; i += kColumnThreads) {
      const int row = i / kDepth, at = i % kDepth;
      const bool exists = first + at < d;
      s.queries[at][row] = exists ? c.queries(min(first_query + row, c.count - 1), head * d + first + at) : 0.0f;
      s.keys[at][row] = exists ? EntryNumber(c.entries.layout.key_type(), s.rows[row], d, first + at) : 0.0f;
    }
    __syncthreads();
#pragma unroll 8
    for (int i = 0; i < kDepth; ++i) {
      const float4 q4 = *reinterpret_cast<const float4*>(&s.queries[i][4 * ty]);
      const float4 k4 = *reinterpret_cast<const float4*>(&s.keys[i][4 * tx]);
      const float q[kEach] = {q4.x, q4.y, q4.z, q4.w}, k[kEach] = {k4.x, k4.y, k4.z, k4.w};
#pragma unroll
      for (int a = 0; a < kEach; ++a)
#pragma unroll
        for (int b = 0; b < kEach; ++b) scores[a][b] = __fmaf_rn(q[a], k[b], scores[a][b]);
    }
  }
  __syncthreads();
}

// Grid (tiles of queries, heads).
__global__ __launch_bounds__(kColumnThreads) void ColumnNormsKernel(ColumnCall c) {
  __shared__ TileShared s;
  const int tx = static_cast<int>(threadIdx.x) % 16, ty = static_cast<int>(threadIdx.x) / 16;
  const int64_t first_query = static_cast<int64_t>(blockIdx.x) * kTile, head = blockIdx.y;
  float largest[kEach], sums[kEach];
#pragma unroll
  for (int q = 0; q < kEach; ++q) {
    largest[q] = -INFINITY;
    sums[q] = 0;
  }
  const int64_t last_row = c.first_row + min(first_query + kTile, c.count) - 1;
  for (int64_t first_key = 0; first_key <= last_row; first_key += kTile) {
    float scores[kEach][kEach];
    ScoreTile(c, head, first_query, first_key, s, scores);
#pragma unroll
    for (int q = 0; q < kEach; ++q) {
      const int64_t row = c.first_row + first_query + kEach * ty + q;
      float most = largest[q];
#pragma unroll
      for (int k = 0; k < kEach; ++k) {
        scores[q][k] = first_key + kEach * tx + k <= row ? ScaledScore(c, scores[q][k]) : -INFINITY;
        most = fmaxf(most, scores[q][k]);
      }
      if (most == -INFINITY) continue;
      sums[q] *= expf(largest[q] - most);
#pragma unroll
      for (int k = 0; k < kEach; ++k) sums[q] += expf(scores[q][k] - most);
      largest[q] = most;
    }
  }
#pragma unroll
  for (int q = 0; q < kEach; ++q) {
    for (int step = 8; step > 0; step /= 2) {  // the 16 threads of a query are half a warp
      const float other = __shfl_xor_sync(kAllLanes, largest[q], step), sum = __shfl_xor_sync(kAllLanes, sums[q], step);
      const float most = fmaxf(largest[q], other);
      if (most == -INFINITY) continue;
      sums[q] = sums[q] * expf(largest[q] - most) + sum * expf(other - most);
      largest[q] = most;
    }
    const int64_t query = first_query + kEach * ty + q;
    if (tx == 0 && query < c.count) c.norms[head * c.count + query] = make_float2(largest[q], 1.0f / sums[q]);
  }
}

// Grid (tiles of keys, kv_heads).
__global__ __launch_bounds__(kColumnThreads) void ColumnSumsKernel(ColumnCall c) {
  __shared__ TileShared s;
  __shared__ float parts[16][kTile];
  const int tx = static_cast<int>(threadIdx.x) % 16, ty = static_cast<int>(threadIdx.x) / 16;
  const int64_t first_key = static_cast<int64_t>(blockIdx.x) * kTile, kv_head = blockIdx.y;
  const int64_t begin = max(int64_t{0}, first_key - c.first_row) / kTile * kTile;  // earlier queries see none of it
  float sums[kEach] = {};
  for (int64_t head = kv_head * c.group; head < (kv_head + 1) * c.group; ++head) {
    for (int64_t first_query = begin; first_query < c.count; first_query += kTile) {
      float scores[kEach][kEach];
      ScoreTile(c, head, first_query, first_key, s, scores);
#pragma unroll
      for (int q = 0; q < kEach; ++q) {
        const int64_t query = first_query + kEach * ty + q, row = c.first_row + query;
        if (query >= c.count) continue;
        const float2 norm = c.norms[head * c.count + query];
#pragma unroll
        for (int k = 0; k < kEach; ++k)
          if (first_key + kEach * tx + k <= row) sums[k] += expf(ScaledScore(c, scores[q][k]) - norm.x) * norm.y;
      }
    }
  }
#pragma unroll
  for (int k = 0; k < kEach; ++k) parts[ty][kEach * tx + k] = sums[k];
  __syncthreads();
  const int64_t key = first_key + threadIdx.x;
  if (threadIdx.x >= kTile || key >= c.first_row + c.count) return;
  float sum = 0;
  for (int part = 0; part < 16; ++part) sum += parts[part][threadIdx.x];
  c.priorities[kv_head * c.capacity + key] += sum;
}

}  // namespace

void CudaBackend::SumColumns(Queue queue, const ConstTensor& queries, const TokenRun& run, const AttentionShape& shape,
                             const LayerCache& cache) {
  const ZoneClock::Scope timed(context_->zones, CudaZone::kSelection, context_->stream(queue));
  const EntryLayout& layout = cache.entries.layout;
  CHECK(shape.heads % layout.kv_heads == 0 && queries.cols == shape.heads * layout.head_dim);
  CHECK(queries.rows >= run.count && run.first_row + run.count <= cache.retained.capacity);
  if (run.count == 0) return;
  const cudaStream_t stream = context_->stream(queue);
  const ColumnCall call{
      .queries = Numbers(queries),
      .entries = cache.entries,
      .slot = run.slot.value(),
      .first_row = run.first_row,
      .count = run.count,
      .heads = shape.heads,
      .group = shape.heads / layout.kv_heads,
      .scale = shape.scale,
      .soft_cap = shape.soft_cap,
      .norms = reinterpret_cast<float2*>(context_->Scratch(ColumnScratchBytes(run.count, shape.heads))),
      .priorities = cache.retained.Priorities(run.slot.value(), 0),
      .capacity = cache.retained.capacity,
  };
  const auto tiles = [](int64_t n) { return static_cast<unsigned>((n + kTile - 1) / kTile); };
  ColumnNormsKernel<<<dim3(tiles(run.count), static_cast<unsigned>(shape.heads)), kColumnThreads, 0, stream>>>(call);
  CUDA_CHECK_LAUNCH();
  ColumnSumsKernel<<<dim3(tiles(run.first_row + run.count), static_cast<unsigned>(layout.kv_heads)), kColumnThreads, 0,
                     stream>>>(call);
  CUDA_CHECK_LAUNCH();
}

}  // namespace infinigen
