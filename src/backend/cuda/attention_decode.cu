// Attention of single tokens to a list of rows: all rows of a sequence (AttendDecode) or the selected ones
// (AttendSelected reads the pool, AttendFetched reads cells). It is bound by memory bandwidth: every entry is read
// once, for all query heads of its KV head.
//
// A list is divided into chunks of 256 items (one extent if the list holds all rows), and a chunk into equal shares for
// the warps of a block. A warp walks its share in tiles of 16 (attention_tile.cuh), with its own pipeline of
// asynchronous copies and no barriers with other warps. The partial results (largest score, sum of weights, weighted
// sum of values) of the shares are merged in order; a second kernel merges those of the chunks, and the tail of the
// selection (kv/tail.h), if it has one. Divisions and order
// depend on positions in the list only. So the list of all rows gives AttendDecode's result bit for bit, and other
// tokens of the batch change nothing.
#include <algorithm>

#include "backend/cuda/attention.cuh"
#include "backend/cuda/attention_code_tile.cuh"
#include "backend/cuda/attention_half_tile.cuh"
#include "backend/cuda/check.h"
#include "backend/cuda/context.h"
#include "backend/cuda/cuda_backend.h"

namespace infinigen {
namespace {

struct DecodeCall {
  ConstTensor queries;  // [tokens][heads · dim]
  Tensor out;           // the same shape
  const int32_t* slots = nullptr;
  const int32_t* rows = nullptr;
  Selection selection;  // no rows: all rows
  LayerEntries entries;
  FetchBuffer buffer;  // if it has data, rows are cells of it, or rows of the pool
  TailView tail;       // of the selections; null: none
  int group = 0;       // query heads per KV head
  int parts = 0;       // parts of a group, 8 heads each
  int heads = 0;
  float scale = 0;     // scale of scores, to base 2
  float soft_cap = 0;  // of scores, to base 2; 0: none
  float shift = 0;     // weights are 2^(score − largest + shift)
  int window = 0;      // attends to the last rows only; 0: to all
  uint32_t piece_inverse = 0;
  int stage_bytes = 0;
  int64_t chunks = 0;      // chunks that scratch has room for
  float* sums = nullptr;   // [tokens][heads][chunks][dim] weighted sums of values
  float2* tops = nullptr;  // [tokens][heads][chunks] largest score (base 2), sum of weights

  __device__ int Items(int64_t token, int64_t kv_head) const {
    return selection.rows == nullptr ? rows[token] + 1 : selection.Count(token, kv_head);
  }
  // The first item that the token attends to, and its chunk. Partial results are numbered from that chunk on.
  __device__ int First(int64_t token) const {
    return window == 0 || selection.rows != nullptr ? 0 : max(0, rows[token] + 1 - window);
  }
  __device__ int64_t FirstChunk(int64_t token) const { return First(token) / kDecodeChunk; }
  __device__ int64_t Chunk(int64_t token, int64_t head, int64_t chunk) const {
    return (token * heads + head) * chunks + chunk;
  }
};

// One warp's share of a chunk.
struct Share {
  int64_t token = 0;
  int kv_head = 0;
  int first = 0;  // first item
  int count = 0;
};

// This lane's state for heads 2t and 2t + 1.
struct Softmax {
  float top[2] = {kNoScore, kNoScore};
  float sum[2] = {0, 0};  // over this lane's entries
};

// Writes the addresses of the share's entries. Items past its end repeat the first address, so that every address is
// valid for a copy.
__device__ void FindEntries(const DecodeCall& call, const Share& share, int capacity, const std::byte** found) {
  if (share.count == 0) return;
  const int64_t slot = call.slots[share.token];
  const int32_t* list =
      call.selection.rows == nullptr ? nullptr : call.selection.Rows(share.token, share.kv_head) + share.first;
  for (int i = threadIdx.x % 32; i < capacity; i += 32) {
    const int item = i < share.count ? i : 0, row = list == nullptr ? share.first + item : list[item];
    if (call.buffer.data == nullptr)
      found[i] = call.entries.Entry(slot, share.kv_head, row);
    else if (row >= 0)
      found[i] = call.buffer.Entry(slot, share.kv_head, row);
    else
      found[i] = call.entries.Entry(slot, share.kv_head, FetchList::InPool(row));
  }
}

// Turns the scores of one tile into weights and adds its weighted values to the sums.
template <class Tile>
__device__ void AttendTile(const DecodeCall& call, const TileShape& shape, const std::byte* data, int count, Tile& tile,
                           Softmax& softmax) {
  const int g = threadIdx.x % 32 / 4;
  float scores[4] = {};
  tile.Scores(shape, data, scores);
  float next[2];
#pragma unroll
  for (int x = 0; x < 2; ++x) {
    scores[x] *= call.scale;
    scores[2 + x] *= call.scale;
    if (call.soft_cap > 0) {
      scores[x] = SoftCapped(scores[x], call.soft_cap);
      scores[2 + x] = SoftCapped(scores[2 + x], call.soft_cap);
    }
    if (g >= count) scores[x] = kNoScore;
    if (g + 8 >= count) scores[2 + x] = kNoScore;
    float top = fmaxf(scores[x], scores[2 + x]);
    top = fmaxf(top, __shfl_xor_sync(~0u, top, 4));
    top = fmaxf(top, __shfl_xor_sync(~0u, top, 8));
    top = fmaxf(top, __shfl_xor_sync(~0u, top, 16));
    next[x] = fmaxf(softmax.top[x], top);
  }
  // Skipped if every factor is 1, which changes nothing.
  if (__any_sync(~0u, next[0] > softmax.top[0] || next[1] > softmax.top[1])) {
    const float first = Exp2(softmax.top[0] - next[0]), second = Exp2(softmax.top[1] - next[1]);
    tile.Rescale(first, second);
    softmax.sum[0] *= first;
    softmax.sum[1] *= second;
    softmax.top[0] = next[0];
    softmax.top[1] = next[1];
  }
  float weights[4];
#pragma unroll
  for (int x = 0; x < 2; ++x) {
    weights[x] = Exp2(scores[x] - next[x] + Tile::kShift);
    weights[2 + x] = Exp2(scores[2 + x] - next[x] + Tile::kShift);
    softmax.sum[x] += weights[x] + weights[2 + x];
  }
  tile.AddValues(shape, data, weights);
}

// The partial results of a chunk's shares, one per warp, in shared memory.
template <class Tile>
struct ShareSums {
  static constexpr int kStride = Tile::kPadded + 4;  // lanes of different heads write to different banks
  float values[Tile::kWarps][kTileHeads][kStride];
  float top[Tile::kWarps][kTileHeads];
  float sum[Tile::kWarps][kTileHeads];
};

template <class Tile>
__device__ void PutShare(Tile& tile, const Softmax& softmax, ShareSums<Tile>& shares) {
  const int warp = threadIdx.x / 32, t = threadIdx.x % 4;
  tile.ForSums([&](int dim, float first, float second) {
    shares.values[warp][2 * t][dim] = first;
    shares.values[warp][2 * t + 1][dim] = second;
  });
#pragma unroll
  for (int x = 0; x < 2; ++x) {
    float sum = softmax.sum[x];
    sum += __shfl_xor_sync(~0u, sum, 4);
    sum += __shfl_xor_sync(~0u, sum, 8);
    sum += __shfl_xor_sync(~0u, sum, 16);
    if (threadIdx.x % 32 < 4) {
      shares.top[warp][2 * t + x] = softmax.top[x];
      shares.sum[warp][2 * t + x] = sum;
    }
  }
}

// Merges the shares in the order of warps, which is the order of the list.
template <class Tile>
__device__ void MergeShares(const DecodeCall& call, const ShareSums<Tile>& shares, int64_t token, int first_head,
                            int heads, int64_t chunk) {
  const int dim = static_cast<int>(call.entries.layout.head_dim);
  for (int at = threadIdx.x; at < heads * Tile::kPadded; at += Tile::kWarps * 32) {
    const int head = at / Tile::kPadded, column = at % Tile::kPadded;
    if (column >= dim) continue;
    float top = kNoScore;
#pragma unroll
    for (int w = 0; w < Tile::kWarps; ++w) top = fmaxf(top, shares.top[w][head]);
    float value = 0, sum = 0;
#pragma unroll
    for (int w = 0; w < Tile::kWarps; ++w) {
      const float factor = Exp2(shares.top[w][head] - top);
      value = fmaf(factor, shares.values[w][head][column], value);
      sum = fmaf(factor, shares.sum[w][head], sum);
    }
    const int64_t target = call.Chunk(token, first_head + head, chunk);
    call.sums[target * dim + column] = value;
    if (column == 0) call.tops[target] = make_float2(top, sum);
  }
}

// Grid: (chunks or fewer, kv_heads · parts, tokens).
template <class Tile>
__global__ void __launch_bounds__(Tile::kWarps * 32, Tile::kBlocks)
    AttendChunks(const __grid_constant__ DecodeCall call) {
  extern __shared__ uint4 shared[];  // [warps][stages] tiles; later the partial results
  constexpr int kShare = static_cast<int>(kDecodeChunk) / Tile::kWarps;
  __shared__ const std::byte* found[Tile::kWarps][kShare];
  const int warp = threadIdx.x / 32, kv_head = blockIdx.y / call.parts, part = blockIdx.y % call.parts;
  const int64_t token = blockIdx.z;
  const int items = call.Items(token, kv_head);
  const int64_t first_chunk = call.FirstChunk(token);
  if ((first_chunk + blockIdx.x) * kDecodeChunk >= items) return;

  const EntryLayout& layout = call.entries.layout;
  const int first_head = kv_head * call.group + part * kTileHeads;
  const TileShape shape{.queries = call.queries,
                        .query = token * call.queries.stride + first_head * layout.head_dim,
                        .heads = min(kTileHeads, call.group - part * kTileHeads),
                        .dim = static_cast<int>(layout.head_dim),
                        .key_bytes = static_cast<int>(layout.key_bytes()),
                        .entry_bytes = static_cast<int>(layout.entry_bytes()),
                        .groups = static_cast<int>(StoreGroups(layout.head_dim)),
                        .type = layout.type,
                        .piece_inverse = call.piece_inverse};
  std::byte* stages = reinterpret_cast<std::byte*>(shared) + warp * Tile::kStages * call.stage_bytes;
  const auto stage = [&](int tile, int count) {
    if (tile * kTileRows < count)
      Tile::Stage(shape, stages + tile % Tile::kStages * call.stage_bytes, found[warp] + tile * kTileRows,
                  min(kTileRows, count - tile * kTileRows));
    CommitCopies();
  };
  ShareSums<Tile>& shares = *reinterpret_cast<ShareSums<Tile>*>(shared);
  Tile tile(shape);

  for (int64_t chunk = blockIdx.x; (first_chunk + chunk) * kDecodeChunk < items; chunk += gridDim.x) {
    const int begin = static_cast<int>((first_chunk + chunk) * kDecodeChunk) + warp * kShare;
    const int first = max(begin, call.First(token));
    const Share share{token, kv_head, first, max(0, min(begin + kShare, items) - first)};
    FindEntries(call, share, kShare, found[warp]);
    __syncwarp();
    for (int i = 0; i < Tile::kStages; ++i) stage(i, share.count);
    Softmax softmax;
    tile.Clear();
    for (int i = 0; i * kTileRows < share.count; ++i) {
      WaitCopies<Tile::kStages - 1>();
      __syncwarp();
      AttendTile(call, shape, stages + i % Tile::kStages * call.stage_bytes,
                 min(kTileRows, share.count - i * kTileRows), tile, softmax);
      __syncwarp();
      stage(i + Tile::kStages, share.count);
    }
    __syncthreads();  // from here on this memory holds the partial results
    PutShare(tile, softmax, shares);
    __syncthreads();
    MergeShares(call, shares, token, first_head, shape.heads, chunk);
    __syncthreads();
  }
}

// The tail of one (token, query head) as one more partial result: scores and weights to base 2, as those of chunks.
struct TailState {
  __device__ TailState(const TailView& tail, int64_t token, int64_t head) {
    if (!tail) return;
    sums = tail.Sums(token, head);
    sum = sums[1];
    top = sums[0] * kLog2E;
  }
  __device__ bool empty() const { return !(sum > 0); }
  __device__ bool exists() const { return sums != nullptr && sum >= 0; }
  // What the means of blocks have in direction c of the sketches, which is left to the sketches. Called by a warp.
  __device__ float MeansIn(const TailView& tail, int64_t kv_head, int c) const {
    const TailBasis& basis = tail.basis;
    float part = 0;
    for (int i = static_cast<int>(threadIdx.x) % 32; i < tail.mean_dims; i += 32)
      part = fmaf(basis.Value(kv_head)[i * basis.value_dims + c], sums[2 + basis.value_dims + i], part);
    return WarpSum(part);
  }
  // Number `at` of the weighted sum of values: sum · mean + means of blocks + basis · (sketch − directions).
  __device__ float Value(const TailView& tail, int64_t kv_head, int at, const float* directions) const {
    const TailBasis& basis = tail.basis;
    float value = sum * basis.ValueMean(kv_head)[at];
    if (tail.mean_dims > 0) value += sums[2 + basis.value_dims + at];
    const float* columns = basis.Value(kv_head) + at * basis.value_dims;
    for (int c = 0; c < basis.value_dims; ++c) value = fmaf(columns[c], sums[2 + c] - directions[c], value);
    return value;
  }

  const float* sums = nullptr;
  float top = kNoScore, sum = 0;
};

// Adds a tail's share of the attention; called by one thread.
__device__ void AddShare(MassTotals& mass, float share) {
  using Word = unsigned long long;
  share = share > 0 ? fminf(share, 1.0f) : 0.0f;  // NaN counts as 0
  atomicAdd(reinterpret_cast<Word*>(&mass.count), Word{1});
  atomicAdd(&mass.sum, static_cast<double>(share));
  atomicAdd(reinterpret_cast<Word*>(&mass.bins[static_cast<int>(static_cast<double>(share) * MassTotals::kBins)]),
            Word{1});
}

// Merges the chunks of one (head, token) in a fixed order: each slice of threads takes every kSlices-th chunk, then the
// slices are merged in order.
constexpr int kMergeThreads = 512;

// Grid: (heads, tokens). A slice has kDim / 4 threads.
template <int kDim>
__global__ void __launch_bounds__(kMergeThreads) MergeChunks(const __grid_constant__ DecodeCall call) {
  constexpr int kColumns = kDim / 4, kSlices = kMergeThreads / kColumns;
  __shared__ float4 values[kSlices][kColumns];
  __shared__ float tops[kMergeThreads / 32], sums[kSlices];
  const int64_t token = blockIdx.y, head = blockIdx.x;
  const int chunks = static_cast<int>(DecodeChunks(call.Items(token, head / call.group)) - call.FirstChunk(token));
  const float2* in = call.tops + call.Chunk(token, head, 0);
  const int dim = static_cast<int>(call.entries.layout.head_dim), mine = threadIdx.x;
  static_assert(kDim <= kMergeThreads);
  // Needs no chunk, so its loads are in flight while the chunks are merged.
  const TailState tail(call.tail, token, head);
  __shared__ float directions[kMostValueDims];
  static_assert(kMergeThreads / 32 >= kMostValueDims);
  if (!tail.empty()) {  // the same in all threads
    const int c = threadIdx.x / 32;
    const float inside = c < call.tail.basis.value_dims ? tail.MeansIn(call.tail, head / call.group, c) : 0.0f;
    if (threadIdx.x % 32 == 0 && c < kMostValueDims) directions[c] = inside;
    __syncthreads();
  }
  const float tail_value =
      tail.empty() || mine >= dim ? 0.0f : tail.Value(call.tail, head / call.group, mine, directions);

  float top = kNoScore;
  for (int c = threadIdx.x; c < chunks; c += kMergeThreads) top = fmaxf(top, in[c].x);
  top = WarpMax(top);
  if (threadIdx.x % 32 == 0) tops[threadIdx.x / 32] = top;
  __syncthreads();
#pragma unroll
  for (float x : tops) top = fmaxf(top, x);

  const int column = threadIdx.x % kColumns, slice = threadIdx.x / kColumns;
  float4 value = {};
  float sum = 0;
  if (column * 4 < dim) {
    const float4* from = reinterpret_cast<const float4*>(call.sums + call.Chunk(token, head, 0) * dim) + column;
#pragma unroll 8
    for (int c = slice; c < chunks; c += kSlices) {
      const float4 x = from[c * (dim / 4)];
      const float factor = Exp2(in[c].x - top);
      value.x = fmaf(factor, x.x, value.x);
      value.y = fmaf(factor, x.y, value.y);
      value.z = fmaf(factor, x.z, value.z);
      value.w = fmaf(factor, x.w, value.w);
      sum = fmaf(factor, in[c].y, sum);
    }
  }
  values[slice][column] = value;
  if (column == 0) sums[slice] = sum;
  __syncthreads();

  if (mine >= dim) return;
  float total = 0, divisor = 0;
  for (int s = 0; s < min(kSlices, chunks); ++s) {
    total += reinterpret_cast<const float*>(values[s])[mine];
    divisor += sums[s];
  }
  if (!tail.empty()) {
    const float joint = fmaxf(top, tail.top);
    const float keep = Exp2(top - joint), add = Exp2(tail.top - joint + call.shift);
    const float outside = tail.sum * add;
    total = fmaf(total, keep, tail_value * add);
    divisor = fmaf(divisor, keep, outside);
    if (mine == 0) AddShare(*call.tail.mass, outside / divisor);
  } else if (mine == 0 && tail.exists()) {
    AddShare(*call.tail.mass, 0.0f);
  }
  StoreNumber(call.out, token * call.out.stride + head * dim + mine, total / divisor);
}

template <class Tile>
void Launch(const CudaContext& context, DecodeCall call, int64_t tokens, int64_t blocks, cudaStream_t stream) {
  const EntryLayout& layout = call.entries.layout;
  call.stage_bytes = Tile::StageBytes(layout);
  call.shift = Tile::kShift;
  if constexpr (requires { Tile::PieceInverse(0); })
    call.piece_inverse = Tile::PieceInverse(static_cast<int>(layout.entry_bytes()));
  const int shared =
      std::max(Tile::kWarps * Tile::kStages * call.stage_bytes, static_cast<int>(sizeof(ShareSums<Tile>)));
  CHECK(shared <= context.max_shared_bytes());
  AllowMostShared<AttendChunks<Tile>>(context.max_shared_bytes() - Tile::kWarps * 1024);
  const dim3 grid(static_cast<unsigned>(blocks), static_cast<unsigned>(layout.kv_heads * call.parts),
                  static_cast<unsigned>(tokens));
  AttendChunks<Tile><<<grid, Tile::kWarps * 32, shared, stream>>>(call);
  CUDA_CHECK_LAUNCH();
  MergeChunks<Tile::kPadded>
      <<<dim3(static_cast<unsigned>(call.heads), static_cast<unsigned>(tokens)), kMergeThreads, 0, stream>>>(call);
  CUDA_CHECK_LAUNCH();
}

// `most`: longest list; `blocks`: most blocks per list.
void Attend(CudaContext& context, DecodeCall call, const AttentionShape& shape, int64_t tokens, int64_t most,
            int64_t blocks, cudaStream_t stream) {
  const EntryLayout& layout = call.entries.layout;
  CHECK(CudaAttentionSupports(layout));
  CHECK(shape.heads % layout.kv_heads == 0);
  if (call.tail) CHECK(call.tail.heads == shape.heads && call.tail.basis.head_dim == layout.head_dim);
  if (tokens == 0) return;
  call.group = static_cast<int>(shape.heads / layout.kv_heads);
  call.parts = (call.group + kTileHeads - 1) / kTileHeads;
  call.heads = static_cast<int>(shape.heads);
  call.scale = shape.scale * kLog2E;
  call.soft_cap = shape.soft_cap * kLog2E;
  call.window = static_cast<int>(shape.window);
  // A window of n rows begins and ends inside of chunks.
  if (shape.window > 0 && call.selection.rows == nullptr) most = std::min(most, shape.window + 2 * kDecodeChunk);
  call.chunks = DecodeChunks(most);
  std::byte* scratch = context.Scratch(AttentionScratchBytes(most, tokens, shape.heads, layout.head_dim));
  call.sums = reinterpret_cast<float*>(scratch);
  call.tops = reinterpret_cast<float2*>(call.sums + tokens * shape.heads * call.chunks * layout.head_dim);
  blocks = std::min(blocks, call.chunks);
  DispatchDim(layout.head_dim, [&](auto dim) {
    switch (layout.type) {
      case StoreType::kBF16:
        return Launch<HalfTile<__nv_bfloat16, dim()>>(context, call, tokens, blocks, stream);
      case StoreType::kF16:
      case StoreType::kF32:
        return Launch<HalfTile<__half, dim()>>(context, call, tokens, blocks, stream);
      case StoreType::kInt8:
        return Launch<CodeTile<8, dim()>>(context, call, tokens, blocks, stream);
      case StoreType::kInt4:
        return Launch<CodeTile<4, dim()>>(context, call, tokens, blocks, stream);
      case StoreType::kInt6:  // not a type of entries
        CHECK(false);
    }
  });
}

// There is room for lists that are far longer than most are. Launches few blocks, which take several chunks of a long
// list each, rather than many that find nothing to do.
void AttendLists(CudaContext& context, const DecodeCall& call, const AttentionShape& shape, int64_t tokens,
                 cudaStream_t stream) {
  const int64_t lists = std::max<int64_t>(1, tokens * call.entries.layout.kv_heads);
  const int64_t blocks = (8 * context.sms() + lists - 1) / lists;
  Attend(context, call, shape, tokens, call.selection.capacity, blocks, stream);
}

}  // namespace

void CudaBackend::AttendDecode(Queue queue, const ConstTensor& queries, const TokenBatch& batch, int64_t max_rows,
                               const AttentionShape& shape, const LayerEntries& entries, const Tensor& out) {
  if (skipped_.compute) return;
  const ZoneClock::Scope timed(context_->zones, CudaZone::kAttention, context_->stream(queue));
  // A whole prompt that attends like decode steps is divided into parts that fit the scratch reserved for steps.
  const size_t token_bytes = AttentionScratchBytes(max_rows, 1, shape.heads, entries.layout.head_dim);
  const auto together = std::max<int64_t>(8, static_cast<int64_t>(context_->scratch.bytes() / token_bytes));
  for (int64_t first = 0; first < batch.count; first += together) {
    const int64_t count = std::min(together, batch.count - first);
    DecodeCall call;
    call.queries = queries;
    call.queries.data = queries.row(first);
    call.queries.rows = count;
    call.out = out.Rows(first, count);
    call.slots = batch.slots + first;
    call.rows = batch.rows + first;
    call.entries = entries;
    Attend(*context_, call, shape, count, max_rows, INT32_MAX, context_->stream(queue));
  }
}

void CudaBackend::AttendSelected(Queue queue, const ConstTensor& queries, const TokenBatch& batch,
                                 const Selection& selection, const TailView& tail, const AttentionShape& shape,
                                 const LayerEntries& entries, const Tensor& out) {
  if (skipped_.compute) return;
  const ZoneClock::Scope timed(context_->zones, CudaZone::kAttention, context_->stream(queue));
  DecodeCall call;
  call.queries = queries;
  call.out = out;
  call.slots = batch.slots;
  call.selection = selection;
  call.tail = tail;
  call.entries = entries;
  AttendLists(*context_, call, shape, batch.count, context_->stream(queue));
}

void CudaBackend::AttendFetched(Queue queue, const ConstTensor& queries, const TokenBatch& batch,
                                const Selection& selection, const TailView& tail, const AttentionShape& shape,
                                const LayerEntries& entries, const FetchBuffer& buffer, const FetchList& list,
                                const Tensor& out) {
  if (skipped_.compute) return;
  const ZoneClock::Scope timed(context_->zones, CudaZone::kAttention, context_->stream(queue));
  CHECK(list.capacity == selection.capacity && list.kv_heads == selection.kv_heads);
  DecodeCall call;
  call.queries = queries;
  call.out = out;
  call.slots = batch.slots;
  call.selection = selection;
  call.selection.rows = list.cells;
  call.tail = tail;
  call.entries = entries;
  call.buffer = buffer;
  AttendLists(*context_, call, shape, batch.count, context_->stream(queue));
}

}  // namespace infinigen
