// Late rows (kv/select.h): the best rows that a guess missed join the selections.
//
// Keys and their histogram are made as for a selection (choose_split.cu). Late rows are few, so one block per task does
// the rest: it lists the rows whose keys the histogram leaves in question, ranks them against each other, and merges
// those that win with the selection.
#include "backend/cuda/choose.cuh"
#include "backend/cuda/choose_bins.cuh"

namespace infinigen {
namespace {

constexpr int kLateThreads = 1024;
// More rows in question than this, which takes many equal scores, are cut by their digits instead (radix_select.cuh).
constexpr int kMostRanked = 2048;

// The rows in question, unordered.
struct RankedRows {
  uint32_t keys[kMostRanked];
  uint32_t ages[kMostRanked];
  int32_t rows[kMostRanked];
  uint32_t count;
};

// Lists the rows with keys of at least `least`; there are at most kMostRanked.
__device__ void ListRows(const Task& task, const uint32_t* keys, uint32_t least, RankedRows& list) {
  if (threadIdx.x == 0) list.count = 0;
  __syncthreads();
  ForItems<8>(
      task.items, [&](int64_t i) { return keys[i]; },
      [&](int i, uint32_t key) {
        if (key < least) return;
        const uint32_t at = atomicAdd(&list.count, 1u);
        list.keys[at] = key;
        list.ages[at] = task.AgeOf(i);
        list.rows[at] = i;
      });
  __syncthreads();
}

// Writes the `wanted` best rows of the list, ascending. Every row is compared with all others, twice.
__device__ void WriteBest(RankedRows& list, uint32_t wanted, int32_t* out) {
  const uint32_t count = list.count;
  bool wins[kMostRanked / kLateThreads] = {};
  const auto for_own = [&](auto&& use) {
    for (uint32_t k = 0, i = threadIdx.x; i < count; ++k, i += kLateThreads) use(i, wins[k]);
  };
  for_own([&](uint32_t i, bool& wins_i) {
    uint32_t better = 0;
    for (uint32_t j = 0; j < count; ++j)
      better += RadixCut{list.keys[i], list.ages[i] + 1}.Takes(list.keys[j], list.ages[j]) ? 1 : 0;
    wins_i = better < wanted;
  });
  __syncthreads();
  for_own([&](uint32_t i, const bool& wins_i) { list.keys[i] = wins_i ? 1u : 0u; });
  __syncthreads();
  for_own([&](uint32_t i, const bool& wins_i) {
    if (!wins_i) return;
    uint32_t before = 0;
    for (uint32_t j = 0; j < count; ++j) before += list.rows[j] < list.rows[i] ? list.keys[j] : 0u;
    out[before] = list.rows[i];
  });
}

// The number of `rows` [count], which ascend, that are less than `row`.
__device__ int CountBelow(const int32_t* rows, int count, int32_t row) {
  int low = 0, high = count;
  while (low < high) {
    const int middle = (low + high) / 2;
    if (rows[middle] < row)
      low = middle + 1;
    else
      high = middle;
  }
  return low;
}

// Merges the selection of one (token, KV head) and its late rows, which late.items holds, to late.all. The items become
// indices in late.all.
__device__ void MergeLate(const Selection& selection, const LateSelection& late, int64_t token, int64_t head,
                          int added) {
  const int32_t* rows = selection.Rows(token, head);
  int32_t* items = late.Items(token, head);
  int32_t* all = late.all.Rows(token, head);
  const int count = selection.Count(token, head);
  if (count + added > late.all.capacity) __trap();  // the list was allocated too small: a bug
  for (int i = static_cast<int>(threadIdx.x); i < count; i += kLateThreads) {
    const int32_t row = rows[i];
    all[i + CountBelow(items, added, row)] = row;
  }
  __syncthreads();  // from here on an item is touched by one thread only
  for (int i = static_cast<int>(threadIdx.x); i < added; i += kLateThreads) {
    const int32_t row = items[i], at = i + CountBelow(rows, count, row);
    all[at] = row;
    items[i] = at;
  }
  if (threadIdx.x != 0) return;
  late.Count(token, head) = added;
  late.all.Count(token, head) = count + added;
}

// Grid (tasks).
__global__ __launch_bounds__(kLateThreads) void AddLateRowsKernel(const __grid_constant__ TokenBatch batch,
                                                                  const __grid_constant__ SelectCall call,
                                                                  const __grid_constant__ ScoreTable table) {
  __shared__ alignas(16) RadixScratch radix;
  __shared__ RankedRows list;
  const Task task(batch, call, table, blockIdx.x);
  const LateSelection& late = call.late;
  const uint32_t* keys = table.Keys(blockIdx.x);
  int32_t* items = late.Items(task.token, task.head);
  const Boundary boundary = FindBoundary(table.tallies[blockIdx.x], task.rule.LateRows(), radix);
  const auto added = static_cast<uint32_t>(boundary.count);
  if (added > late.capacity) __trap();  // as above
  if (added - boundary.need + boundary.inside <= kMostRanked) {
    ListRows(task, keys, boundary.edge, list);
    WriteBest(list, added, items);
  } else {
    const auto key_of = [&](int64_t i) { return keys[i]; };
    const auto age_of = [&](int64_t i) { return task.AgeOf(i); };
    const uint32_t candidates = boundary.edge == boundary.above ? added : added + 1;  // added + 1: some number above
    const RadixCut cut = CutLargest(key_of, age_of, task.items, added, candidates, kKeyBits, radix);
    const uint32_t least = candidates == added ? boundary.above : 0;
    WriteRows([&](int64_t row) { return keys[row] >= least && cut.Takes(keys[row], age_of(row)); }, task.items, items,
              late.capacity, radix);
  }
  __syncthreads();
  for (uint32_t i = threadIdx.x; i < added; i += kLateThreads) table.LeaveOut(blockIdx.x, items[i]);
  __syncthreads();  // items become indices
  MergeLate(table.listed, late, task.token, task.head, static_cast<int>(added));
  if (threadIdx.x == 0) AddLate(call.totals[task.slot], added);
}

}  // namespace

void ChooseLateRows(cudaStream_t stream, const TokenBatch& batch, const SelectCall& call, const ScoreTable& table) {
  CHECK(table.late && table.splits && table.listed.rows != nullptr && call.late.all.kv_heads == table.heads);
  MakeKeys(stream, batch, call, table);
  AddLateRowsKernel<<<static_cast<unsigned>(batch.count * table.heads), kLateThreads, 0, stream>>>(batch, call, table);
  CUDA_CHECK_LAUNCH();
}

}  // namespace infinigen
