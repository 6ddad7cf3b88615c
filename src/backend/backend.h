// The backend concept: every operation of the forward pass on one page.
//
// A backend is memory plus queues plus the operations below. The decoder (model/decoder.h) is written once over this
// concept; `reference` is the oracle in plain loops, `cpu` the fast one, `cuda` the one for GPUs. The rules:
//
//  * Operations enqueue. Each takes the queue it runs on and returns nothing. What it writes may be read by later
//    operations of the same queue, by another queue after Wait(), and by the host after Synchronize(). A CPU backend
//    runs each operation at once: program order is a legal schedule, and tickets are always complete.
//  * Pointers inside operands (tensors, ids, tables) are memory of the backend: from compute_memory(), pool_memory() or
//    Load().
//  * Activations have the type b.activation(); the residual stream and logits are f32; weights keep the type they are
//    stored in. Operations look at the types of their operands.
//  * A token's result depends on that token, its sequence and the weights alone: never on its neighbours in the batch,
//    the number of threads or the cut of a prompt into chunks. On CPU backends this holds bit for bit: one order of
//    additions per output element, the same for one row and for a thousand.
//  * Attention walks entries in ascending order in blocks of kAttentionBlock: per block a maximum, a sum and a weighted
//    value, merged in order. Prefill and decode do the same arithmetic.
//
// No operation fails: operands are checked by the caller, and a mismatch is a bug (CHECK). A backend may keep scratch
// of its own; it grows when a larger shape is seen for the first time and is then reused.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/result.h"
#include "kv/cache_view.h"
#include "kv/fetch_view.h"
#include "kv/page_bounds_view.h"
#include "kv/page_sums_view.h"
#include "kv/selection_view.h"
#include "tensor/buffer.h"
#include "tensor/view.h"
#include "tensor/weight_view.h"

namespace infinigen {

enum class Queue : uint8_t {
  kCompute,   // the forward pass
  kFetch,     // entries on their way to the compute device
  kWriteout,  // entries on their way home to the pool
  kWeights,   // weights on their way to the compute device
};

// Bytes on their way between memories of the backend, by the copy engines where there are any: `pieces` runs of
// `bytes`, at both ends `stride` apart.
struct ByteMove {
  const std::byte* from = nullptr;
  std::byte* to = nullptr;
  size_t bytes = 0;
  size_t pieces = 1;
  size_t stride = 0;

  size_t span() const { return (pieces - 1) * stride + bytes; }
};

// Work that is left out to measure the rest.
struct SkippedWork {
  bool fetch = false;
  bool compute = false;
};

// Names a point in a queue: everything enqueued before it. Zero means "long done".
struct Ticket {
  uint64_t value = 0;
};

// Entries per softmax partial (see above); multiples of it cut work between passes and threads.
inline constexpr int64_t kAttentionBlock = 64;
// Wider heads are refused when a model is loaded.
inline constexpr int64_t kMaxHeadDim = 512;

// What a matrix product does with its result.
enum class Epilogue : uint8_t { kStore, kAdd /* out += */, kRelu };

// out = epilogue(x · weightᵀ + bias). Several projections of one x are given together, so that x is read once and the
// team of threads is started once.
struct Projection {
  WeightView weight;  // [n][k], a stored type that CheckWeight accepts
  ConstTensor bias;   // [1][n] f32, or null
  Tensor out;         // [m][n] activation type, or f32
  Epilogue epilogue = Epilogue::kStore;
};

// The tokens of one call, one item each; the arrays are backend memory.
struct TokenBatch {
  int64_t count = 0;
  const int32_t* ids = nullptr;    // [count] vocabulary ids
  const int32_t* slots = nullptr;  // [count] whose sequence
  const int32_t* rows = nullptr;   // [count] the last row of its cache: position, until the layer evicts
  // In layers that evict:
  const int32_t* positions = nullptr;  // [count] null: rows
  const int32_t* own_rows = nullptr;   // [count][kv_heads] the token's own row; null: rows
  int64_t kv_heads = 0;                // of own_rows

  constexpr int32_t Position(int64_t i) const { return positions == nullptr ? rows[i] : positions[i]; }
  constexpr int32_t OwnRow(int64_t i, int64_t head) const {
    return own_rows == nullptr ? rows[i] : own_rows[i * kv_heads + head];
  }
  TokenBatch Range(int64_t first, int64_t n) const {
    return {.count = n,
            .ids = ids == nullptr ? nullptr : ids + first,
            .slots = slots + first,
            .rows = rows + first,
            .positions = positions == nullptr ? nullptr : positions + first,
            .own_rows = own_rows == nullptr ? nullptr : own_rows + first * kv_heads,
            .kv_heads = kv_heads};
  }
};

// A run of consecutive tokens of one sequence, rows [first_row, first_row + count): the shape of a prefill chunk.
struct TokenRun {
  SeqSlot slot;
  int64_t first_row = 0;
  int64_t count = 0;
};

// A score is query · key · scale. Queries [tokens][heads·head_dim], heads a multiple of entries.layout.kv_heads (query
// head h reads KV head h / (heads / kv_heads)).
struct AttentionShape {
  int64_t heads = 0;
  float scale = 1.0f;
};

template <class B>
concept Backend = requires(B& b, Queue queue, Ticket ticket, Tensor t, ConstTensor c, WeightView w, TokenBatch batch,
                           TokenRun run, LayerEntries entries, WeightType stored, AttentionShape shape,
                           std::span<const Projection> projections, LayerSketches sketches, SketchBasis basis,
                           SelectCall call, Selection selection, LayerPageBounds bounds, LayerPageSums sums,
                           MassTotals* mass, RetainRule retain, LayerCache cache, SeqSlot slot, int32_t* own_rows,
                           const void* host_in, void* host_out, size_t bytes, float eps, int64_t n,
                           std::span<const ByteMove> moves, FetchClock* clock) {
  { b.activation() } -> std::same_as<DType>;
  { B::kChunkTokens } -> std::convertible_to<int64_t>;  // tokens per prefill unit

  // Memory. compute_memory: activations, tables. pool_memory: where the pool's slabs come from.
  { b.compute_memory() } -> std::same_as<Allocator&>;
  { b.pool_memory() } -> std::same_as<Allocator&>;
  // Memory of the host that Move reads and writes at the speed of the link.
  { b.host_memory() } -> std::same_as<Allocator&>;
  // The pool is not compute memory: operations reach its entries, but over a link. Whole layers are better moved.
  { b.pool_is_remote() } -> std::same_as<bool>;
  // A weight matrix, or an f32 parameter vector, in host memory → where the operations can read it. The host memory
  // must outlive the backend. A matrix of a type that CheckWeight refuses is refused.
  { b.Load(w) } -> std::same_as<Result<WeightView>>;
  { b.Load(c) } -> std::same_as<Result<ConstTensor>>;
  // kUnsupported, by name, where the backend cannot multiply by weights of a stored type.
  { b.CheckWeight(stored) } -> std::same_as<Status>;
  // Takes the scratch of steps of up to `batch` tokens over sequences of up to `tokens` rows, so that no such step
  // allocates: b.Reserve(tokens, batch, heads, kv_heads, head_dim).
  { b.Reserve(n, n, n, n, n) } -> std::same_as<Status>;
  // host → backend; the host bytes may be reused at once
  { b.Upload(queue, host_in, bytes, host_out) } -> std::same_as<void>;
  // backend → host; valid after Synchronize(ticket)
  { b.Download(queue, host_in, bytes, host_out) } -> std::same_as<Ticket>;

  // The host waits until all pool memory that was taken can be used by every operation.
  { b.AwaitPool() } -> std::same_as<void>;
  // Between memories of the backend, in bulk; pool memory may still be on its way. Sources and targets stay as they are
  // until the moves are done.
  { b.Move(queue, moves) } -> std::same_as<void>;

  // Order.
  { b.Record(queue) } -> std::same_as<Ticket>;
  { b.Wait(queue, ticket) } -> std::same_as<void>;  // later operations of `queue` start after `ticket`
  { b.Synchronize(ticket) } -> std::same_as<void>;  // the host waits

  // How long steps wait for what is fetched. By the queue that fetches, before its ticket; by the one that waits,
  // before it does; and when both are past that, once for each step, for `n` clocks.
  { b.NoteArrived(queue, clock) } -> std::same_as<void>;
  { b.NoteReady(queue, clock) } -> std::same_as<void>;
  { b.CountWaits(queue, clock, n) } -> std::same_as<void>;

  // out[i] = table[ids[i]], converted.                 table [vocab][hidden], out [count][hidden]
  { b.Embed(queue, batch, w, t) } -> std::same_as<void>;
  // x[i] += table[position i + n].                     learned positions; OPT stores them from row 2 on
  { b.AddPositions(queue, batch, w, n, t) } -> std::same_as<void>;
  // out = x / rms(x) · weight; out may be x.           x, out [m][hidden]; weight [1][hidden] f32
  { b.RmsNorm(queue, t, c, eps, t) } -> std::same_as<void>;
  // out = (x − mean) / σ · weight + bias; out may be x.
  { b.LayerNorm(queue, t, c, c, eps, t) } -> std::same_as<void>;
  // Each projection's out from the same x [m][k]; no out may overlap x.
  { b.MatMul(queue, t, projections) } -> std::same_as<void>;
  // table[i] = cos, then sin, of position i · frequencies. frequencies [1][d/2] f32, table [count][d] f32; once per
  // step
  { b.RopeTable(queue, batch, c, t) } -> std::same_as<void>;
  // Rotates every head of x [count][heads·d] in place: halves (a, b) → (a·cos − b·sin, b·cos + a·sin).
  { b.Rope(queue, c, t) } -> std::same_as<void>;
  // out = x, row by row; they do not overlap.
  { b.Copy(queue, c, t) } -> std::same_as<void>;
  // gate = silu(gate) · up.
  { b.SiluMul(queue, t, t) } -> std::same_as<void>;
  // Writes key and value rows [count][kv_heads·d] as entries at the tokens' places, rounded to the stored type. The
  // extents exist.
  { b.Append(queue, batch, c, c, entries) } -> std::same_as<void>;
  // Token i of the run attends to entries [0, first_row + i], its own included (it has been appended).
  { b.AttendPrefill(queue, c, run, shape, entries, t) } -> std::same_as<void>;
  // Token i attends to entries [0, rows[i]] of its own sequence. `n` is the largest row + 1 in the batch.
  { b.AttendDecode(queue, c, batch, n, shape, entries, t) } -> std::same_as<void>;

  // ---- Sketch, select, attend: InfiniGen's step (kv/sketch.h and kv/selection.h define the arithmetic).

  // Writes the sketches of key rows [count][kv_heads·d] at the tokens' places.
  { b.AppendSketches(queue, batch, c, basis, sketches) } -> std::same_as<void>;
  // out = queries · basis · scale.                     queries [count][heads·d], out [count][heads·dims] f32
  { b.SketchQueries(queue, c, batch, shape, basis, t) } -> std::same_as<void>;
  // The rows each token attends to, by sketch queries [count][heads·dims]. Rows [0, rows[i]] have a sketch, the last of
  // them only if call.current_known.
  { b.Select(queue, c, batch, call, sketches, selection) } -> std::same_as<void>;
  // Quest: widens the bounds of the pages of key rows [count][kv_heads·d] (kv/page_bounds.h). The rows of one sequence
  // come in ascending order, in one call and over all.
  { b.AppendBounds(queue, batch, c, bounds) } -> std::same_as<void>;
  // The rows each token attends to, by the scores of pages for queries [count][heads·d]. call.page is kPageRows. The
  // pages that are complete before rows[i] have bounds.
  { b.SelectPages(queue, c, batch, call, shape, bounds, selection) } -> std::same_as<void>;
  // page-mean: adds key rows [count][kv_heads·d] to the sums of their pages (kv/page_sums.h). The rows of one sequence
  // come in ascending order, in one call and over all; a page's rows come once, or again from its first.
  { b.AppendPageSums(queue, batch, c, sums) } -> std::same_as<void>;
  // SelectPages by the mean keys of pages, which have a sum where they are complete before rows[i].
  { b.SelectPageMeans(queue, c, batch, call, shape, sums, selection) } -> std::same_as<void>;
  // The same by true scores of queries [count][heads·d], for measurement: the best that any sketch can do.
  { b.SelectExact(queue, c, batch, call, shape, entries, selection) } -> std::same_as<void>;
  // Token i attends to its selection. The list of all rows gives AttendDecode's result, bit for bit.
  { b.AttendSelected(queue, c, batch, selection, shape, entries, t) } -> std::same_as<void>;
  // For measurement: which share of each query head's true attention lies inside the selection; added to `mass`.
  { b.MeasureMass(queue, c, batch, selection, shape, entries, mass) } -> std::same_as<void>;

  // ---- Retain: layers that evict (kv/retain.h defines the arithmetic). Tokens of one call are of different sequences,
  // or of one that is not full yet.

  // places [count][kv_heads] = where each token's entry goes: the next row, or in a full cache a victim's. The eviction
  // state name the token from now on, and the victim's sketch is void: it has no score.
  { b.AssignRows(queue, batch, retain, cache, own_rows) } -> std::same_as<void>;
  // The priorities of rows that were selected by score. Rules of selection as in the call that made the selection;
  // tokens of one sequence count one after the other.
  { b.UpdatePriorities(queue, batch, retain, call, selection) } -> std::same_as<void>;
  // Priorities grow by the attention of queries [count][heads·d] to rows [0, rows[i]].
  { b.SumAttention(queue, c, batch, shape, cache) } -> std::same_as<void>;
  // The same for the tokens of a prefill, whose entries lie in rows = positions.
  { b.SumColumns(queue, c, run, shape, cache) } -> std::same_as<void>;
  // Slot 0 of the first cache has a prefill's n rows. The survivors for the quota of `slot` go to that slot of the
  // second cache, entries, sketches and eviction state, in the order of their positions.
  { b.CopySurvivors(queue, retain, cache, n, slot, cache) } -> std::same_as<void>;
};

// Backends that bring selected entries near instead of reading them over the link (kv/fetch_view.h). A layer's step is
// Select, AssignCells, then FetchMisses beside other work, AppendFetched, AttendFetched. Tokens of one call are of
// different sequences.
template <class B>
concept FetchingBackend = Backend<B> &&
    requires(B& b, Queue queue, ConstTensor c, Tensor t, TokenBatch batch, LayerEntries entries, Selection selection,
             AttentionShape shape, FetchBuffer buffer, FetchList list, FetchTotals* totals, FetchClock* clock,
             SeqSlot slot, double forced_hits) {
  // The hot set holds nothing of `slot`: before a sequence's first step, and when rows that it may hold were written
  // by other operations than AppendFetched.
  { b.ClearFetched(queue, buffer, slot) } -> std::same_as<void>;
  // A place for every listed row, and which rows are missing. Without a hot set: the list's order, and all but the
  // token's own, less a share of `forced_hits`, which is for benchmarks and else 0. With one: a row that is there
  // stays where it is. The others take, in order and the own one last, the places (by number) of the rows outside
  // the list that were used longest ago, of equals the lower places. Tables and totals [slots] know at once. Of a list
  // with more rows than there are places every row stays at home; the hot set stays as it is, but forgets the own row.
  { b.AssignCells(queue, batch, selection, buffer, forced_hits, list, totals) } -> std::same_as<void>;
  // The entries of the missing rows, from the pool to their places; then notes that they have arrived.
  { b.FetchMisses(queue, batch, selection, entries, buffer, list, clock) } -> std::same_as<void>;
  // Append, to the tokens' own places, where they have one. The pool's entries are Append's.
  { b.AppendFetched(queue, batch, c, c, buffer, list) } -> std::same_as<void>;
  // AttendSelected from places, and from the pool what is at home: the same result, bit for bit.
  { b.AttendFetched(queue, c, batch, selection, shape, entries, buffer, list, t) } -> std::same_as<void>;
};

}  // namespace infinigen
