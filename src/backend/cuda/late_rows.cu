// Late rows (kv/select.h): the best rows that a guess missed, chosen by choose_split.cu, join the selections.
#include "backend/cuda/choose.cuh"

namespace infinigen {
namespace {

constexpr int kMergeThreads = 256;

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
// indices in late.all. Grid (tasks).
__global__ __launch_bounds__(kMergeThreads) void MergeLateKernel(Selection selection, LateSelection late) {
  const int64_t token = blockIdx.x / selection.kv_heads, head = blockIdx.x % selection.kv_heads;
  const int32_t* rows = selection.Rows(token, head);
  int32_t* items = late.Items(token, head);
  int32_t* all = late.all.Rows(token, head);
  const int count = selection.Count(token, head), added = late.Count(token, head);
  if (count + added > late.all.capacity) __trap();  // the list was allocated too small: a bug
  for (int i = static_cast<int>(threadIdx.x); i < count; i += kMergeThreads) {
    const int32_t row = rows[i];
    all[i + CountBelow(items, added, row)] = row;
  }
  __syncthreads();  // from here on an item is touched by one thread only
  for (int i = static_cast<int>(threadIdx.x); i < added; i += kMergeThreads) {
    const int32_t row = items[i], at = i + CountBelow(rows, count, row);
    all[at] = row;
    items[i] = at;
  }
  if (threadIdx.x == 0) late.all.Count(token, head) = count + added;
}

}  // namespace

void ChooseLateRows(cudaStream_t stream, const TokenBatch& batch, const SelectCall& call, const ScoreTable& table) {
  const LateSelection& late = call.late;
  CHECK(table.late && table.splits && table.listed.rows != nullptr && late.all.kv_heads == table.heads);
  ChooseRowsSplit(stream, batch, call, table, {late.items, late.counts, late.capacity, table.heads});
  MergeLateKernel<<<static_cast<unsigned>(batch.count * table.heads), kMergeThreads, 0, stream>>>(table.listed, late);
  CUDA_CHECK_LAUNCH();
}

}  // namespace infinigen
