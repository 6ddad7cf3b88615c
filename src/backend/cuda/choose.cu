// Chooses rows from scores of any kind (select.cuh), as kv/select.h defines.
//
// For few rows, one block per (token, KV head) keeps the keys of all items in shared memory, counts, finds the cut
// (radix_select.cuh) and writes the attended rows in ascending order. For many rows, one block would read memory
// repeatedly while most of the GPU is idle: choose_split.cu.
#include "backend/cuda/choose.cuh"
#include "backend/cuda/choose_mass.cuh"

namespace infinigen {
namespace {

// 16 rows for each of 256 threads: many small blocks on a multiprocessor hide each other's barriers.
constexpr int kThreads = 256;
constexpr int64_t kFewRows = 4096;

__device__ uint32_t MakeKey(const ScoreTable& table, int64_t task, int64_t item, const float* maxima) {
  float relative = __uint_as_float(0x7fc00000u);
  const float* scores = table.Scores(task, 0) + item;
  for (int g = 0; g < table.group; ++g) relative = fmaxf(relative, scores[g * table.row_stride] - maxima[g]);
  return KeyOf(relative);
}

__device__ int64_t CountExtras(const Task& task, RadixScratch& radix) {
  if (task.positions == nullptr) return task.PlainExtras();
  uint32_t extras = 0;
  for (int64_t row = threadIdx.x; row < task.n; row += blockDim.x) extras += task.IsExtra(row) ? 1 : 0;
  return BlockSum(extras, 0, radix).x;
}

// Grid (tasks). Shared memory [items]: keys.
__global__ __launch_bounds__(kThreads) void ChooseRowsKernel(TokenBatch batch, SelectCall call, ScoreTable table,
                                                             Selection selection) {
  extern __shared__ __align__(16) uint32_t keys[];
  __shared__ RadixScratch radix;
  __shared__ MassScratch mass;
  __shared__ float maxima[kMaxGroup];
  const Task task(batch, call, table, blockIdx.x);
  LoadMaxima(table, blockIdx.x, task.items, maxima);
  // The memory of the keys holds the shares first.
  const int64_t by_mass = task.CountsByMass() ? CountForMass(table, blockIdx.x, task, maxima, keys, mass) : 0;

  const uint32_t least = task.Threshold();
  uint32_t passing = 0, candidates = 0;
  const auto make = [&](int i) { return MakeKey(table, blockIdx.x, i, maxima); };
  ForItems<4>(task.items, make, [&](int i, uint32_t key) {
    passing += key >= least ? 1 : 0;
    if (task.DropsExtras() && task.IsExtra(i)) key = 0;
    keys[i] = key;
    candidates += key != 0 ? 1 : 0;
  });
  const uint2 sums = BlockSum(passing, candidates, radix);
  candidates = sums.y;

  int64_t count = task.rule.force_count > 0 ? task.CountForced(CountExtras(task, radix))
                  : task.CountsByMass()     ? task.CountChosen(by_mass)
                                            : task.CountChosen(static_cast<int64_t>(sums.x) * task.page);
  count = min(count, static_cast<int64_t>(candidates));

  const auto key_of = [&](int64_t i) { return keys[i]; };
  const auto age_of = [&](int64_t i) { return task.AgeOf(i); };
  const RadixCut cut =
      CutLargest(key_of, age_of, task.items, static_cast<uint32_t>(count), candidates, kKeyBits, radix);
  const auto attends = [&](int64_t row) {
    const int64_t item = task.ItemOf(row);
    return (item < task.items && cut.Takes(keys[item], age_of(item))) || task.IsExtra(row);
  };
  const uint32_t attended =
      WriteRows(attends, task.n, selection.Rows(task.token, task.head), selection.capacity, radix);
  if (table.tail_floats > 0) {
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < attended; i += kThreads)
      table.LeaveOut(blockIdx.x, selection.Rows(task.token, task.head)[i]);
  }
  if (threadIdx.x == 0) {
    selection.Count(task.token, task.head) = static_cast<int32_t>(attended);
    AddTotals(call.totals[task.slot], static_cast<uint64_t>(count * task.page), attended,
              static_cast<uint64_t>(task.n));
  }
}

}  // namespace

bool SplitsChoice(const SelectCall& call) {
  return call.mean_counts || call.max_rows > kFewRows;  // mean counts need the counts of all heads
}

void ChooseRows(const CudaContext& context, cudaStream_t stream, const TokenBatch& batch, const SelectCall& call,
                const ScoreTable& table, const Selection& selection) {
  CHECK(call.page == 1 || !call.retained);
  if (table.splits) return ChooseRowsSplit(stream, batch, call, table, selection);
  const size_t key_bytes = static_cast<size_t>(table.items) * sizeof(uint32_t);
  AllowShared(context, ChooseRowsKernel, key_bytes);
  ChooseRowsKernel<<<static_cast<unsigned>(batch.count * table.heads), kThreads, key_bytes, stream>>>(batch, call,
                                                                                                      table, selection);
  CUDA_CHECK_LAUNCH();
}

}  // namespace infinigen
