// AssignCells: finds the cells of selected rows and lists the misses; one block per (token, KV head), all on the
// device.
//
// A hot set consists of three tables (kv/selection_view.h). One pass looks up the n selected rows: hits set a bit for
// their cell in shared memory, misses are counted. The misses take the least recently used cells without a bit, which a
// radix selection by age finds without sorting (radix_select.cuh). The k-th miss takes the k-th of these cells. Ranks
// depend on rows and cells only, so the result does not depend on the order in which threads run.
//
// A selection with more rows than cells is read from the pool.
//
// AssignLate does the same for late rows, while the entries of the selection may still be on their way: it reads the
// cells of the selection from the first list and writes a second one.
#include <algorithm>

#include "backend/cuda/context.h"
#include "backend/cuda/cuda_backend.h"
#include "backend/cuda/select.cuh"

namespace infinigen {
namespace {

struct FindCall {
  TokenBatch batch;
  Selection selection;
  FetchBuffer buffer;
  FetchList list;
  FetchTotals* totals = nullptr;
  FetchShare share;
};

// The selection of one block and the lists it writes.
struct FindTask {
  int64_t token, head, slot;
  const int32_t* rows;
  int n;
  int32_t own;  // row of the token's own entry
  int32_t* cells;
  int32_t* misses;

  __device__ explicit FindTask(const FindCall& call)
      : token(blockIdx.x / call.selection.kv_heads),
        head(blockIdx.x % call.selection.kv_heads),
        slot(call.batch.slots[token]),
        rows(call.selection.Rows(token, head)),
        n(call.selection.Count(token, head)),
        own(call.batch.OwnRow(token, head)),
        cells(call.list.Cells(token, head)),
        misses(call.list.Misses(token, head)) {}

  __device__ bool exceeds_buffer(const FindCall& call) const { return n > call.buffer.capacity; }
};

// Called by one thread. `misses` is the number of fetched rows; `crossing` counts all rows read over the link.
__device__ void Report(const FindCall& call, const FindTask& task, int32_t misses, int32_t own_cell, int32_t crossing) {
  call.list.MissCount(task.token, task.head) = misses;
  call.list.Own(task.token, task.head) = own_cell;
  static_assert(sizeof(unsigned long long) == sizeof(uint64_t));
  FetchTotals& totals = call.totals[task.slot];
  atomicAdd(reinterpret_cast<unsigned long long*>(&totals.wanted), static_cast<unsigned long long>(task.n - 1));
  atomicAdd(reinterpret_cast<unsigned long long*>(&totals.fetched), static_cast<unsigned long long>(crossing));
}

// Marks every row as in the pool; attention then reads them there.
__device__ void UsePool(const FindCall& call, const FindTask& task) {
  for (int i = static_cast<int>(threadIdx.x); i < task.n; i += static_cast<int>(blockDim.x))
    task.cells[i] = FetchList::InPool(task.rows[i]);
  if (threadIdx.x == 0) Report(call, task, 0, FetchList::InPool(task.own), task.n - 1);
}

// Without a hot set: cells follow the order of the selection.
__global__ void AssignInOrder(const __grid_constant__ FindCall call) {
  __shared__ int own_item;
  const FindTask task(call);
  if (task.exceeds_buffer(call)) return UsePool(call, task);
  if (threadIdx.x == 0) own_item = -1;
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < task.n; i += static_cast<int>(blockDim.x))
    if (task.rows[i] == task.own) own_item = i;
  __syncthreads();
  const int own = own_item;
  if (own < 0) __trap();  // a selection without the token's own row: a bug
  const int own_taken = call.share.Takes(own) ? 1 : 0;
  for (int i = static_cast<int>(threadIdx.x); i < task.n; i += static_cast<int>(blockDim.x)) {
    task.cells[i] = i;
    if (i != own && call.share.Takes(i)) task.misses[call.share.Of(i) - (i > own ? own_taken : 0)] = i;
  }
  if (threadIdx.x != 0) return;
  const int32_t misses = static_cast<int32_t>(call.share.Of(task.n)) - own_taken;
  Report(call, task, misses, own, misses);
}

// ---- With a hot set

// State of one (token, KV head) while its block runs.
struct HotTask : FindTask {
  int32_t* holds;
  int32_t* used;
  int32_t* cell_of;
  int capacity;
  int32_t now;  // position of the token
  int own_item = -1, own_cell = -1;
  uint32_t missing = 0;

  __device__ explicit HotTask(const FindCall& call)
      : FindTask(call),
        holds(call.buffer.Holds(slot, head)),
        used(call.buffer.Used(slot, head)),
        cell_of(call.buffer.CellOf(slot, head)),
        capacity(static_cast<int>(call.buffer.capacity)),
        now(call.batch.Position(token)) {}

  // List index of the row that takes free cell number `rank`: the misses in order, then the token's own row.
  __device__ int WithoutCell(uint32_t rank) const { return rank < missing ? misses[rank] : own_item; }
  // Called by one thread.
  __device__ void DropOwn() const {
    const int32_t cell = cell_of[own];
    if (cell < 0) return;
    holds[cell] = -1;
    cell_of[own] = -1;
  }
};

// Looks up the selected rows. Bits of `kept` mark the cells of hits.
__device__ void LookUp(HotTask& task, uint32_t* kept, RadixScratch& radix) {
  __shared__ int own_item, own_cell;
  for (int i = static_cast<int>(threadIdx.x); i < (task.capacity + 31) / 32; i += static_cast<int>(blockDim.x))
    kept[i] = 0;
  if (threadIdx.x == 0) own_item = own_cell = -1;
  __syncthreads();
  constexpr int kBatch = 4;  // lookups in flight per thread
  const int step = static_cast<int>(blockDim.x);
  for (int first = static_cast<int>(threadIdx.x); first < task.n; first += kBatch * step) {
    int32_t rows[kBatch], cells[kBatch];
#pragma unroll
    for (int b = 0; b < kBatch; ++b) rows[b] = first + b * step < task.n ? task.rows[first + b * step] : -1;
#pragma unroll
    for (int b = 0; b < kBatch; ++b) cells[b] = rows[b] >= 0 ? task.cell_of[rows[b]] : -1;
#pragma unroll
    for (int b = 0; b < kBatch; ++b) {
      if (rows[b] < 0) continue;
      task.cells[first + b * step] = cells[b];
      if (rows[b] == task.own) {
        own_item = first + b * step;
        own_cell = cells[b];
      }
      if (cells[b] < 0) continue;
      atomicOr(&kept[cells[b] / 32], 1u << (cells[b] % 32));
      task.used[cells[b]] = task.now;
    }
  }
  __syncthreads();
  task.own_item = own_item;
  task.own_cell = own_cell;
  if (own_item < 0) __trap();  // a selection without the token's own row: a bug
  const auto missing = [&](int64_t i) { return task.cells[i] < 0 && i != task.own_item; };
  task.missing = WriteRows(missing, task.n, task.misses, task.n, radix);
  __syncthreads();  // other threads read the misses from here on
}

// Assigns cells to rows without one, in ascending order: all cells with a key above `least` and the first `need` cells
// with key `least`. A warp owns a range of cells: it counts, learns its ranks, then assigns.
template <class KeyOf>
__device__ void HandOut(const HotTask& task, const KeyOf& key_of, const RadixBound& cut, int32_t* own_cell,
                        RadixScratch& radix) {
  const int share = (task.capacity + static_cast<int>(blockDim.x) - 1) / static_cast<int>(blockDim.x) * 32;
  const int begin = Warp() * share, end = min(begin + share, task.capacity);
  uint32_t above = 0, ties = 0;
  for (int cell = begin + Lane(); cell < end; cell += 32) {
    const uint32_t key = key_of(cell);
    above += key > cut.least ? 1 : 0;
    ties += key == cut.least ? 1 : 0;
  }
  above = __reduce_add_sync(kAllLanes, above);
  ties = __reduce_add_sync(kAllLanes, ties);
  uint32_t ties_before = BlockExclusive(Lane() == 0 ? ties : 0, radix);
  uint32_t rank = BlockExclusive(Lane() == 0 ? above : 0, radix);
  ties_before = __shfl_sync(kAllLanes, ties_before, 0);
  rank = __shfl_sync(kAllLanes, rank, 0) + min(ties_before, cut.need);

  const uint32_t lower = (1u << Lane()) - 1;
  for (int first = begin; first < end; first += 32) {
    const int cell = first + Lane();
    const uint32_t key = cell < end ? key_of(cell) : 0;
    const bool tie = cell < end && key == cut.least;
    const uint32_t tied = __ballot_sync(kAllLanes, tie);
    const bool takes = cell < end && (key > cut.least || (tie && ties_before + __popc(tied & lower) < cut.need));
    const uint32_t takers = __ballot_sync(kAllLanes, takes);
    if (takes) {
      const int item = task.WithoutCell(rank + __popc(takers & lower));
      const int32_t leaves = task.holds[cell], row = task.rows[item];
      if (leaves >= 0) task.cell_of[leaves] = -1;
      task.cell_of[row] = cell;
      task.holds[cell] = row;
      task.used[cell] = task.now;
      task.cells[item] = cell;
      if (item == task.own_item) *own_cell = cell;
    }
    ties_before += __popc(tied);
    rank += __popc(takers);
  }
}

// Dynamic shared memory: one bit per cell.
__global__ void FindInHotSet(const __grid_constant__ FindCall call) {
  extern __shared__ uint32_t kept[];
  __shared__ RadixScratch radix;
  __shared__ int32_t own_cell;
  HotTask task(call);
  if (task.exceeds_buffer(call)) {
    if (threadIdx.x == 0) task.DropOwn();
    return UsePool(call, task);
  }
  LookUp(task, kept, radix);
  if (threadIdx.x == 0) own_cell = task.own_cell;

  // From here on the hits are fixed. Keys are ages, at least 1; 0 for the cells of hits.
  const uint32_t without_cell = task.missing + (task.own_cell < 0 ? 1 : 0);
  const uint32_t candidates = static_cast<uint32_t>(task.capacity - task.n) + without_cell;
  const auto key_of = [&](int64_t cell) {
    if ((kept[cell / 32] >> (cell % 32) & 1) != 0) return 0u;
    return static_cast<uint32_t>(max(0, task.now - task.used[cell])) + 1;
  };
  if (without_cell > 0) {
    const int bits = 32 - __clz(task.now + 2);  // bits of the largest key, that of a cell never used
    const RadixBound cut = without_cell == candidates ? RadixBound{0, 0, 0}
                                                      : SelectLargest(key_of, task.capacity, without_cell, bits, radix);
    __syncthreads();  // own_cell is set; from here on threads touch their own cells only
    HandOut(task, key_of, cut, &own_cell, radix);
  }
  __syncthreads();
  const auto misses = static_cast<int32_t>(task.missing);
  if (threadIdx.x == 0) Report(call, task, misses, own_cell, misses);
}

// ---- Late rows

struct LateCall {
  FindCall find;  // of the selections with late rows; its list receives the result
  LateSelection late;
  FetchList before;  // of the selections without late rows
};

// Called by one thread.
__device__ void ReportLate(const LateCall& call, const FindTask& task, int32_t misses, uint32_t late,
                           uint32_t crossing) {
  call.find.list.MissCount(task.token, task.head) = misses;
  call.find.list.Own(task.token, task.head) = call.before.Own(task.token, task.head);
  FetchTotals& totals = call.find.totals[task.slot];
  atomicAdd(reinterpret_cast<unsigned long long*>(&totals.wanted), static_cast<unsigned long long>(late));
  atomicAdd(reinterpret_cast<unsigned long long*>(&totals.fetched), static_cast<unsigned long long>(crossing));
}

// Copies the cells of the rows that were selected before to their places among the late rows. Late rows have no cell
// yet.
__device__ void CopyCells(const LateCall& call, const FindTask& task, const int32_t* items, int late) {
  const int32_t* before = call.before.Cells(task.token, task.head);
  for (int i = static_cast<int>(threadIdx.x); i < task.n; i += static_cast<int>(blockDim.x)) {
    int low = 0, high = late;  // number of late items before i
    while (low < high) {
      const int middle = (low + high) / 2;
      if (items[middle] < i)
        low = middle + 1;
      else
        high = middle;
    }
    if (low == late || items[low] != i) task.cells[i] = before[i - low];
  }
}

// Without a hot set, and if the selection is in the pool.
__device__ void AssignLateInOrder(const LateCall& call, const FindTask& task, const int32_t* items, int late) {
  const int before = task.n - late;
  const bool fits = task.n <= call.find.buffer.capacity;
  for (int i = static_cast<int>(threadIdx.x); i < late; i += static_cast<int>(blockDim.x)) {
    task.cells[items[i]] = fits ? before + i : FetchList::InPool(task.rows[items[i]]);
    if (fits) task.misses[i] = items[i];
  }
  if (threadIdx.x == 0)
    ReportLate(call, task, fits ? late : 0, static_cast<uint32_t>(late), static_cast<uint32_t>(late));
}

__global__ void AssignLateKernel(const __grid_constant__ LateCall call) {
  const FindTask task(call.find);
  const int32_t* items = call.late.Items(task.token, task.head);
  const int late = call.late.Count(task.token, task.head);
  CopyCells(call, task, items, late);
  AssignLateInOrder(call, task, items, late);
}

// Dynamic shared memory: one bit per cell.
__global__ void FindLateInHotSet(const __grid_constant__ LateCall call) {
  extern __shared__ uint32_t kept[];
  __shared__ RadixScratch radix;
  __shared__ int32_t unused;
  HotTask task(call.find);
  const int32_t* items = call.late.Items(task.token, task.head);
  const int late = call.late.Count(task.token, task.head), step = static_cast<int>(blockDim.x);
  CopyCells(call, task, items, late);
  if (task.n - late > task.capacity) return AssignLateInOrder(call, task, items, late);
  if (late == 0) {
    if (threadIdx.x == 0) ReportLate(call, task, 0, 0, 0);
    return;
  }
  for (int i = static_cast<int>(threadIdx.x); i < (task.capacity + 31) / 32; i += step) kept[i] = 0;
  __syncthreads();
  const auto keep = [&](int32_t cell) { atomicOr(&kept[cell / 32], 1u << (cell % 32)); };
  const int32_t* before = call.before.Cells(task.token, task.head);
  for (int i = static_cast<int>(threadIdx.x); i < task.n - late; i += step) keep(before[i]);
  for (int i = static_cast<int>(threadIdx.x); i < late; i += step) {
    const int32_t cell = task.cell_of[task.rows[items[i]]];
    task.cells[items[i]] = cell;
    if (cell < 0) continue;
    keep(cell);
    task.used[cell] = task.now;
  }
  __syncthreads();
  const auto missing = [&](int64_t i) { return task.cells[items[i]] < 0; };
  task.missing = WriteRows(missing, late, task.misses, late, radix);
  __syncthreads();
  for (uint32_t i = threadIdx.x; i < task.missing; i += blockDim.x) task.misses[i] = items[task.misses[i]];
  __syncthreads();  // other threads read the misses from here on
  const bool fits = task.n <= task.capacity;
  if (!fits) {
    for (uint32_t i = threadIdx.x; i < task.missing; i += blockDim.x)
      task.cells[task.misses[i]] = FetchList::InPool(task.rows[task.misses[i]]);
  } else if (task.missing > 0) {
    const uint32_t candidates = static_cast<uint32_t>(task.capacity - task.n) + task.missing;
    const auto key_of = [&](int64_t cell) {
      if ((kept[cell / 32] >> (cell % 32) & 1) != 0) return 0u;
      return static_cast<uint32_t>(max(0, task.now - task.used[cell])) + 1;
    };
    const int bits = 32 - __clz(task.now + 2);  // see FindInHotSet
    const RadixBound cut = task.missing == candidates ? RadixBound{0, 0, 0}
                                                      : SelectLargest(key_of, task.capacity, task.missing, bits, radix);
    __syncthreads();  // from here on threads touch their own cells only
    HandOut(task, key_of, cut, &unused, radix);
  }
  if (threadIdx.x == 0)
    ReportLate(call, task, fits ? static_cast<int32_t>(task.missing) : 0, static_cast<uint32_t>(late), task.missing);
}

}  // namespace

void CudaBackend::ClearFetched(Queue queue, const FetchBuffer& buffer, SeqSlot slot) {
  if (!buffer.hot()) return;
  const cudaStream_t stream = context_->stream(queue);
  const size_t cells = static_cast<size_t>(buffer.layout.kv_heads * buffer.capacity) * sizeof(int32_t);
  const size_t rows = static_cast<size_t>(buffer.layout.kv_heads * buffer.rows) * sizeof(int32_t);
  CUDA_CHECK(cudaMemsetAsync(buffer.Holds(slot.value(), 0), 0xff, cells, stream));
  CUDA_CHECK(cudaMemsetAsync(buffer.Used(slot.value(), 0), 0xff, cells, stream));
  CUDA_CHECK(cudaMemsetAsync(buffer.CellOf(slot.value(), 0), 0xff, rows, stream));
}

void CudaBackend::AssignCells(Queue queue, const TokenBatch& batch, const Selection& selection,
                              const FetchBuffer& buffer, double forced_hits, const FetchList& list,
                              FetchTotals* totals) {
  const cudaStream_t stream = context_->stream(queue);
  const ZoneClock::Scope timed(context_->zones, CudaZone::kSelection, stream);
  CHECK(list.capacity == selection.capacity && list.kv_heads == selection.kv_heads);
  CHECK(forced_hits >= 0 && forced_hits < 1 && (forced_hits == 0 || !buffer.hot()));
  CHECK(buffer.layout.kv_heads == selection.kv_heads && buffer.capacity <= INT32_MAX / 2);
  if (batch.count == 0) return;
  const FindCall call{batch, selection, buffer, list, totals, FetchShare::Beside(forced_hits)};
  const auto tasks = static_cast<unsigned>(batch.count * selection.kv_heads);
  const int64_t most = std::min(selection.capacity, buffer.capacity);
  if (!buffer.hot()) {
    AssignInOrder<<<tasks, most <= 1024 ? 128 : 512, 0, stream>>>(call);
  } else {
    // As in choose.cu: for few cells, small blocks hide each other's barriers.
    const size_t bytes = static_cast<size_t>((buffer.capacity + 31) / 32) * sizeof(uint32_t);
    AllowShared(*context_, FindInHotSet, bytes);
    FindInHotSet<<<tasks, buffer.capacity <= 4096 ? 256 : 1024, bytes, stream>>>(call);
  }
  CUDA_CHECK_LAUNCH();
}

void CudaBackend::AssignLate(Queue queue, const TokenBatch& batch, const LateSelection& late, const FetchBuffer& buffer,
                             const FetchList& list, const FetchList& late_list, FetchTotals* totals) {
  const cudaStream_t stream = context_->stream(queue);
  const ZoneClock::Scope timed(context_->zones, CudaZone::kSelection, stream);
  CHECK(late && late_list.capacity == late.all.capacity && late_list.kv_heads == late.all.kv_heads);
  CHECK(list.kv_heads == late.all.kv_heads && buffer.layout.kv_heads == late.all.kv_heads);
  if (batch.count == 0) return;
  const LateCall call{{batch, late.all, buffer, late_list, totals, {}}, late, list};
  const auto tasks = static_cast<unsigned>(batch.count * late.all.kv_heads);
  if (!buffer.hot()) {
    AssignLateKernel<<<tasks, 512, 0, stream>>>(call);
  } else {
    const size_t bytes = static_cast<size_t>((buffer.capacity + 31) / 32) * sizeof(uint32_t);
    AllowShared(*context_, FindLateInHotSet, bytes);
    FindLateInHotSet<<<tasks, buffer.capacity <= 4096 ? 256 : 1024, bytes, stream>>>(call);
  }
  CUDA_CHECK_LAUNCH();
}

}  // namespace infinigen
