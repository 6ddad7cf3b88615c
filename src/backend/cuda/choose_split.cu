// Chooses among many rows; several blocks share the work of one (token, KV head). kv/select.h defines the choice.
//
//   0. CountMassKernel: only for rules with a mass, counts the rows that hold it.
//   1. MakeKeysKernel: turns scores into keys, builds a histogram of the keys and counts those that pass the threshold.
//   2. CutKernel: the number of chosen items, and the bin that the last of them falls into, are now known. Items above
//      the bin are chosen; items in the bin go on a list, the edge (a few items in a thousand). The last block to
//      finish cuts the edge (radix_select.cuh) and computes where each block's rows begin in the output.
//   3. WriteRowsKernel: every block writes its rows, in ascending order.
//
// Keys are read twice after they are made, and no block waits for another. Counters and bins are integers and the edge
// is a set, so the result does not depend on the order of blocks. If all keys are equal, the edge holds everything and
// one block processes it: slow, but correct.
#include "backend/cuda/choose.cuh"
#include "backend/cuda/choose_bins.cuh"
#include "backend/cuda/choose_mass.cuh"

namespace infinigen {
namespace {

constexpr int kThreads = 256;
constexpr int kPerThread = 8;
constexpr int kPerWarp = 32 * kPerThread;
constexpr int64_t kShare = kThreads * kPerThread;  // rows, or items, per block
// An edge of at most this many items is kept in shared memory.
constexpr uint32_t kShortEdge = 2048;

// Grid (tasks). One block per task, which reads its scores twice: a count by mass is slower than one by threshold.
constexpr int kMassThreads = 1024;
__global__ __launch_bounds__(kMassThreads) void CountMassKernel(TokenBatch batch, SelectCall call, ScoreTable table) {
  __shared__ MassScratch mass;
  __shared__ float maxima[kMaxGroup];
  const Task task(batch, call, table, blockIdx.x);
  if (!task.CountsByMass()) return;
  LoadMaxima(table, blockIdx.x, task.items, maxima);
  // The memory of the keys holds the shares first.
  const int64_t rows = CountForMass(table, blockIdx.x, task, maxima, table.Keys(blockIdx.x), mass);
  if (threadIdx.x == 0) table.tallies[blockIdx.x].passing = static_cast<uint32_t>(rows);
}

// ---- Keys.

// Scores of four adjacent items at two offsets of the block, the second kThreads · 4 items after the first.
struct EightScores {
  __device__ static int64_t Item(int64_t start, int i) {
    return start + (i / 4 * kThreads + static_cast<int>(threadIdx.x)) * 4 + i % 4;
  }
  __device__ void Load(const float* scores, int64_t start, int64_t items) {
#pragma unroll
    for (int half = 0; half < 2; ++half)
      if (Item(start, 4 * half) < items) four[half] = *reinterpret_cast<const float4*>(scores + Item(start, 4 * half));
  }
  __device__ float operator[](int i) const {
    const float4& f = four[i / 4];
    return i % 4 == 0 ? f.x : i % 4 == 1 ? f.y : i % 4 == 2 ? f.z : f.w;
  }
  float4 four[2];
};
static_assert(kPerThread == 8);

__device__ void RaiseTo(const EightScores& scores, float maximum, float (&relative)[kPerThread]) {
#pragma unroll
  for (int i = 0; i < kPerThread; ++i) relative[i] = fmaxf(relative[i], scores[i] - maximum);
}

// Grid (tasks, shares of items).
__global__ __launch_bounds__(kThreads) void MakeKeysKernel(TokenBatch batch, SelectCall call, ScoreTable table) {
  constexpr int kAhead = 4;  // query heads whose scores are loaded while the maxima are found
  __shared__ RadixScratch radix;
  __shared__ float maxima[kMaxGroup];
  const int64_t index = blockIdx.x, start = blockIdx.y * kShare, items = ItemsOf(batch, call, table, index);
  if (start >= items) return;
  EightScores ahead[kAhead] = {};
#pragma unroll
  for (int g = 0; g < kAhead; ++g)
    if (g < table.group) ahead[g].Load(table.Scores(index, g), start, items);
  for (int b = static_cast<int>(threadIdx.x); b < kRadixBins; b += kThreads) radix.bins[b] = 0;
  LoadMaxima(table, index, items, maxima);

  float relative[kPerThread];
#pragma unroll
  for (int i = 0; i < kPerThread; ++i) relative[i] = __uint_as_float(0x7fc00000u);
#pragma unroll
  for (int g = 0; g < kAhead; ++g)
    if (g < table.group) RaiseTo(ahead[g], maxima[g], relative);
  for (int g = kAhead; g < table.group; ++g) {
    EightScores scores = {};
    scores.Load(table.Scores(index, g), start, items);
    RaiseTo(scores, maxima[g], relative);
  }

  const Task task(batch, call, table, index);
  const bool drops = task.DropsExtras();
  const uint32_t least = task.Threshold();
  uint32_t keys[kPerThread], passing = 0, extras = 0;
#pragma unroll
  for (int i = 0; i < kPerThread; ++i) {
    const int64_t item = EightScores::Item(start, i);
    keys[i] = item < items ? KeyOf(relative[i]) : 0u;
    passing += keys[i] >= least ? 1 : 0;  // least > 0
    if (drops && item < items && task.IsExtra(item)) {
      ++extras;
      keys[i] = 0;
    }
    if (keys[i] != 0) atomicAdd(&radix.bins[BinOf(keys[i])], 1u);
  }
#pragma unroll
  for (int half = 0; half < 2; ++half)
    if (EightScores::Item(start, 4 * half) < items)
      *reinterpret_cast<uint4*>(table.Keys(index) + EightScores::Item(start, 4 * half)) =
          make_uint4(keys[4 * half], keys[4 * half + 1], keys[4 * half + 2], keys[4 * half + 3]);
  const uint2 sums = BlockSum(passing, extras, radix);  // all threads have counted
  ChoiceTally& tally = table.tallies[index];
  for (int b = static_cast<int>(threadIdx.x); b < kRadixBins; b += kThreads)
    if (radix.bins[b] != 0) atomicAdd(&tally.bins[b], radix.bins[b]);
  if (threadIdx.x == 0 && sums.x > 0) atomicAdd(&tally.passing, sums.x);
  if (threadIdx.x == 0 && sums.y > 0) atomicAdd(&tally.extras, sums.y);
}

// ---- The cut

// Number of items that rule and threshold ask for.
__device__ int64_t CountItems(const Task& task, bool mean_counts, const ScoreTable& table, int64_t index) {
  const ChoiceTally& own = table.tallies[index];
  if (task.rule.force_count > 0)
    return task.CountForced(task.positions == nullptr ? task.PlainExtras() : static_cast<int64_t>(own.extras));
  const int64_t rows = task.CountsByMass() ? 1 : task.page;  // that one counted item stands for
  int64_t passing = static_cast<int64_t>(own.passing) * rows;
  if (mean_counts) {
    passing = 0;
    for (int64_t head = 0; head < table.heads; ++head)
      passing += static_cast<int64_t>(table.tallies[task.token * table.heads + head].passing) * rows;
    passing /= table.heads;
  }
  return task.CountChosen(passing);
}

// The keys of a block's rows, kPerThread per thread. The rows of a warp are adjacent, and so are those of its lanes.
struct RowKeys {
  __device__ RowKeys(const uint32_t* keys, int64_t share, int64_t items, int64_t page)
      : first(share * kShare + Warp() * kPerWarp + Lane()) {
#pragma unroll
    for (int i = 0; i < kPerThread; ++i) {
      const int64_t item = page == 1 ? Row(i) : static_cast<uint32_t>(Row(i)) / static_cast<uint32_t>(page);
      key[i] = item < items ? keys[item] : 0u;
    }
  }
  __device__ int64_t Row(int i) const { return first + 32 * i; }

  int64_t first;
  uint32_t key[kPerThread];  // 0: no key
};

// Puts a block's items of the edge on the list. Returns how many of its rows are attended apart from them.
__device__ uint32_t ListEdge(const Task& task, const RowKeys& rows, const Boundary& boundary, uint32_t* edge,
                             uint32_t& listed) {
  uint32_t attended = 0, all = 0, votes[kPerThread];
#pragma unroll
  for (int i = 0; i < kPerThread; ++i) {
    const uint32_t key = rows.key[i];
    const int64_t row = rows.Row(i);
    attended += row < task.n && (key >= boundary.above || task.IsExtra(row)) ? 1 : 0;
    const bool at_edge = key >= boundary.edge && key < boundary.above && (task.page == 1 || row % task.page == 0);
    votes[i] = __ballot_sync(kAllLanes, at_edge);
    all += __popc(votes[i]);
  }
  if (all == 0) return attended;
  uint32_t at = 0;
  if (Lane() == 0) at = atomicAdd(&listed, all);
  at = __shfl_sync(kAllLanes, at, 0);
#pragma unroll
  for (int i = 0; i < kPerThread; ++i) {
    const uint32_t below = votes[i] & ((1u << Lane()) - 1);
    if ((votes[i] >> Lane() & 1u) != 0) edge[at + __popc(below)] = static_cast<uint32_t>(task.ItemOf(rows.Row(i)));
    at += __popc(votes[i]);
  }
  return attended;
}

// Cuts the edge; called by the last block to finish. edge_keys: shared memory of kShortEdge.
__device__ RadixCut CutEdge(const Task& task, const uint32_t* keys, const uint32_t* edge, const Boundary& boundary,
                            uint32_t* edge_keys, RadixScratch& radix) {
  if (boundary.edge == boundary.above) return {boundary.above, 0};
  const uint32_t length = boundary.inside;
  const auto load = [&](int64_t i) { return keys[__ldcg(edge + i)] - boundary.edge + 1; };
  if (length <= kShortEdge) {
    for (uint32_t i = threadIdx.x; i < length; i += kThreads) edge_keys[i] = load(i);
    __syncthreads();
  }
  const auto key_of = [&](int64_t i) { return length <= kShortEdge ? edge_keys[i] : load(i); };
  const auto age_of = [&](int64_t i) { return task.AgeOf(__ldcg(edge + i)); };
  // The outermost bins are wider than the others.
  const bool wide = boundary.edge == 1 || boundary.above == kNoKey;
  RadixCut cut = CutLargest(key_of, age_of, length, boundary.need, length, wide ? kKeyBits : kEdgeBits, radix);
  cut.key += boundary.edge - 1;
  return cut;
}

// Turns the number of rows per share (without the edge) into the offsets where they begin; returns the total.
__device__ uint32_t ShareOffsets(const Task& task, const uint32_t* keys, const uint32_t* edge, const Boundary& boundary,
                                 const RadixCut& cut, uint32_t* offsets, int shares, RadixScratch& radix) {
  for (uint32_t i = threadIdx.x; i < boundary.inside; i += kThreads) {
    const int64_t item = __ldcg(edge + i);
    if (!cut.Takes(keys[item], task.AgeOf(item))) continue;
    uint32_t rows = 0;
    for (int64_t row = item * task.page; row < (item + 1) * task.page; ++row) rows += task.IsExtra(row) ? 0 : 1;
    if (rows > 0) atomicAdd(&offsets[item * task.page / kShare], rows);
  }
  __syncthreads();
  uint32_t total = 0;
  for (int first = 0; first < shares; first += kThreads) {
    const int share = first + static_cast<int>(threadIdx.x);
    const uint32_t rows = share < shares ? __ldcg(offsets + share) : 0u;
    const uint32_t before = total + BlockExclusive(rows, radix);
    if (share < shares) offsets[share] = before;
    total += BlockSum(rows, 0, radix).x;
  }
  return total;
}

// Grid (tasks, shares of rows).
__global__ __launch_bounds__(kThreads) void CutKernel(TokenBatch batch, SelectCall call, ScoreTable table,
                                                      Selection selection) {
  __shared__ alignas(16) RadixScratch radix;
  __shared__ uint32_t edge_keys[kShortEdge];
  __shared__ bool is_last;
  const int64_t index = blockIdx.x, share = blockIdx.y, current = batch.rows[index / table.heads];
  if (share * kShare > current) return;
  const uint32_t* keys = table.Keys(index);
  const RowKeys rows(keys, share, ItemsOf(batch, call, table, index), call.page);
  const Task task(batch, call, table, index);
  ChoiceTally& tally = table.tallies[index];
  const Boundary boundary = FindBoundary(tally, CountItems(task, call.mean_counts, table, index), radix);
  uint32_t* edge = table.Edge(index);
  uint32_t* offsets = table.Offsets(index);
  const uint32_t attended = BlockSum(ListEdge(task, rows, boundary, edge, tally.listed), 0, radix).x;

  const int shares = static_cast<int>(current / kShare) + 1;
  if (threadIdx.x == 0) offsets[share] = attended;
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) is_last = atomicAdd(&tally.arrived, 1u) == static_cast<uint32_t>(shares - 1);
  __syncthreads();
  if (!is_last) return;
  __threadfence();
  const RadixCut cut = CutEdge(task, keys, edge, boundary, edge_keys, radix);
  const uint32_t all = ShareOffsets(task, keys, edge, boundary, cut, offsets, shares, radix);
  if (threadIdx.x != 0) return;
  if (all > selection.capacity) __trap();  // the list was allocated too small: a bug
  tally.cut = cut;
  selection.Count(task.token, task.head) = static_cast<int32_t>(all);
  AddTotals(call.totals[task.slot], static_cast<uint64_t>(boundary.count * task.page), all,
            static_cast<uint64_t>(task.n));
}

// ---- Writing the rows. Grid (tasks, shares of rows).
__global__ __launch_bounds__(kThreads) void WriteRowsKernel(TokenBatch batch, SelectCall call, ScoreTable table,
                                                            Selection selection) {
  __shared__ uint32_t warps[kThreads / 32];
  const int64_t index = blockIdx.x, share = blockIdx.y, current = batch.rows[index / table.heads];
  if (share * kShare > current) return;
  const RowKeys rows(table.Keys(index), share, ItemsOf(batch, call, table, index), call.page);
  const RadixCut cut = table.tallies[index].cut;
  uint32_t at = table.Offsets(index)[share];
  const Task task(batch, call, table, index);
  uint32_t votes[kPerThread], all = 0;
#pragma unroll
  for (int i = 0; i < kPerThread; ++i) {
    const int64_t row = rows.Row(i);
    const uint32_t key = rows.key[i];
    const bool chosen = key > cut.key || (key == cut.key && task.AgeOf(task.ItemOf(row)) >= cut.age);
    votes[i] = __ballot_sync(kAllLanes, row < task.n && (chosen || task.IsExtra(row)));
    all += __popc(votes[i]);
  }
  if (Lane() == 0) warps[Warp()] = all;
  __syncthreads();
  for (int w = 0; w < Warp(); ++w) at += warps[w];
  int32_t* out = selection.Rows(task.token, task.head);
#pragma unroll
  for (int i = 0; i < kPerThread; ++i) {
    const uint32_t below = votes[i] & ((1u << Lane()) - 1);
    if ((votes[i] >> Lane() & 1u) != 0) {
      out[at + __popc(below)] = static_cast<int32_t>(rows.Row(i));
      if (table.tail_floats > 0) table.LeaveOut(index, rows.Row(i));
    }
    at += __popc(votes[i]);
  }
}

}  // namespace

void MakeKeys(cudaStream_t stream, const TokenBatch& batch, const SelectCall& call, const ScoreTable& table) {
  const dim3 grid(static_cast<unsigned>(batch.count * table.heads),
                  static_cast<unsigned>((table.items + kShare - 1) / kShare));
  MakeKeysKernel<<<grid, kThreads, 0, stream>>>(batch, call, table);
  CUDA_CHECK_LAUNCH();
}

void ChooseRowsSplit(cudaStream_t stream, const TokenBatch& batch, const SelectCall& call, const ScoreTable& table,
                     const Selection& selection) {
  CHECK(kShare % call.page == 0);
  const dim3 shares(static_cast<unsigned>(batch.count * table.heads),
                    static_cast<unsigned>((call.max_rows + kShare - 1) / kShare));
  CHECK(shares.y <= table.chunk_count);  // the table has one offset per share
  if (call.by_mass) {
    CountMassKernel<<<static_cast<unsigned>(batch.count * table.heads), kMassThreads, 0, stream>>>(batch, call, table);
    CUDA_CHECK_LAUNCH();
  }
  MakeKeys(stream, batch, call, table);
  CutKernel<<<shares, kThreads, 0, stream>>>(batch, call, table, selection);
  CUDA_CHECK_LAUNCH();
  WriteRowsKernel<<<shares, kThreads, 0, stream>>>(batch, call, table, selection);
  CUDA_CHECK_LAUNCH();
}

}  // namespace infinigen
