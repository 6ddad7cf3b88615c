// FetchMisses: a kernel that reads missing entries from pinned host memory. Copy engines are too slow for so many small
// pieces.
//
// 8 blocks of 512 threads with 8 loads of 16 bytes in flight per thread saturate the link. More blocks only take
// multiprocessors from the work that runs in parallel (bench/cuda_memory.cu: products are 17 % slower beside 8 blocks,
// 35 % beside 16). Half of a multiprocessor's registers stay free for that work.
//
// Only the device knows the number of misses: every block sums the counts of the lists itself, and warps take runs of
// entries in turn. At any time all warps therefore read close together, list by list and in ascending order.
#include <algorithm>

#include "backend/cuda/clock.cuh"
#include "backend/cuda/context.h"
#include "backend/cuda/cuda_backend.h"
#include "backend/cuda/select.cuh"

namespace infinigen {
namespace {

constexpr int kBlocks = 8, kFetchThreads = 512;
constexpr int kAhead = 8;                // loads in flight per lane
constexpr int kRunPieces = 32 * kAhead;  // pieces that a warp moves at a time
constexpr int kMostLists = 16384;        // lists per launch: their sums are in shared memory

struct FetchCall {
  TokenBatch batch;
  Selection selection;
  LayerEntries entries;
  FetchBuffer buffer;
  FetchList list;
  FetchClock* clock = nullptr;
  int first_list = 0;  // index of (token, KV head)
  int lists = 0;
  int pieces = 0;        // pieces per entry
  int run = 0;           // entries that a warp moves at a time, at most one per lane
  uint32_t inverse = 0;  // 2^16 / pieces, rounded up: divides numbers below kRunPieces
};

// Source and target of one entry; null past the end.
struct Route {
  const std::byte* from = nullptr;
  std::byte* to = nullptr;
};

// begins[i] = number of entries in all lists before list i, in shared memory; begins[lists] is the total.
__device__ void SumCounts(const FetchCall& call, uint32_t* begins, RadixScratch& radix) {
  const int share = (call.lists + kFetchThreads - 1) / kFetchThreads;
  const int first = static_cast<int>(threadIdx.x) * share, last = min(first + share, call.lists);
  const int32_t* counts = call.list.miss_counts + call.first_list;
  uint32_t sum = 0;
  for (int i = first; i < last; ++i) sum += static_cast<uint32_t>(counts[i]);
  uint32_t before = BlockExclusive(sum, radix);
  for (int i = first; i < last; ++i) {
    begins[i] = before;
    before += static_cast<uint32_t>(counts[i]);
  }
  if (first < call.lists && last == call.lists) begins[call.lists] = before;
  __syncthreads();
}

// Route of entry number `entry`, counted over all lists.
__device__ Route FindRoute(const FetchCall& call, const uint32_t* begins, uint32_t entry) {
  if (entry >= begins[call.lists]) return {};
  int low = 0, high = call.lists;  // begins[low] ≤ entry < begins[high]
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    (begins[middle] <= entry ? low : high) = middle;
  }
  const int heads = static_cast<int>(call.list.kv_heads), list = call.first_list + low;
  const int token = list / heads, head = list % heads;
  const int64_t slot = call.batch.slots[token];
  const int item = call.list.Misses(token, head)[entry - begins[low]];
  return {call.entries.Entry(slot, head, call.selection.Rows(token, head)[item]),
          call.buffer.Entry(slot, head, call.list.Cells(token, head)[item])};
}

// The pointer held by lane `lane`.
template <class T>
__device__ T* OfLane(T* pointer, int lane) {
  return reinterpret_cast<T*>(__shfl_sync(kAllLanes, reinterpret_cast<unsigned long long>(pointer), lane));
}

// Entries are multiples of a piece, 8 or 16 bytes. A warp treats its run of entries as one row of pieces. It finds the
// routes of its next run while the pieces of this one are in flight.
template <class Piece>
__global__ void __launch_bounds__(kFetchThreads, 2) FetchEntries(const __grid_constant__ FetchCall call) {
  extern __shared__ uint32_t begins[];
  __shared__ RadixScratch radix;
  SumCounts(call, begins, radix);
  const uint32_t total = begins[call.lists], run = static_cast<uint32_t>(call.run);
  const uint32_t warp = blockIdx.x * (kFetchThreads / 32) + Warp(), warps = gridDim.x * (kFetchThreads / 32);
  const auto route_at = [&](uint32_t first) {
    return static_cast<uint32_t>(Lane()) < run ? FindRoute(call, begins, first + Lane()) : Route{};
  };
  Route route = route_at(warp * run);
  for (uint32_t first = warp * run; first < total; first += warps * run) {
    // For each of this lane's pieces: its entry within the run, and its place in the entry. None past the end of the
    // run.
    const auto entry_of = [&](int a) { return (a * 32 + Lane()) * call.inverse >> 16; };
    const auto piece_of = [&](int a) { return a * 32 + Lane() - static_cast<int>(entry_of(a)) * call.pieces; };
    Piece pieces[kAhead] = {};
#pragma unroll
    for (int a = 0; a < kAhead; ++a) {
      const Piece* from = reinterpret_cast<const Piece*>(OfLane(route.from, static_cast<int>(entry_of(a)) % 32));
      if (entry_of(a) < run && from != nullptr) pieces[a] = __ldcs(from + piece_of(a));
    }
    const Route next = route_at(first + warps * run);
#pragma unroll
    for (int a = 0; a < kAhead; ++a) {
      Piece* to = reinterpret_cast<Piece*>(OfLane(route.to, static_cast<int>(entry_of(a)) % 32));
      if (entry_of(a) < run && to != nullptr) to[piece_of(a)] = pieces[a];
    }
    route = next;
  }
  __syncthreads();
  if (threadIdx.x == 0) NoteLatest(&call.clock->arrived_ns);
}

template <class Piece>
void Launch(const CudaContext& context, FetchCall call, cudaStream_t stream) {
  call.pieces = static_cast<int>(call.buffer.layout.entry_bytes() / sizeof(Piece));
  CHECK(call.buffer.layout.entry_bytes() % sizeof(Piece) == 0 && call.pieces > 0 && call.pieces <= kRunPieces);
  call.run = std::min(32, kRunPieces / call.pieces);
  call.inverse = static_cast<uint32_t>((65536 + call.pieces - 1) / call.pieces);
  const int all = static_cast<int>(call.batch.count * call.list.kv_heads);
  for (call.first_list = 0; call.first_list < all; call.first_list += kMostLists) {
    call.lists = std::min(all - call.first_list, kMostLists);
    const size_t bytes = static_cast<size_t>(call.lists + 1) * sizeof(uint32_t);
    AllowShared(context, FetchEntries<Piece>, bytes);
    FetchEntries<Piece><<<kBlocks, kFetchThreads, bytes, stream>>>(call);
    CUDA_CHECK_LAUNCH();
  }
}

}  // namespace

void CudaBackend::FetchMisses(Queue queue, const TokenBatch& batch, const Selection& selection,
                              const LayerEntries& entries, const FetchBuffer& buffer, const FetchList& list,
                              FetchClock* clock) {
  if (skipped_.fetch) return;
  const cudaStream_t stream = context_->stream(queue);
  const ZoneClock::Scope timed(context_->zones, CudaZone::kFetch, stream);
  CHECK(list.capacity == selection.capacity && list.kv_heads == selection.kv_heads);
  CHECK(buffer.layout.entry_bytes() == entries.layout.entry_bytes());
  if (batch.count == 0) return;
  const FetchCall call{
      .batch = batch, .selection = selection, .entries = entries, .buffer = buffer, .list = list, .clock = clock};
  if (buffer.layout.entry_bytes() % sizeof(uint4) == 0)
    Launch<uint4>(*context_, call, stream);
  else
    Launch<uint2>(*context_, call, stream);
}

}  // namespace infinigen
