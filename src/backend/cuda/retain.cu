// Eviction: the rows of new tokens, priorities after a selection, and the survivors of a prefill. kv/retain.h defines
// them; attention sums are in measure.cu and column_sums.cu.
//
// A block works on one KV head of one sequence. If a call has several tokens of a sequence, the block of the first
// processes them all, in order.
#include <cuda_runtime.h>

#include <algorithm>

#include "backend/cuda/context.h"
#include "backend/cuda/cuda_backend.h"
#include "backend/cuda/select.cuh"

namespace infinigen {
namespace {

constexpr int kRetainThreads = 256;

// ---- Rows

struct Victim {
  uint64_t order;  // priority, then position; the least is evicted
  int32_t row;
  __device__ bool Before(const Victim& other) const {
    return order != other.order ? order < other.order : row < other.row;
  }
};
__device__ Victim WarpFirst(Victim v) {
  for (int step = 16; step > 0; step /= 2) {
    const Victim other{__shfl_xor_sync(kAllLanes, v.order, step), __shfl_xor_sync(kAllLanes, v.row, step)};
    if (other.Before(v)) v = other;
  }
  return v;
}

// The unprotected row with the smallest priority, ties to the oldest; called by all threads of a block.
__device__ int64_t FindVictim(const int32_t* positions, const float* priorities, int64_t rows,
                              const Protection& protection) {
  __shared__ Victim warps[32];
  Victim best{UINT64_MAX, INT32_MAX};
  for (int64_t row = threadIdx.x; row < rows; row += blockDim.x) {
    const int32_t position = positions[row];
    if (protection.Covers(position)) continue;
    const uint64_t priority = OrderedBits(ComparablePriority(priorities[row]));
    const Victim here{priority << 32 | static_cast<uint32_t>(position), static_cast<int32_t>(row)};
    if (here.Before(best)) best = here;
  }
  best = WarpFirst(best);
  __syncthreads();  // the previous victim has been read
  if (Lane() == 0) warps[Warp()] = best;
  __syncthreads();
  best = WarpFirst(Lane() < Warps() ? warps[Lane()] : Victim{UINT64_MAX, INT32_MAX});
  if (best.row == INT32_MAX) __trap();  // every row is protected: a bug
  return best.row;
}

// Makes the score of a row's sketch NaN (VoidSketch of kv/index_view.h). `step` lanes or threads share the work; this
// is number `at`.
__device__ void VoidSketchOf(const LayerSketches& sketches, int64_t slot, int64_t head, int64_t row, int at, int step) {
  std::byte* block = sketches.Block(slot, head, row / kSketchBlock);
  const SketchLayout& layout = sketches.layout;
  const int64_t within = row % kSketchBlock;
  if (layout.has_scales()) {
    if (at == 0) reinterpret_cast<uint16_t*>(block + layout.scales_offset())[within] = 0x7fc0;
    return;
  }
  for (int64_t unit = at; unit < layout.units(); unit += step)
    reinterpret_cast<uint32_t*>(block)[unit * kSketchBlock + within] = 0x7fc07fc0u;
}

// Any grid. Tokens of sequences below their quota take one thread each, the others one block each.
__global__ __launch_bounds__(1024) void AssignRowsKernel(TokenBatch batch, RetainRule rule, LayerCache cache,
                                                         int32_t* own_rows) {
  const EvictionState& retained = cache.retained;
  const int64_t heads = retained.kv_heads, tasks = batch.count * heads;
  const auto take = [&](int64_t token, int64_t head, int64_t slot, int64_t row) {
    const int32_t position = batch.Position(token);
    retained.Positions(slot, head)[row] = position;
    retained.Priorities(slot, head)[row] = PriorityAtAppend(rule.on_append, position, head);
    own_rows[token * heads + head] = static_cast<int32_t>(row);
  };
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < tasks;
       i += static_cast<int64_t>(gridDim.x) * blockDim.x) {
    const int64_t token = i % batch.count, head = i / batch.count, slot = batch.slots[token];
    const int64_t position = batch.Position(token);
    if (position >= retained.quotas[slot]) continue;
    take(token, head, slot, position);
    if (cache.sketches) VoidSketchOf(cache.sketches, slot, head, position, 0, 1);
  }
  for (int64_t i = blockIdx.x; i < tasks; i += gridDim.x) {
    const int64_t token = i / heads, head = i % heads, slot = batch.slots[token];
    const int64_t position = batch.Position(token), quota = retained.quotas[slot];
    if (position < quota) continue;
    const int64_t row = FindVictim(retained.Positions(slot, head), retained.Priorities(slot, head), quota,
                                   Protection(position, quota, rule.sinks));
    if (threadIdx.x == 0) take(token, head, slot, row);
    if (cache.sketches)
      VoidSketchOf(cache.sketches, slot, head, row, static_cast<int>(threadIdx.x), static_cast<int>(blockDim.x));
  }
}

// ---- Priorities after a selection

// Grid (tokens, kv_heads).
__global__ __launch_bounds__(1024) void UpdatePrioritiesKernel(TokenBatch batch, RetainRule rule, SelectCall call,
                                                               Selection selection) {
  __shared__ int any;
  const int64_t first = blockIdx.x, head = blockIdx.y, slot = batch.slots[first];
  for (int64_t t = 0; t < first; ++t)
    if (batch.slots[t] == slot) return;
  const bool counts = rule.on_select == PriorityUpdate::kCount;
  const SelectRule& select = call.rules[slot];
  const int32_t* positions = call.retained.Positions(slot, head);
  float* priorities = call.retained.Priorities(slot, head);
  for (int64_t token = first; token < batch.count; ++token) {
    if (batch.slots[token] != slot) continue;
    const int32_t* rows = selection.Rows(token, head);
    const int64_t count = selection.Count(token, head), position = batch.Position(token);
    if (threadIdx.x == 0) any = 0;
    __syncthreads();
    bool overflows = false;
    for (int64_t i = threadIdx.x; i < count; i += blockDim.x) {
      const int32_t row = rows[i];
      const int64_t of = positions[row];
      if (of < select.sinks || of >= position - select.window) continue;
      const float priority = counts ? priorities[row] + 1 : static_cast<float>(position);
      priorities[row] = priority;
      overflows = overflows || priority > kPriorityLimit;
    }
    if (overflows) any = 1;  // every writer writes the same value
    __syncthreads();
    if (counts && any != 0)
      for (int64_t row = threadIdx.x; row <= batch.rows[token]; row += blockDim.x)
        priorities[row] = floorf(priorities[row] / 2);
    __syncthreads();
  }
}

// ---- Survivors

// Grid (kv_heads): writes the surviving rows, ascending, as the positions of the new cache.
__global__ __launch_bounds__(1024) void PickSurvivorsKernel(RetainRule rule, EvictionState from, int64_t rows,
                                                            int64_t slot, EvictionState to) {
  __shared__ RadixScratch radix;
  const int64_t head = blockIdx.x, quota = min(rows, static_cast<int64_t>(to.quotas[slot]));
  const float* priorities = from.Priorities(0, head);
  // Protects the rows that would be protected when the next token arrives.
  const Protection protection(rows, quota, rule.sinks);
  uint32_t guarded = 0;
  for (int64_t row = threadIdx.x; row < rows; row += blockDim.x) guarded += protection.Covers(row) ? 1 : 0;
  guarded = BlockSum(guarded, 0, radix).x;
  const auto key_of = [&](int64_t row) {
    return protection.Covers(row) ? 0u : OrderedBits(ComparablePriority(priorities[row]));
  };
  const auto age_of = [](int64_t row) { return static_cast<uint32_t>(row) + 1; };
  const RadixCut cut = CutLargest(key_of, age_of, rows, static_cast<uint32_t>(quota) - guarded,
                                  static_cast<uint32_t>(rows) - guarded, 32, radix);
  const auto stays = [&](int64_t row) { return protection.Covers(row) || cut.Takes(key_of(row), age_of(row)); };
  WriteRows(stays, rows, to.Positions(slot, head), to.capacity, radix);
}

// Copies `bytes` with one warp, in the widest pieces that addresses and length allow.
__device__ void CopyBytes(const std::byte* from, std::byte* to, int64_t bytes) {
  const auto at = reinterpret_cast<uintptr_t>(from) | reinterpret_cast<uintptr_t>(to) | static_cast<uintptr_t>(bytes);
  const auto copy = [&](auto unit) {
    using Unit = decltype(unit);
    for (int64_t i = Lane(); i < bytes / static_cast<int64_t>(sizeof(Unit)); i += 32)
      reinterpret_cast<Unit*>(to)[i] = reinterpret_cast<const Unit*>(from)[i];
  };
  if (at % 16 == 0)
    copy(uint4{});
  else if (at % 4 == 0)
    copy(uint32_t{});
  else
    copy(uint8_t{});
}

// Copies the sketches of one row with one warp (CopySketch of kv/index_view.h).
__device__ void CopySketchOf(const SketchLayout& layout, const std::byte* from, int64_t from_row, std::byte* to,
                             int64_t to_row) {
  // Copies one element of each of `count` arrays [64] that begin at `offset`.
  const auto copy = [&](size_t offset, int64_t count, auto element) {
    using Element = decltype(element);
    for (int64_t i = Lane(); i < count; i += 32)
      reinterpret_cast<Element*>(to + offset)[i * kSketchBlock + to_row] =
          reinterpret_cast<const Element*>(from + offset)[i * kSketchBlock + from_row];
  };
  copy(0, layout.units(), uint32_t{});
  copy(layout.scales_offset(), layout.groups(), uint16_t{});
  copy(layout.values_offset(), layout.value_units(), uint32_t{});
  copy(layout.value_scales_offset(), layout.has_values() ? 1 : 0, uint16_t{});
}

// Grid (parts of the rows, kv_heads): copies entry, sketches and priority of every survivor, one warp each.
__global__ __launch_bounds__(kRetainThreads) void MoveSurvivorsKernel(LayerCache from, int64_t rows, int64_t slot,
                                                                      LayerCache to) {
  const int64_t head = blockIdx.y, quota = min(rows, static_cast<int64_t>(to.retained.quotas[slot]));
  const SketchLayout& layout = from.sketches.layout;
  const int64_t step = static_cast<int64_t>(gridDim.x) * (kRetainThreads / 32);
  for (int64_t row = static_cast<int64_t>(blockIdx.x) * (kRetainThreads / 32) + Warp(); row < quota; row += step) {
    const int64_t source = to.retained.Positions(slot, head)[row];
    CopyBytes(from.entries.Entry(0, head, source), to.entries.Entry(slot, head, row),
              static_cast<int64_t>(from.entries.layout.entry_bytes()));
    if (Lane() == 0) to.retained.Priorities(slot, head)[row] = from.retained.Priorities(0, head)[source];
    if (!from.sketches) continue;
    CopySketchOf(layout, from.sketches.Block(0, head, source / kSketchBlock), source % kSketchBlock,
                 to.sketches.Block(slot, head, row / kSketchBlock), row % kSketchBlock);
  }
}

}  // namespace

void CudaBackend::AssignRows(Queue queue, const TokenBatch& batch, const RetainRule& rule, const LayerCache& cache,
                             int32_t* own_rows) {
  const ZoneClock::Scope timed(context_->zones, CudaZone::kSelection, context_->stream(queue));
  const int64_t tasks = batch.count * cache.retained.kv_heads;
  if (tasks == 0) return;
  // The search for a victim reads all rows of a head: large blocks if there are many. The many tokens of a prefill only
  // take free rows.
  const int threads = cache.retained.capacity > 4096 && tasks <= 4 * context_->sms() ? 1024 : kRetainThreads;
  const auto blocks = static_cast<unsigned>(std::min<int64_t>(tasks, 8 * context_->sms()));
  AssignRowsKernel<<<blocks, threads, 0, context_->stream(queue)>>>(batch, rule, cache, own_rows);
  CUDA_CHECK_LAUNCH();
}

void CudaBackend::UpdatePriorities(Queue queue, const TokenBatch& batch, const RetainRule& rule, const SelectCall& call,
                                   const Selection& selection) {
  const ZoneClock::Scope timed(context_->zones, CudaZone::kSelection, context_->stream(queue));
  if (rule.on_select == PriorityUpdate::kKeep || batch.count == 0) return;
  const int threads = call.max_rows <= 4096 ? kRetainThreads : 1024;
  const dim3 grid(static_cast<unsigned>(batch.count), static_cast<unsigned>(selection.kv_heads));
  UpdatePrioritiesKernel<<<grid, threads, 0, context_->stream(queue)>>>(batch, rule, call, selection);
  CUDA_CHECK_LAUNCH();
}

void CudaBackend::CopySurvivors(Queue queue, const RetainRule& rule, const LayerCache& from, int64_t rows, SeqSlot slot,
                                const LayerCache& to) {
  const ZoneClock::Scope timed(context_->zones, CudaZone::kSelection, context_->stream(queue));
  if (rows == 0) return;
  const cudaStream_t stream = context_->stream(queue);
  const auto heads = static_cast<unsigned>(from.retained.kv_heads);
  PickSurvivorsKernel<<<heads, 1024, 0, stream>>>(rule, from.retained, rows, slot.value(), to.retained);
  CUDA_CHECK_LAUNCH();
  const auto parts = static_cast<unsigned>(std::min<int64_t>((rows + 31) / 32, 256));
  MoveSurvivorsKernel<<<dim3(parts, heads), kRetainThreads, 0, stream>>>(from, rows, slot.value(), to);
  CUDA_CHECK_LAUNCH();
}

}  // namespace infinigen
