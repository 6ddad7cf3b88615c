// The backend concept: every operation of the forward pass on one page.
//
// A backend provides memory, queues and the operations below for one kind of device. The decoder (model/decoder.h) is
// written once over this concept. Three backends implement it: `reference` (plain loops, the oracle of the tests),
// `cpu` (SIMD and threads) and `cuda` (GPUs). docs/glossary.md defines the terms. The rules:
//
//  * Operations are asynchronous. Each takes the queue it runs on and returns nothing. Its results may be read by later
//    operations on the same queue, by another queue after Wait(), and by the host after Synchronize(). Host backends
//    run every operation before they return, so their tickets are always complete.
//  * Every pointer inside an operand (tensors, ids, tables) refers to memory of the backend: from compute_memory(),
//    pool_memory() or Load().
//  * Activations have the type b.activation(). The residual stream and the logits are f32. Weights keep their stored
//    type. Operations read the types from their operands.
//  * The result for a token depends only on that token, its sequence and the weights: not on the other tokens of the
//    batch, the number of threads or the division of a prompt into chunks. Host backends guarantee this bit for bit:
//    each output element has one order of additions, whatever the number of rows in the call.
//  * Attention visits entries in ascending order, in blocks of kAttentionBlock. Each block gives a maximum, a sum of
//    weights and a weighted sum of values; blocks are merged in order. Prefill and decode use the same arithmetic.
//  * Operations cannot fail. The caller checks the operands; a mismatch is a bug (CHECK).
//  * A backend may own scratch memory. It grows when a larger shape is first seen and is reused afterwards.
//
// One thread, the engine's, calls a backend.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/result.h"
#include "kv/index_view.h"
#include "kv/page_sums_view.h"
#include "kv/retain_view.h"
#include "kv/selection_view.h"
#include "tensor/buffer.h"
#include "tensor/view.h"
#include "tensor/weight_view.h"

namespace infinigen {

enum class Queue : uint8_t {
  kCompute,   // the forward pass
  kFetch,     // copies entries to the compute device
  kWriteout,  // copies new entries to the pool
  kWeights,   // copies weights to the compute device
};

// One strided copy between two memories of the backend: `pieces` runs of `bytes`, `stride` bytes apart in both source
// and target. Copy engines do it where the device has them.
struct ByteMove {
  const std::byte* from = nullptr;
  std::byte* to = nullptr;
  size_t bytes = 0;
  size_t pieces = 1;
  size_t stride = 0;

  size_t span() const { return (pieces - 1) * stride + bytes; }
};

// A point in a queue: complete when everything enqueued before it is done. Zero is always complete.
struct Ticket {
  uint64_t value = 0;
};

// Entries per block of attention (see the rules above). Work is divided between passes and threads at its multiples.
inline constexpr int64_t kAttentionBlock = 64;
// Models with wider heads are rejected when they are loaded.
inline constexpr int64_t kMaxHeadDim = 512;

// How a matrix product stores its result.
enum class Epilogue : uint8_t { kStore, kAdd /* out += */, kRelu };

// out = epilogue(x · weightᵀ + bias). One MatMul call takes all projections of one x, so that x is read once and the
// threads are woken once.
struct Projection {
  WeightView weight;  // [n][k], a stored type that CheckWeight accepts
  ConstTensor bias;   // [1][n] f32, or null
  Tensor out;         // [m][n] activation type, or f32
  Epilogue epilogue = Epilogue::kStore;
};

// The tokens of one call, one array element each. The arrays are backend memory.
struct TokenBatch {
  int64_t count = 0;
  const int32_t* ids = nullptr;    // [count] vocabulary ids
  const int32_t* slots = nullptr;  // [count] slot of the token's sequence
  const int32_t* rows = nullptr;   // [count] last row of the sequence; equal to the position until the layer evicts
  // Set only for layers that evict:
  const int32_t* positions = nullptr;  // [count] position of the token; null: equal to rows
  const int32_t* own_rows = nullptr;   // [count][kv_heads] row of the token's own entry; null: equal to rows
  int64_t kv_heads = 0;                // second dimension of own_rows

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

// Consecutive tokens of one sequence, in rows [first_row, first_row + count): a prefill chunk.
struct TokenRun {
  SeqSlot slot;
  int64_t first_row = 0;
  int64_t count = 0;
};

// Queries are [tokens][heads·head_dim]. Query head h reads KV head h / (heads / kv_heads); heads is a multiple of
// kv_heads. A score is query · key · scale, soft-capped.
struct AttentionShape {
  int64_t heads = 0;
  float scale = 1.0f;
  float soft_cap = 0;  // scores become cap · tanh(score / cap); 0: unchanged
  int64_t window = 0;  // AttendPrefill and AttendDecode: a token attends to the last `window` entries; 0: to all
};

// Which numbers of a head Rope rotates: its first d dimensions, d = table.cols ≤ head_dim, in d/2 planes.
struct RopeShape {
  int64_t head_dim = 0;
  bool adjacent = false;  // plane i is dimensions 2i and 2i + 1; otherwise i and i + d/2
};

template <class B>
concept Backend = requires(B& b, Queue queue, Ticket ticket, Tensor t, ConstTensor c, WeightView w, TokenBatch batch,
                           TokenRun run, LayerEntries entries, WeightType stored, AttentionShape shape, RopeShape rope,
                           std::span<const Projection> projections, LayerSketches sketches, SketchBasis basis,
                           SelectCall call, Selection selection, TailBasis tail_basis, TailView tail,
                           LayerPageBounds bounds, LayerPageSums sums, MassTotals* mass, RetainRule retain,
                           LayerCache cache, SeqSlot slot, int32_t* own_rows, const void* from, void* to, size_t bytes,
                           float eps, float factor, int64_t n, std::span<const ByteMove> moves, FetchClock* clock) {
  { b.activation() } -> std::same_as<DType>;
  { B::kChunkTokens } -> std::convertible_to<int64_t>;  // most tokens in a prefill chunk

  // ---- Memory

  // For activations and tables.
  { b.compute_memory() } -> std::same_as<Allocator&>;
  // For the entries of the pool.
  { b.pool_memory() } -> std::same_as<Allocator&>;
  // Host memory that Move reads and writes at the full speed of the link.
  { b.host_memory() } -> std::same_as<Allocator&>;
  // True if the pool lies across a link from the compute device. Operations can read its entries all the same, but
  // slowly: whole layers are copied with Move instead.
  { b.pool_is_remote() } -> std::same_as<bool>;
  // Makes a weight matrix, or an f32 parameter vector, readable by operations. The argument is in host memory and must
  // outlive the backend. Fails for a matrix whose type CheckWeight rejects.
  { b.Load(w) } -> std::same_as<Result<WeightView>>;
  { b.Load(c) } -> std::same_as<Result<ConstTensor>>;
  // kUnsupported, with the type's name, if the backend cannot multiply by weights of this stored type.
  { b.CheckWeight(stored) } -> std::same_as<Status>;
  // Reserve(max_tokens, max_batch, heads, kv_heads, head_dim) allocates the scratch for steps of up to `max_batch`
  // tokens over sequences of up to `max_tokens` rows. Such steps then allocate nothing.
  { b.Reserve(n, n, n, n, n) } -> std::same_as<Status>;
  // From host to backend memory. The host bytes may be changed as soon as the call returns.
  { b.Upload(queue, from, bytes, to) } -> std::same_as<void>;
  // From backend to host memory. The host bytes are valid after Synchronize(ticket).
  { b.Download(queue, from, bytes, to) } -> std::same_as<Ticket>;
  // Copies between memories of the backend. Pool memory need not be ready (AwaitPool). Sources and targets must not
  // change until the copies are done.
  { b.Move(queue, moves) } -> std::same_as<void>;
  // Blocks the host until every operation can use all allocated pool memory. (A GPU pins it in the background.)
  { b.AwaitPool() } -> std::same_as<void>;

  // ---- Order and timing

  { b.Record(queue) } -> std::same_as<Ticket>;
  { b.Wait(queue, ticket) } -> std::same_as<void>;  // later operations on `queue` start after `ticket`
  { b.Synchronize(ticket) } -> std::same_as<void>;  // blocks the host
  // Measure the stall of each step. The fetching queue calls NoteArrived before it records its ticket; the queue that
  // needs the entries calls NoteReady before it waits for that ticket. Once per step, after both, CountWaits adds the
  // differences of `n` clocks to their totals.
  { b.NoteArrived(queue, clock) } -> std::same_as<void>;
  { b.NoteReady(queue, clock) } -> std::same_as<void>;
  { b.CountWaits(queue, clock, n) } -> std::same_as<void>;

  // ---- Embeddings, norms, products

  // out[i] = table[ids[i]], converted.                 table [vocab][hidden], out [count][hidden]
  { b.Embed(queue, batch, w, t) } -> std::same_as<void>;
  // x[i] += table[position i + n].                     learned positions; OPT stores them from row 2 on
  { b.AddPositions(queue, batch, w, n, t) } -> std::same_as<void>;
  // out = x / rms(x) · weight; out may be x.           x, out [m][hidden]; weight [1][hidden] f32
  { b.RmsNorm(queue, t, c, eps, t) } -> std::same_as<void>;
  // out = (x − mean) / σ · weight + bias; out may be x.
  { b.LayerNorm(queue, t, c, c, eps, t) } -> std::same_as<void>;
  // Computes every projection of x [m][k]. No output may overlap x.
  { b.MatMul(queue, t, projections) } -> std::same_as<void>;
  // table[i] = cosines, then sines, of position i · frequencies, all times `factor`; once per step.
  //                                                    frequencies [1][d/2] f32, table [count][d] f32
  { b.RopeTable(queue, batch, c, factor, t) } -> std::same_as<void>;
  // Rotates every head of x [count][heads·head_dim] in place: each plane (a, b) → (a·cos − b·sin, b·cos + a·sin). The
  // dimensions from d on are unchanged.
  { b.Rope(queue, c, rope, t) } -> std::same_as<void>;
  // out = every head of x [m][heads·n], turned (kv/turn.h); out may be x.
  { b.TurnHeads(queue, c, n, t) } -> std::same_as<void>;
  // out = x, row by row; they must not overlap.
  { b.Copy(queue, c, t) } -> std::same_as<void>;
  // gate = silu(gate) · up; with GELU in its tanh form.
  { b.SiluMul(queue, t, t) } -> std::same_as<void>;
  { b.GeluMul(queue, t, t) } -> std::same_as<void>;
  // x += y, both f32.
  { b.Add(queue, c, t) } -> std::same_as<void>;
  // x = x · factor, f32.
  { b.Scale(queue, factor, t) } -> std::same_as<void>;
  // x = cap · tanh(x / cap), f32; `factor` is the cap.
  { b.SoftCap(queue, factor, t) } -> std::same_as<void>;

  // ---- Entries and attention

  // Stores keys and values [count][kv_heads·d] as entries in the tokens' own rows, rounded to the stored type. The
  // extents must be allocated.
  { b.Append(queue, batch, c, c, entries) } -> std::same_as<void>;
  // Token i of the run attends to entries [0, first_row + i], its own included (already appended), or to the last
  // shape.window of them.
  { b.AttendPrefill(queue, c, run, shape, entries, t) } -> std::same_as<void>;
  // Token i attends to entries [0, rows[i]] of its sequence, or to the last shape.window of them. `n` is the largest
  // row + 1 in the batch.
  { b.AttendDecode(queue, c, batch, n, shape, entries, t) } -> std::same_as<void>;

  // ---- Selection (kv/index.h, kv/page_sums.h and kv/select.h define the arithmetic)

  // InfiniGen: stores the sketches of keys [count][kv_heads·d] in the tokens' own rows.
  { b.AppendSketches(queue, batch, c, basis, sketches) } -> std::same_as<void>;
  // out = queries · basis · scale.                     queries [count][heads·d], out [count][heads·dims] f32
  { b.SketchQueries(queue, c, batch, shape, basis, t) } -> std::same_as<void>;
  // Selects rows by the scores of sketch queries [count][heads·dims]. Rows [0, rows[i]) must have a sketch; row
  // rows[i] needs one only if call.current_known. With call.tail, then as SumTails.
  { b.Select(queue, c, batch, call, sketches, selection) } -> std::same_as<void>;
  // Stores the sketches of values [count][kv_heads·d] in the tokens' own rows.
  { b.AppendValueSketches(queue, batch, c, tail_basis, sketches) } -> std::same_as<void>;
  // Stores the means of the blocks that the tokens' rows complete, from the values of their entries, which are appended
  // already. Not for layers that evict.
  { b.AppendBlockMeans(queue, batch, entries, tail_basis, sketches) } -> std::same_as<void>;
  // tail.levels = queries · key_mean · scale.          queries [count][heads·d]
  { b.QueryLevels(queue, c, batch, shape, tail) } -> std::same_as<void>;
  // call.tail.sums = the tails of the selections (kv/tail.h), kNoTail for sequences whose rule has none. Sketch
  // queries and call.tail.levels are of the layer's own queries. With call.late, late rows join the selections first
  // (kv/select.h): call.late receives the longer selections, and their tails are computed; adds to call.totals.
  { b.SumTails(queue, c, batch, call, sketches, selection) } -> std::same_as<void>;
  // Quest: extends the page bounds to include keys [count][kv_heads·d]. The rows of a sequence must arrive in ascending
  // order, within a call and from call to call.
  { b.AppendBounds(queue, batch, c, bounds) } -> std::same_as<void>;
  // Selects whole pages by the scores of queries [count][heads·d] against page bounds. call.page must be kPageRows;
  // every page that is complete before rows[i] must have bounds.
  { b.SelectPages(queue, c, batch, call, shape, bounds, selection) } -> std::same_as<void>;
  // page-mean: adds keys [count][kv_heads·d] to the sums of their pages (kv/page_sums.h). The rows of a sequence must
  // arrive in ascending order; a page may be repeated from its first row.
  { b.AppendPageSums(queue, batch, c, sums) } -> std::same_as<void>;
  // SelectPages by the mean keys of pages. Every page that is complete before rows[i] must have a sum.
  { b.SelectPageMeans(queue, c, batch, call, shape, sums, selection) } -> std::same_as<void>;
  // Selects rows by true scores of queries [count][heads·d]. For measurement: no index can select better.
  { b.SelectExact(queue, c, batch, call, shape, entries, selection) } -> std::same_as<void>;
  // Token i attends to its selection and to its tail, if `tail` is not null; adds the tail's share to tail.mass, if a
  // sequence's tail is not empty. A selection of all rows gives AttendDecode's result bit for bit.
  { b.AttendSelected(queue, c, batch, selection, tail, shape, entries, t) } -> std::same_as<void>;
  // For measurement: adds to `mass` the share of each query head's true attention that lies inside the selection.
  { b.MeasureMass(queue, c, batch, selection, shape, entries, mass) } -> std::same_as<void>;

  // ---- Eviction (kv/retain.h defines the arithmetic). A call may contain several tokens of a sequence only while the
  // sequence is below its quota.

  // own_rows [count][kv_heads] = the row for each token's entry: the next free row or, at the quota, the row of an
  // evicted entry. Enters the token in the eviction state and voids the sketch of the row, which then has no score.
  { b.AssignRows(queue, batch, retain, cache, own_rows) } -> std::same_as<void>;
  // Updates the priorities of rows that were selected by score. `call` is the one that made the selection. Tokens of
  // one sequence count one after the other.
  { b.UpdatePriorities(queue, batch, retain, call, selection) } -> std::same_as<void>;
  // Adds the attention of queries [count][heads·d] to rows [0, rows[i]] to the priorities of these rows.
  { b.SumAttention(queue, c, batch, shape, cache) } -> std::same_as<void>;
  // The same for the tokens of a prefill, where row = position.
  { b.SumColumns(queue, c, run, shape, cache) } -> std::same_as<void>;
  // Slot 0 of the first cache holds a prefill of n rows. Copies entries, sketches and eviction state of its survivors,
  // by the quota of `slot`, to that slot of the second cache in the order of their positions.
  { b.CopySurvivors(queue, retain, cache, n, slot, cache) } -> std::same_as<void>;
};

// A backend that can fetch selected entries to the compute device instead of reading them over the link
// (kv/selection_view.h). The steps of a layer: Select, AssignCells, FetchMisses while other work runs, AppendFetched,
// where rows are late AssignLate and FetchMisses again, AttendFetched. A call has at most one token per sequence.
template <class B>
concept FetchingBackend = Backend<B> &&
    requires(B& b, Queue queue, ConstTensor c, Tensor t, TokenBatch batch, LayerEntries entries, Selection selection,
             TailView tail, AttentionShape shape, FetchBuffer buffer, FetchList list, FetchTotals* totals,
             LateSelection late, FetchClock* clock, SeqSlot slot, double forced_hits) {
  // Empties the hot set of `slot`. Required before a sequence's first step, and after any operation other than
  // AppendFetched has written rows that the hot set may hold.
  { b.ClearFetched(queue, buffer, slot) } -> std::same_as<void>;
  // Assigns a cell to every selected row and lists the misses.
  //  * Without a hot set: cells follow the order of the selection, and every row but the token's own is a miss.
  //    `forced_hits` (for benchmarks, otherwise 0) is the share of rows that counts as hits nevertheless.
  //  * With a hot set: a row that it holds keeps its cell. The n other rows, in order and the token's own last, take
  //    the n least recently used cells outside the selection, in ascending order; ties go to the lower cell.
  //  * A selection with more rows than cells stays in the pool. The hot set then only drops the token's own row.
  // Updates the tables of the hot set and totals [slots].
  { b.AssignCells(queue, batch, selection, buffer, forced_hits, list, totals) } -> std::same_as<void>;
  // Assigns cells to selections that late rows have joined. The first list is that of the selections before; the second
  // is shaped like it and receives the cells of late.all and, as misses, the late rows to fetch.
  //  * Rows of the selection before keep their cells. If they are in the pool, so are the late rows.
  //  * Without a hot set, late rows take the cells after those of the selection, and all are misses.
  //  * With a hot set, they get cells as in AssignCells; none of late.all is taken from.
  //  * If there are fewer cells than late rows without one, these stay in the pool.
  // Updates the tables of the hot set and totals [slots]. FetchMisses and AttendFetched then take late.all and the
  // second list.
  { b.AssignLate(queue, batch, late, buffer, list, list, totals) } -> std::same_as<void>;
  // Copies the missing entries from the pool to their cells, then notes their arrival on `clock`.
  { b.FetchMisses(queue, batch, selection, entries, buffer, list, clock) } -> std::same_as<void>;
  // Stores the tokens' keys and values in their cells, if they have one. (Append stores them in the pool.)
  { b.AppendFetched(queue, batch, c, c, buffer, list) } -> std::same_as<void>;
  // AttendSelected, reading cells, and the pool for rows without a cell. The result is the same bit for bit.
  { b.AttendFetched(queue, c, batch, selection, tail, shape, entries, buffer, list, t) } -> std::same_as<void>;
};

}  // namespace infinigen
