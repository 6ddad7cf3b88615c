// The choice of rows from scores of any kind (select.cuh), by kv/selection.h.
//
//   1. Keys. The relative score r ≤ 0 of an item becomes a key of 31 bits: larger r, larger key; 0 where r is not a
//      number. A threshold on r is one on keys.
//   2. The choice, one block per (token, KV head): count, cut off the largest by radix_select.cuh, then write the rows
//      that are attended, in ascending order.
//
// Where the keys of a sequence fit into shared memory, both are one kernel. Otherwise (and for mean counts, where a
// head has to know the others') keys are made by many blocks and chosen from memory.
#include "backend/cuda/select.cuh"

namespace infinigen {
namespace {

constexpr int kKeyThreads = 256;

constexpr int kKeyBits = 31;
constexpr uint32_t kInfinityBits = 0x7f800000u;

// r ≤ 0, or not a number.
__device__ uint32_t KeyOf(float relative) {
  return relative != relative ? 0u : kInfinityBits + 1 - (__float_as_uint(relative) & 0x7fffffffu);
}
// The least key that passes r ≥ −alpha.
__device__ uint32_t LeastKey(float alpha) {
  return alpha >= 0 ? kInfinityBits + 1 - (__float_as_uint(alpha) & 0x7fffffffu) : 0xffffffffu;
}

__device__ int64_t ItemsOf(const SelectCall& call, int64_t current) {
  const int64_t visible = call.Visible(current);
  return call.page > 1 ? visible / call.page : visible;
}

// maxima [group] in shared memory; the block waits for them.
__device__ void LoadMaxima(const ScoreTable& table, int64_t task, int64_t items, float* maxima) {
  for (int g = Warp(); g < table.group; g += Warps()) {
    const float largest = HeadMaximum(table, task, g, items);
    if (Lane() == 0) maxima[g] = largest;
  }
  __syncthreads();
}
__device__ uint32_t MakeKey(const ScoreTable& table, int64_t task, int64_t item, const float* maxima) {
  float relative = __uint_as_float(0x7fc00000u);
  const float* scores = table.Scores(task, 0) + item;
  for (int g = 0; g < table.group; ++g) relative = fmaxf(relative, scores[g * table.row_stride] - maxima[g]);
  return KeyOf(relative);
}

// Grid (tasks, chunks).
__global__ __launch_bounds__(kKeyThreads) void MakeKeysKernel(TokenBatch batch, SelectCall call, ScoreTable table) {
  __shared__ float maxima[kMaxGroup];
  const int64_t task = blockIdx.x, items = ItemsOf(call, batch.rows[task / table.heads]);
  const int64_t start = blockIdx.y * kScoreChunk, end = min(start + kScoreChunk, items);
  if (start >= items) return;  // its chunks are not those of the maxima
  LoadMaxima(table, task, items, maxima);
  const auto make = [&](int i) { return MakeKey(table, task, start + i, maxima); };
  ForItems<4>(end - start, make, [&](int i, uint32_t key) { table.Keys(task)[start + i] = key; });
}

// Grid (tasks): passing[task] = rows that pass the threshold.
__global__ __launch_bounds__(1024) void CountPassingKernel(TokenBatch batch, SelectCall call, ScoreTable table) {
  __shared__ RadixScratch radix;
  const int64_t task = blockIdx.x, token = task / table.heads, items = ItemsOf(call, batch.rows[token]);
  const uint32_t least = LeastKey(call.rules[batch.slots[token]].alpha);
  uint32_t passing = 0;
  for (int64_t i = threadIdx.x; i < items; i += blockDim.x) passing += table.Keys(task)[i] >= least ? 1 : 0;
  passing = BlockSum(passing, 0, radix).x;
  if (threadIdx.x == 0) table.passing[task] = static_cast<int32_t>(passing * call.page);
}

// ---- The choice.

// One (token, KV head).
struct Task {
  __device__ Task(const TokenBatch& batch, const SelectCall& call, const ScoreTable& table, int64_t index)
      : token(index / table.heads),
        head(index % table.heads),
        slot(batch.slots[token]),
        n(batch.rows[token] + 1),
        visible(call.Visible(n - 1)),
        items(ItemsOf(call, n - 1)),
        rule(call.RuleFor(slot, n - 1)),
        window(batch.Position(token) - rule.window),
        positions(call.retained ? call.retained.Positions(slot, head) : nullptr) {}

  __device__ int64_t PositionOf(int64_t row) const { return positions == nullptr ? row : positions[row]; }
  // Attended whatever its score.
  __device__ bool IsExtra(int64_t row) const {
    const int64_t position = PositionOf(row);
    return position < rule.sinks || position >= window;
  }

  int64_t token, head, slot;
  int64_t n;               // rows, the current one's included
  int64_t visible, items;  // those that have a score, as rows and as items
  SelectRule rule;
  int64_t window;  // extra from this position on
  const int32_t* positions;
};

// Rows that are chosen by threshold and cap (ChosenCount of kv/selection.h).
__device__ int64_t CountChosen(const Task& task, int64_t passing, int64_t page) {
  const int64_t least = task.rule.min_rows, most = max(task.rule.Capped(task.n), least);
  return WholePages(min(task.visible, min(max(passing, least), most)), page);
}

__device__ uint32_t CountExtras(const Task& task, RadixScratch& radix) {
  uint32_t extras = 0;
  for (int64_t row = threadIdx.x; row < task.n; row += blockDim.x) extras += task.IsExtra(row) ? 1 : 0;
  return BlockSum(extras, 0, radix).x;
}

__device__ void AddTotals(SelectionTotals& totals, uint64_t chosen, uint64_t attended, uint64_t retained) {
  using Word = unsigned long long;
  static_assert(sizeof(Word) == sizeof(totals.chosen));
  atomicAdd(reinterpret_cast<Word*>(&totals.chosen), static_cast<Word>(chosen));
  atomicAdd(reinterpret_cast<Word*>(&totals.attended), static_cast<Word>(attended));
  atomicAdd(reinterpret_cast<Word*>(&totals.retained), static_cast<Word>(retained));
}

// Grid (tasks). keys_made: the keys lie in the table; otherwise they are made here, in shared memory.
__global__ __launch_bounds__(1024) void ChooseRowsKernel(TokenBatch batch, SelectCall call, ScoreTable table,
                                                         Selection selection, bool keys_made) {
  extern __shared__ __align__(16) std::byte shared[];
  __shared__ RadixScratch radix;
  __shared__ float maxima[kMaxGroup];
  const Task task(batch, call, table, blockIdx.x);
  const int64_t page = call.page;
  uint32_t* keys = keys_made ? table.Keys(blockIdx.x) : reinterpret_cast<uint32_t*>(shared);
  if (!keys_made) LoadMaxima(table, blockIdx.x, task.items, maxima);

  const bool forced = task.rule.force_count > 0;
  const uint32_t least = LeastKey(task.rule.alpha);
  uint32_t passing = 0, candidates = 0;
  const auto key_at = [&](int i) { return keys_made ? keys[i] : MakeKey(table, blockIdx.x, i, maxima); };
  ForItems<4>(task.items, key_at, [&](int i, uint32_t key) {
    passing += key >= least ? 1 : 0;
    const bool drops = forced && page == 1 && task.IsExtra(i);  // a forced count is filled up by others
    if (drops) key = 0;
    if (drops || !keys_made) keys[i] = key;
    candidates += key != 0 ? 1 : 0;
  });
  const uint2 sums = BlockSum(passing, candidates, radix);
  candidates = sums.y;

  int64_t count = 0;
  if (forced) {
    count = max(int64_t{0}, min(static_cast<int64_t>(task.rule.force_count), task.n) - CountExtras(task, radix));
  } else {
    int64_t rows = static_cast<int64_t>(sums.x) * page;
    if (call.mean_counts) {
      rows = 0;
      for (int64_t head = 0; head < table.heads; ++head) rows += table.passing[task.token * table.heads + head];
      rows /= table.heads;
    }
    count = CountChosen(task, rows, page);
  }
  count = min(count / page, static_cast<int64_t>(candidates));  // items, from here on

  const auto key_of = [&](int64_t i) { return keys[i]; };
  const auto age_of = [&](int64_t i) { return static_cast<uint32_t>(task.PositionOf(i)) + 1; };
  const RadixCut cut =
      CutLargest(key_of, age_of, task.items, static_cast<uint32_t>(count), candidates, kKeyBits, radix);
  const auto attends = [&](int64_t row) {
    const int64_t item = page == 1 ? row : static_cast<uint32_t>(row) / static_cast<uint32_t>(page);
    return (item < task.items && cut.Takes(keys[item], age_of(item))) || task.IsExtra(row);
  };
  const uint32_t attended =
      WriteRows(attends, task.n, selection.Rows(task.token, task.head), selection.capacity, radix);
  if (threadIdx.x == 0) {
    selection.Count(task.token, task.head) = static_cast<int32_t>(attended);
    AddTotals(call.totals[task.slot], static_cast<uint64_t>(count * page), attended, static_cast<uint64_t>(task.n));
  }
}

}  // namespace

void ChooseRows(const CudaContext& context, cudaStream_t stream, const TokenBatch& batch, const SelectCall& call,
                const ScoreTable& table, const Selection& selection) {
  CHECK(call.page == 1 || !call.retained);
  const auto tasks = static_cast<unsigned>(batch.count * table.heads);
  // Few rows: many small blocks on a processor hide each other's barriers. 4,096 rows are 16 for each of 256 threads.
  const int threads = call.max_rows <= 4096 ? 256 : 1024;
  const size_t key_bytes = static_cast<size_t>(table.items) * sizeof(uint32_t);
  constexpr size_t kFixedBytes = sizeof(RadixScratch) + kMaxGroup * sizeof(float) + 1024;
  const bool in_shared =
      !call.mean_counts && key_bytes + kFixedBytes <= static_cast<size_t>(context.max_shared_bytes());
  if (!in_shared) {
    const dim3 grid(tasks, static_cast<unsigned>((table.items + kScoreChunk - 1) / kScoreChunk));
    MakeKeysKernel<<<grid, kKeyThreads, 0, stream>>>(batch, call, table);
    CUDA_CHECK_LAUNCH();
  } else {
    AllowShared(context, ChooseRowsKernel, key_bytes);
  }
  if (call.mean_counts) {
    CountPassingKernel<<<tasks, threads, 0, stream>>>(batch, call, table);
    CUDA_CHECK_LAUNCH();
  }
  ChooseRowsKernel<<<tasks, threads, in_shared ? key_bytes : 0, stream>>>(batch, call, table, selection, !in_shared);
  CUDA_CHECK_LAUNCH();
}

}  // namespace infinigen
