// Where the rows of a selection are, and which are to be fetched: one block per (token, KV head), all on the device.
//
// A hot set is three tables. A list of n rows is looked up in one pass, which marks the places of rows that are there
// (bits in shared memory) and leaves the others to be counted. Places for those are the ones that were used longest
// ago, found without sorting (radix_select.cuh) by age; places with a mark are no candidates. The k-th missing row
// takes the k-th of them. All orders are of rows and places, so the tables are the same whoever came first.
//
// A list that is longer than there are places stays at home.
#include <algorithm>

#include "backend/cuda/context.h"
#include "backend/cuda/cuda_backend.h"
#include "backend/cuda/select.cuh"

namespace infinigen {
namespace {

struct FindCall {
  TokenBatch batch;
  Selection selection;
  NearEntries near;
  NearList list;
  NearTotals* totals = nullptr;
  FetchShare share;
};

// One block's list and its outcome.
struct FindTask {
  int64_t token, head, slot;
  const int32_t* rows;
  int n;
  int32_t own;  // row of the token itself
  int32_t* places;
  int32_t* misses;

  __device__ explicit FindTask(const FindCall& call)
      : token(blockIdx.x / call.selection.kv_heads),
        head(blockIdx.x % call.selection.kv_heads),
        slot(call.batch.slots[token]),
        rows(call.selection.Rows(token, head)),
        n(call.selection.Count(token, head)),
        own(call.batch.Place(token, head)),
        places(call.list.Places(token, head)),
        misses(call.list.Misses(token, head)) {}

  __device__ bool stays_home(const FindCall& call) const { return n > call.near.capacity; }
};

// By one thread. `misses` are fetched; all that cross the link may be more.
__device__ void Report(const FindCall& call, const FindTask& task, int32_t misses, int32_t own_place,
                       int32_t crossing) {
  call.list.MissCount(task.token, task.head) = misses;
  call.list.Own(task.token, task.head) = own_place;
  static_assert(sizeof(unsigned long long) == sizeof(uint64_t));
  NearTotals& totals = call.totals[task.slot];
  atomicAdd(reinterpret_cast<unsigned long long*>(&totals.wanted), static_cast<unsigned long long>(task.n - 1));
  atomicAdd(reinterpret_cast<unsigned long long*>(&totals.fetched), static_cast<unsigned long long>(crossing));
}

// Whoever attends reads the pool.
__device__ void StayHome(const FindCall& call, const FindTask& task) {
  for (int i = static_cast<int>(threadIdx.x); i < task.n; i += static_cast<int>(blockDim.x))
    task.places[i] = NearList::AtHome(task.rows[i]);
  if (threadIdx.x == 0) Report(call, task, 0, NearList::AtHome(task.own), task.n - 1);
}

// Without a hot set: the list's own order.
__global__ void ListPlaces(const __grid_constant__ FindCall call) {
  __shared__ int own_item;
  const FindTask task(call);
  if (task.stays_home(call)) return StayHome(call, task);
  if (threadIdx.x == 0) own_item = -1;
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < task.n; i += static_cast<int>(blockDim.x))
    if (task.rows[i] == task.own) own_item = i;
  __syncthreads();
  const int own = own_item;
  if (own < 0) __trap();  // a list without the token itself: a bug
  const int own_taken = call.share.Takes(own) ? 1 : 0;
  for (int i = static_cast<int>(threadIdx.x); i < task.n; i += static_cast<int>(blockDim.x)) {
    task.places[i] = i;
    if (i != own && call.share.Takes(i)) task.misses[call.share.Of(i) - (i > own ? own_taken : 0)] = i;
  }
  if (threadIdx.x != 0) return;
  const int32_t misses = static_cast<int32_t>(call.share.Of(task.n)) - own_taken;
  Report(call, task, misses, own, misses);
}

// ---- With one

// Everything of one (token, KV head) while its block runs.
struct HotTask : FindTask {
  int32_t* holds;
  int32_t* used;
  int32_t* place_of;
  int capacity;
  int32_t now;  // position of the token
  int own_item = -1, own_place = -1;
  uint32_t missing = 0;

  __device__ explicit HotTask(const FindCall& call)
      : FindTask(call),
        holds(call.near.Holds(slot, head)),
        used(call.near.Used(slot, head)),
        place_of(call.near.PlaceOf(slot, head)),
        capacity(static_cast<int>(call.near.capacity)),
        now(call.batch.Position(token)) {}

  // Row number `rank` of those without a place gets this one; the own row comes last.
  __device__ int Homeless(uint32_t rank) const { return rank < missing ? misses[rank] : own_item; }
  // By one thread.
  __device__ void ForgetOwn() const {
    const int32_t place = place_of[own];
    if (place < 0) return;
    holds[place] = -1;
    place_of[own] = -1;
  }
};

// Looks the list up; bits of `kept` are places of rows that are there.
__device__ void LookUp(HotTask& task, uint32_t* kept, RadixScratch& radix) {
  __shared__ int own_item, own_place;
  for (int i = static_cast<int>(threadIdx.x); i < (task.capacity + 31) / 32; i += static_cast<int>(blockDim.x))
    kept[i] = 0;
  if (threadIdx.x == 0) own_item = own_place = -1;
  __syncthreads();
  constexpr int kBatch = 4;  // lookups on their way at a time
  const int step = static_cast<int>(blockDim.x);
  for (int first = static_cast<int>(threadIdx.x); first < task.n; first += kBatch * step) {
    int32_t rows[kBatch], places[kBatch];
#pragma unroll
    for (int b = 0; b < kBatch; ++b) rows[b] = first + b * step < task.n ? task.rows[first + b * step] : -1;
#pragma unroll
    for (int b = 0; b < kBatch; ++b) places[b] = rows[b] >= 0 ? task.place_of[rows[b]] : -1;
#pragma unroll
    for (int b = 0; b < kBatch; ++b) {
      if (rows[b] < 0) continue;
      task.places[first + b * step] = places[b];
      if (rows[b] == task.own) {
        own_item = first + b * step;
        own_place = places[b];
      }
      if (places[b] < 0) continue;
      atomicOr(&kept[places[b] / 32], 1u << (places[b] % 32));
      task.used[places[b]] = task.now;
    }
  }
  __syncthreads();
  task.own_item = own_item;
  task.own_place = own_place;
  if (own_item < 0) __trap();  // a list without the token itself: a bug
  const auto missing = [&](int64_t i) { return task.places[i] < 0 && i != task.own_item; };
  task.missing = WriteRows(missing, task.n, task.misses, task.n, radix);
  __syncthreads();  // others read the misses from here on
}

// The places with a key above `least`, and the first `need` of those that have it, go to rows without one, in order. A
// warp owns a run of places: it counts, learns its ranks, and hands out.
template <class KeyOf>
__device__ void HandOut(const HotTask& task, const KeyOf& key_of, const RadixPlace& cut, int32_t* own_place,
                        RadixScratch& radix) {
  const int share = (task.capacity + static_cast<int>(blockDim.x) - 1) / static_cast<int>(blockDim.x) * 32;
  const int begin = Warp() * share, end = min(begin + share, task.capacity);
  uint32_t above = 0, ties = 0;
  for (int place = begin + Lane(); place < end; place += 32) {
    const uint32_t key = key_of(place);
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
    const int place = first + Lane();
    const uint32_t key = place < end ? key_of(place) : 0;
    const bool tie = place < end && key == cut.least;
    const uint32_t tied = __ballot_sync(kAllLanes, tie);
    const bool takes = place < end && (key > cut.least || (tie && ties_before + __popc(tied & lower) < cut.need));
    const uint32_t takers = __ballot_sync(kAllLanes, takes);
    if (takes) {
      const int item = task.Homeless(rank + __popc(takers & lower));
      const int32_t leaves = task.holds[place], row = task.rows[item];
      if (leaves >= 0) task.place_of[leaves] = -1;
      task.place_of[row] = place;
      task.holds[place] = row;
      task.used[place] = task.now;
      task.places[item] = place;
      if (item == task.own_item) *own_place = place;
    }
    ties_before += __popc(tied);
    rank += __popc(takers);
  }
}

// Dynamic shared memory: a bit for every place.
__global__ void FindInHotSet(const __grid_constant__ FindCall call) {
  extern __shared__ uint32_t kept[];
  __shared__ RadixScratch radix;
  __shared__ int32_t own_place;
  HotTask task(call);
  if (task.stays_home(call)) {
    if (threadIdx.x == 0) task.ForgetOwn();
    return StayHome(call, task);
  }
  LookUp(task, kept, radix);
  if (threadIdx.x == 0) own_place = task.own_place;

  // From here on the list's rows that are there are fixed. Keys: how long ago, 1 at least; 0 for those rows.
  const uint32_t homeless = task.missing + (task.own_place < 0 ? 1 : 0);
  const uint32_t candidates = static_cast<uint32_t>(task.capacity - task.n) + homeless;
  const auto key_of = [&](int64_t place) {
    if ((kept[place / 32] >> (place % 32) & 1) != 0) return 0u;
    return static_cast<uint32_t>(max(0, task.now - task.used[place])) + 1;
  };
  if (homeless > 0) {
    const int bits = 32 - __clz(task.now + 2);  // of the largest key: of a place that was never used
    const RadixPlace cut =
        homeless == candidates ? RadixPlace{0, 0, 0} : SelectLargest(key_of, task.capacity, homeless, bits, radix);
    __syncthreads();  // places are handed out while others look at their own only; own_place is there
    HandOut(task, key_of, cut, &own_place, radix);
  }
  __syncthreads();
  const auto misses = static_cast<int32_t>(task.missing);
  if (threadIdx.x == 0) Report(call, task, misses, own_place, misses);
}

}  // namespace

void CudaBackend::ForgetNear(Queue queue, const NearEntries& near, SeqSlot slot) {
  if (!near.hot()) return;
  const cudaStream_t stream = context_->stream(queue);
  const size_t places = static_cast<size_t>(near.layout.kv_heads * near.capacity) * sizeof(int32_t);
  const size_t rows = static_cast<size_t>(near.layout.kv_heads * near.rows) * sizeof(int32_t);
  CUDA_CHECK(cudaMemsetAsync(near.Holds(slot.value(), 0), 0xff, places, stream));
  CUDA_CHECK(cudaMemsetAsync(near.Used(slot.value(), 0), 0xff, places, stream));
  CUDA_CHECK(cudaMemsetAsync(near.PlaceOf(slot.value(), 0), 0xff, rows, stream));
}

void CudaBackend::FindNear(Queue queue, const TokenBatch& batch, const Selection& selection, const NearEntries& near,
                           double forced_hits, const NearList& list, NearTotals* totals) {
  const cudaStream_t stream = context_->stream(queue);
  const ZoneClock::Scope timed(context_->zones, CudaZone::kSelection, stream);
  CHECK(list.capacity == selection.capacity && list.kv_heads == selection.kv_heads);
  CHECK(forced_hits >= 0 && forced_hits < 1 && (forced_hits == 0 || !near.hot()));
  CHECK(near.layout.kv_heads == selection.kv_heads && near.capacity <= INT32_MAX / 2);
  if (batch.count == 0) return;
  const FindCall call{batch, selection, near, list, totals, FetchShare::Beside(forced_hits)};
  const auto tasks = static_cast<unsigned>(batch.count * selection.kv_heads);
  const int64_t most = std::min(selection.capacity, near.capacity);
  if (!near.hot()) {
    ListPlaces<<<tasks, most <= 1024 ? 128 : 512, 0, stream>>>(call);
  } else {
    // As where rows are chosen: few places, small blocks that hide each other's barriers.
    const size_t bytes = static_cast<size_t>((near.capacity + 31) / 32) * sizeof(uint32_t);
    AllowShared(*context_, FindInHotSet, bytes);
    FindInHotSet<<<tasks, near.capacity <= 4096 ? 256 : 1024, bytes, stream>>>(call);
  }
  CUDA_CHECK_LAUNCH();
}

}  // namespace infinigen
