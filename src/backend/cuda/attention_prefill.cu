// Attention of a run of tokens to everything before them, without storing the matrix of scores (flash attention).
//
// A block has 128 queries of one head (64 if heads are wide), 32 per warp, and walks the keys in tiles of 64. Scores
// become weights in registers: the accumulators of Q · Kᵀ, rounded, are the left factor of P · V. The largest score and
// the sum of weights are kept as running values; when a larger score appears, the sums so far are scaled down.
//
// While one tile is multiplied, the next is copied to shared memory. 16-bit entries are copied unchanged: keys and
// values are two matrices whose rows are pieces of 16 bytes, permuted so that eight rows of a column lie in different
// banks. Other entries are converted to f16: quantised ones from a copy of their bytes, f32 ones from global memory.
//
// Blocks with the last queries, which have the most work, start first. Heads that share a KV head are adjacent, so they
// find each other's tiles in the L2 cache. Tiles past the last query of a warp, and tiles before its first query's
// window, are skipped; masks are applied only to tiles on the diagonal and at the beginnings of windows.
#include "backend/cuda/attention_prefill.cuh"
#include "backend/cuda/check.h"
#include "backend/cuda/context.h"
#include "backend/cuda/cuda_backend.h"

namespace infinigen {
namespace {

// The 16 · kParts queries of one warp.
template <class S>
class WarpAttention {
 public:
  using T = typename S::Number;

  // limit: the last row that the warp's first query attends to.
  __device__ WarpAttention(const std::byte* queries, const PrefillCall& call, int limit)
      : raw_scale_(call.scale),
        scale_(call.soft_cap > 0 ? 1.0f : call.scale),
        soft_cap_(call.soft_cap),
        window_(call.window),
        limit_(limit),
        queries_(SharedAddress(queries)) {
#pragma unroll
    for (int part = 0; part < S::kParts; ++part) {
      top_[part][0] = top_[part][1] = kNoScore;
      sum_[part][0] = sum_[part][1] = 0;
#pragma unroll
      for (auto& c : out_[part])
        for (float& x : c) x = 0;
    }
  }

  __device__ void Attend(const std::byte* tile, int first_row) {
    const int last = limit_ + 16 * S::kParts - 1;  // the last row that the warp's last query attends to
    if (first_row > last || (window_ > 0 && first_row + S::kKeys <= limit_ + 1 - window_)) return;
    const uint32_t keys = SharedAddress(tile);
    float scores[S::kParts][S::kKeys / 8][4] = {};
    Score(keys, scores);
    if (soft_cap_ > 0) Cap(scores);
    if (first_row + S::kKeys - 1 > limit_ || (window_ > 0 && first_row <= last - window_)) Mask(first_row, scores);
#pragma unroll
    for (int part = 0; part < S::kParts; ++part) Weigh(scores[part], part);
    AddValues(keys + S::kTileBytes / 2, scores);
  }

  // Calls put(query of the warp, dim, first, second) for pairs of numbers.
  template <class Put>
  __device__ void Finish(Put put) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int part = 0; part < S::kParts; ++part)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float sum = sum_[part][half];
        sum += __shfl_xor_sync(~0u, sum, 1);
        sum += __shfl_xor_sync(~0u, sum, 2);
        const float inverse = 1.0f / sum;
#pragma unroll
        for (int i = 0; i < S::kPieces; ++i)
          put(part * 16 + half * 8 + lane / 4, i * 8 + lane % 4 * 2, out_[part][i][2 * half] * inverse,
              out_[part][i][2 * half + 1] * inverse);
      }
  }

 private:
  using Scores = float[S::kParts][S::kKeys / 8][4];

  __device__ void Score(uint32_t keys, Scores& scores) const {
    // Query matrices: rows 0 and 8 of 8 dims, then of the next 8. Key matrices: 8 keys, twice 8 dims, then 8 more keys.
    const int lane = threadIdx.x % 32, r = lane % 8;
    const uint32_t query_row = queries_ + lane % 16 * S::kRowBytes, query_piece = (lane / 16 ^ r) * 16;
    const uint32_t key_row = keys + (r + lane / 16 * 8) * S::kRowBytes, key_piece = (lane / 8 % 2 ^ r) * 16;
#pragma unroll
    for (int i = 0; i < S::kPadded / 16; ++i) {
      uint32_t query[S::kParts][4];
#pragma unroll
      for (int part = 0; part < S::kParts; ++part)
        LoadMatrices(query[part], query_row + part * 16 * S::kRowBytes + (query_piece ^ (i * 32)));
#pragma unroll
      for (int n = 0; n < S::kKeys / 16; ++n) {
        uint32_t key[4];
        LoadMatrices(key, key_row + n * 16 * S::kRowBytes + (key_piece ^ (i * 32)));
#pragma unroll
        for (int part = 0; part < S::kParts; ++part) {
          Multiply<T>(scores[part][2 * n], query[part], key[0], key[1]);
          Multiply<T>(scores[part][2 * n + 1], query[part], key[2], key[3]);
        }
      }
    }
  }

  // Scales and caps the scores; scale_ is 1 then.
  __device__ void Cap(Scores& scores) const {
#pragma unroll
    for (int part = 0; part < S::kParts; ++part)
#pragma unroll
      for (auto& c : scores[part])
#pragma unroll
        for (float& x : c) x = SoftCapped(x * raw_scale_, soft_cap_);
  }

  __device__ void Mask(int first_row, Scores& scores) const {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int part = 0; part < S::kParts; ++part)
#pragma unroll
      for (int n = 0; n < S::kKeys / 8; ++n)
#pragma unroll
        for (int x = 0; x < 4; ++x) {
          const int row = first_row + n * 8 + lane % 4 * 2 + x % 2;
          const int limit = limit_ + part * 16 + x / 2 * 8 + lane / 4;
          if (row > limit || (window_ > 0 && row <= limit - window_)) scores[part][n][x] = kNoScore;
        }
  }

  // Turns scores into weights. All scores of a query are masked in tiles before its window; weights are then 0.
  __device__ void Weigh(float (&scores)[S::kKeys / 8][4], int part) {
    float next[2] = {top_[part][0], top_[part][1]};
#pragma unroll
    for (auto& c : scores) {
      next[0] = fmaxf(next[0], fmaxf(c[0], c[1]));
      next[1] = fmaxf(next[1], fmaxf(c[2], c[3]));
    }
#pragma unroll
    for (float& x : next) {
      x = fmaxf(x, __shfl_xor_sync(~0u, x, 1));
      x = fmaxf(x, __shfl_xor_sync(~0u, x, 2));
    }
    // −inf − (−inf) is no number, so weights without a score are relative to 0.
    const float base[2] = {next[0] == kNoScore ? 0.0f : next[0], next[1] == kNoScore ? 0.0f : next[1]};
    if (__any_sync(~0u, next[0] > top_[part][0] || next[1] > top_[part][1])) {
      const float factor[2] = {Exp2((top_[part][0] - base[0]) * scale_), Exp2((top_[part][1] - base[1]) * scale_)};
#pragma unroll
      for (auto& c : out_[part]) c[0] *= factor[0], c[1] *= factor[0], c[2] *= factor[1], c[3] *= factor[1];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        sum_[part][half] *= factor[half];
        top_[part][half] = next[half];
      }
    }
    const float shift[2] = {kWeightShift<T> - base[0] * scale_, kWeightShift<T> - base[1] * scale_};
#pragma unroll
    for (auto& c : scores)
#pragma unroll
      for (int x = 0; x < 4; ++x) {
        c[x] = Exp2(fmaf(c[x], scale_, shift[x / 2]));
        sum_[part][x / 2] += c[x];
      }
  }

  __device__ void AddValues(uint32_t values, const Scores& weights) {
    // Matrices: entries 0 and 8 of 8 dims, then of the next 8.
    const int lane = threadIdx.x % 32, r = lane % 8;
    const uint32_t row = values + lane % 16 * S::kRowBytes, piece = (lane / 16 ^ r) * 16;
#pragma unroll
    for (int n = 0; n < S::kKeys / 16; ++n) {
      uint32_t left[S::kParts][4];
#pragma unroll
      for (int part = 0; part < S::kParts; ++part)
#pragma unroll
        for (int x = 0; x < 4; ++x) {
          const float(&c)[4] = weights[part][2 * n + x / 2];
          left[part][x] = Pair<T>(c[x % 2 * 2], c[x % 2 * 2 + 1]);
        }
#pragma unroll
      for (int i = 0; i < S::kPadded / 16; ++i) {
        uint32_t value[4];
        LoadTransposed(value, row + n * 16 * S::kRowBytes + (piece ^ (i * 32)));
#pragma unroll
        for (int part = 0; part < S::kParts; ++part) {
          Multiply<T>(out_[part][2 * i], left[part], value[0], value[1]);
          Multiply<T>(out_[part][2 * i + 1], left[part], value[2], value[3]);
        }
      }
    }
  }

  float raw_scale_, scale_;  // of scores; scale_ is applied with the exponential
  float soft_cap_;
  int window_;
  int limit_;
  uint32_t queries_;
  float top_[S::kParts][2], sum_[S::kParts][2];  // of rows g and g + 8; sums over this lane's columns
  float out_[S::kParts][S::kPieces][4];
};

// Grid: (heads, blocks of queries).
template <class S>
__global__ void __launch_bounds__(kPrefillThreads, 2) AttendQueries(const __grid_constant__ PrefillCall call) {
  extern __shared__ uint4 shared[];
  std::byte* const queries = reinterpret_cast<std::byte*>(shared);
  std::byte* const tiles = queries + S::kQueryBytes;
  const int64_t head = blockIdx.x, kv_head = head / call.group;
  const int64_t first = static_cast<int64_t>(gridDim.y - 1 - blockIdx.y) * S::kQueries;
  const int64_t last_row = call.first_row + min(first + S::kQueries, call.count) - 1;
  const int64_t first_seen = call.window > 0 ? max(int64_t{0}, call.first_row + first + 1 - call.window) : 0;
  const int begin = static_cast<int>(first_seen / S::kKeys);  // first tile
  const int count = static_cast<int>(last_row / S::kKeys) + 1, raw_bytes = S::RawBytes(call.entries.layout);
  const int own = static_cast<int>(threadIdx.x) / 32 * 16 * S::kParts;

  // Starts the copy of tile number `tile`.
  const auto copy = [&](int tile) {
    if (tile < count) {
      const TileEntries<S> entries(call, kv_head, tile);
      if constexpr (!S::kConverts)
        CopyTile<S>(call, entries, tiles + tile % 2 * S::kTileBytes);
      else if (raw_bytes > 0)
        CopyRaw<S>(call, entries, tiles + S::kTileBytes + tile % 2 * raw_bytes);
    }
    CommitCopies();
  };
  copy(begin);
  LoadQueries<S>(call, first, head, queries);
  WarpAttention<S> warp(queries + own * S::kRowBytes, call, static_cast<int>(call.first_row + first) + own);

  for (int tile = begin; tile < count; ++tile) {
    WaitCopies<0>();
    __syncthreads();  // the tile has arrived, and all threads have read the last one
    copy(tile + 1);
    const std::byte* at = tiles + tile % 2 * S::kTileBytes;
    if constexpr (S::kConverts) {
      const TileEntries<S> entries(call, kv_head, tile);
      const std::byte* from = raw_bytes > 0 ? tiles + S::kTileBytes + tile % 2 * raw_bytes : entries.from;
      ConvertTile<S>(call, from, entries.count, tiles);
      at = tiles;
      __syncthreads();
    }
    warp.Attend(at, tile * S::kKeys);
  }

  const int dim = static_cast<int>(call.entries.layout.head_dim);
  warp.Finish([&](int query, int column, float x, float y) {
    const int64_t row = first + own + query;
    if (row >= call.count || column >= dim) return;
    const int64_t at = row * call.out.stride + head * dim + column;
    if (call.aligned_pairs) return StorePair(call.out, at, x, y);
    StoreNumber(call.out, at, x);
    StoreNumber(call.out, at + 1, y);
  });
}

template <class S>
void Launch(const CudaContext& context, const PrefillCall& call, int64_t heads, cudaStream_t stream) {
  const int shared = S::SharedBytes(call.entries.layout);
  CHECK(shared <= context.max_shared_bytes());
  AllowMostShared<AttendQueries<S>>(context.max_shared_bytes());
  const dim3 grid(static_cast<unsigned>(heads), static_cast<unsigned>((call.count + S::kQueries - 1) / S::kQueries));
  AttendQueries<S><<<grid, kPrefillThreads, shared, stream>>>(call);
  CUDA_CHECK_LAUNCH();
}

}  // namespace

void CudaBackend::AttendPrefill(Queue queue, const ConstTensor& queries, const TokenRun& run,
                                const AttentionShape& shape, const LayerEntries& entries, const Tensor& out) {
  const ZoneClock::Scope timed(context_->zones, CudaZone::kAttention, context_->stream(queue));
  const EntryLayout& layout = entries.layout;
  CHECK(CudaAttentionSupports(layout));
  CHECK(shape.heads % layout.kv_heads == 0);
  CHECK(run.first_row + run.count <= INT32_MAX);
  if (run.count == 0) return;
  const int64_t bytes = static_cast<int64_t>(SizeOf(queries.type));
  const PrefillCall call{
      .queries = queries,
      .out = out,
      .entries = entries,
      .slot = run.slot.value(),
      .first_row = run.first_row,
      .count = run.count,
      .group = static_cast<int>(shape.heads / layout.kv_heads),
      .scale = shape.scale * kLog2E,
      .soft_cap = shape.soft_cap * kLog2E,
      .window = static_cast<int>(shape.window),
      .aligned_queries = queries.stride * bytes % 16 == 0 && reinterpret_cast<uintptr_t>(queries.data) % 16 == 0,
      .aligned_pairs = PairsAligned(out)};
  DispatchDim(layout.head_dim, [&](auto dim) {
    const cudaStream_t stream = context_->stream(queue);
    if (layout.type == StoreType::kBF16)
      Launch<PrefillShape<__nv_bfloat16, false, dim()>>(*context_, call, shape.heads, stream);
    else if (layout.type == StoreType::kF16)
      Launch<PrefillShape<__half, false, dim()>>(*context_, call, shape.heads, stream);
    else
      Launch<PrefillShape<__half, true, dim()>>(*context_, call, shape.heads, stream);
  });
}

}  // namespace infinigen
