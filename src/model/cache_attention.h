// CacheAttention: the part of a layer that uses the cache. It composes the KV method from backend operations, as the
// layer's plan (model/layer_plan.h) prescribes:
//
//   prefill   Appends new entries and their index; every token attends to all entries before it. An evicting layer does
//             this in a temporary cache for the whole prompt (PromptCache), then copies only the survivors to the pool.
//   step      Prepare: in an evicting layer, assigns a row to each new entry, in a full cache by evicting one; appends
//                      the entry and its index; selects rows, unless the layer before has done so (SelectAhead); starts
//                      to fetch selected entries of a remote pool.
//                      Where a guess selected, the layer's own query then adds late rows and computes the tails; late
//                      entries of a remote pool are fetched in a second trip.
//             Attend:  waits for the fetches, then attends to the selected rows, or to all rows.
//   run       A chunk of one sequence as steps: token by token in an evicting layer, otherwise several at a time.
//
// Where the pool is remote, operations that read all rows of a layer read them on a stage (model/layer_stage.h).
//
// Owns the method's memory on the compute device: index, sketch bases, fetch buffers. Called by the decoder only;
// allocates nothing after Start.
#pragma once

#include <algorithm>
#include <array>
#include <numeric>
#include <optional>
#include <span>
#include <vector>

#include "backend/backend.h"
#include "kv/method.h"
#include "kv/pool.h"
#include "kv/selection_view.h"
#include "kv/turn.h"
#include "model/config.h"
#include "model/executor.h"
#include "model/index_ops.h"
#include "model/layer_plan.h"
#include "model/layer_stage.h"
#include "model/layer_views.h"
#include "model/workspace.h"

namespace infinigen {

// Queries, keys and values of a layer's tokens; queries and keys are rotated.
struct LayerHeads {
  Tensor q;       // [count][heads·head_dim]
  Tensor select;  // [count][heads·head_dim] the query that selects rows: q, or a guess of it
  Tensor k, v;    // [count][kv_heads·head_dim]
  Tensor out;     // [count][heads·head_dim] receives the output of attention, until TurnBack in the basis of entries
  // q, k and v in the basis of entries (kv/turn.h). Everything that meets entries uses these: entries hold turned keys
  // and values, and so do value sketches, whose basis is turned too. Key sketches and page bounds are of k itself.
  Tensor entry_q, entry_k, entry_v;

  LayerHeads Rows(int64_t first, int64_t count) const {
    return {q.Rows(first, count),   select.Rows(first, count),  k.Rows(first, count),       v.Rows(first, count),
            out.Rows(first, count), entry_q.Rows(first, count), entry_k.Rows(first, count), entry_v.Rows(first, count)};
  }
};

// Tokens of a step or a run.
struct StepTokens {
  TokenBatch batch;
  int64_t max_rows = 0;  // at least the largest row + 1

  StepTokens Range(int64_t first, int64_t count) const { return {batch.Range(first, count), max_rows}; }
};

template <Backend B>
class CacheAttention {
 public:
  // All arguments outlive the object.
  CacheAttention(B& backend, const WorkspaceShape& shape, const Workspace& work, const Pool& pool)
      : backend_(backend),
        shape_(shape),
        config_(shape.config),
        method_(shape.method),
        work_(work),
        pool_(pool),
        views_(shape_, work, pool),
        index_(backend, *method_.select, work, views_),
        stage_(backend, pool) {}

  // Allocates and initialises the device memory.
  Status Start(const SketchSource& sketches) {
    if (method_.evicts()) Put(std::vector<int32_t>(static_cast<size_t>(shape_.tokens())), work_.zeros);
    if (shape_.remote) {
      Put(std::vector<FetchClock>(static_cast<size_t>(config_.layers)), work_.clocks);
      RETURN_IF_ERROR(StartStage());
    }
    if (!method_.selects()) return Ok();
    ASSIGN_OR_RETURN(index_memory_, Buffer::Make(backend_.compute_memory(), shape_.index().total_bytes()));
    views_.SetIndex(index_memory_.data());
    const size_t totals = static_cast<size_t>(config_.layers * shape_.pool.max_sequences);
    Put(std::vector<SelectionTotals>(totals), work_.totals);
    if (method_.measure_mass) Put(std::vector<MassTotals>(static_cast<size_t>(config_.layers)), work_.mass);
    Put(std::vector<SelectRule>(static_cast<size_t>(shape_.pool.max_sequences), method_.rule), work_.rules);
    if (shape_.fetches) {
      ASSIGN_OR_RETURN(fetch_memory_, Buffer::Make(backend_.compute_memory(), shape_.fetch_bytes()));
      views_.SetFetchBuffers(fetch_memory_.data());
      Put(std::vector<FetchTotals>(totals), work_.fetch_totals);
    }
    if (!method_.select->uses_basis) return Ok();
    for (LayerId layer : IdRange<LayerId>(config_.layers)) {
      if (!shape_.has_index(layer)) continue;
      CHECK(layer.index() < sketches.bases.size());
      for (int64_t slot = 0; slot < (method_.prompt_columns ? shape_.pool.max_sequences : 1); ++slot)
        SetBasis(layer, SeqSlot(slot), sketches.bases[layer.index()]);
      if (!method_.has_tail()) continue;
      CHECK(layer.index() < sketches.tails.size());
      SetTailBasis(views_.TailOf(layer).basis, sketches.tails[layer.index()]);
    }
    if (method_.has_tail()) Put(std::vector<MassTotals>(static_cast<size_t>(config_.layers)), work_.tail_mass);
    return Ok();
  }

  void SetBasis(LayerId layer, SeqSlot slot, const SketchMatrices& matrices) {
    const SketchBasis basis = views_.Basis(layer);
    const int64_t at = basis.per_slot ? slot.value() : 0;
    Put(matrices.query, const_cast<float*>(basis.Query(at, 0)));
    Put(matrices.key, const_cast<float*>(basis.Key(at, 0)));
    Put(matrices.key_offset, const_cast<float*>(basis.KeyOffset(at, 0)));
  }

  void SetTailBasis(const TailBasis& basis, TailMatrices matrices) {
    if (turned()) TurnValues(basis.head_dim, basis.value_dims, matrices);
    Put(matrices.key_mean, const_cast<float*>(basis.key_mean));
    Put(matrices.value, const_cast<float*>(basis.value));
    Put(matrices.value_offset, const_cast<float*>(basis.value_offset));
    Put(matrices.value_mean, const_cast<float*>(basis.value_mean));
  }

  void SetRule(SeqSlot slot, const SelectRule& rule) {
    CHECK(method_.selects() && rule.cap <= method_.LargestCap() && (!rule.tail || method_.has_tail()));
    CHECK(rule.LateRows() <= method_.rule.late);
    by_mass_ = by_mass_ || rule.mass > 0;
    backend_.Upload(Queue::kCompute, &rule, sizeof(rule), work_.rules + slot.value());
  }

  // Copies the index of an extent's rows to or from `host` [index layers][kv_heads][head_extent_bytes]. SaveIndex
  // waits.
  void SaveIndex(SeqSlot slot, int64_t extent, std::byte* host) {
    const size_t bytes = shape_.index().head_extent_bytes();
    Ticket copied;
    views_.ForIndexOf(slot, extent, [&](std::byte* index, size_t i) {
      copied = backend_.Download(Queue::kCompute, index, bytes, host + i * bytes);
    });
    backend_.Synchronize(copied);
  }
  void LoadIndex(SeqSlot slot, int64_t extent, const std::byte* host) {
    const size_t bytes = shape_.index().head_extent_bytes();
    views_.ForIndexOf(slot, extent, [&](std::byte* index, size_t i) {
      backend_.Upload(Queue::kCompute, host + i * bytes, bytes, index);
    });
  }

  // Uploads the extent tables and quotas if they changed. Called once per step or unit, before anything else.
  void UploadTables() {
    if (tables_version_ == pool_.table_version()) return;
    for (LayerId layer : IdRange<LayerId>(config_.layers)) {
      const std::span<std::byte* const> table = pool_.Table(layer);
      backend_.Upload(Queue::kCompute, table.data(), table.size_bytes(), work_.tables + layer.index() * table.size());
    }
    const auto upload_quotas = [&](std::span<const int32_t> quotas, int32_t* to) {
      backend_.Upload(Queue::kCompute, quotas.data(), quotas.size_bytes(), to);
    };
    upload_quotas(pool_.full_quotas(), work_.quotas);
    if (method_.evicts()) upload_quotas(pool_.retained_quotas(), work_.retained_quotas);
    if (work_.window_quotas != nullptr) upload_quotas(pool_.window_quotas(), work_.window_quotas);
    tables_version_ = pool_.table_version();
  }

  // Empties the hot set of a sequence: it is new, or another pass than a step has written its rows.
  void Forget(LayerId layer, SeqSlot slot) {
    if constexpr (FetchingBackend<B>)
      if (shape_.hot_rows > 0 && shape_.fetches && shape_.selects(layer))
        backend_.ClearFetched(Queue::kCompute, views_.Fetched(layer), slot);
  }

  // Sets the tensors in the basis of entries.
  void Turn(LayerHeads& heads) {
    heads.entry_q = Turned(heads.q, work_.turned_q);
    heads.entry_k = Turned(heads.k, work_.turned_k);
    heads.entry_v = Turned(heads.v, work_.turned_v);
  }
  // Turns the output of attention back; once per layer and call, after attention.
  void TurnBack(const LayerHeads& heads) {
    if (turned()) backend_.TurnHeads(Queue::kCompute, heads.out, config_.head_dim, heads.out);
  }

  // ---- a prompt ----

  // Allocates memory on the stages for a prompt that ends at row `rows`; ClosePrompt frees it.
  Status OpenPrompt(SeqSlot slot, int64_t rows) { return shape_.stages_prompts() ? stage_.Open(slot, rows) : Ok(); }
  void ClosePrompt(SeqSlot slot) {
    if (shape_.remote && !stages_steps()) stage_.Close(slot);
  }
  // Called before a layer's first chunk, when the sequence has `first` rows, and after its last chunk.
  void BeginPromptLayer(const LayerPlan& plan, SeqSlot slot, int64_t first) {
    if (plan.entries == EntrySource::kStage) stage_.BeginLayer(plan.layer, slot, first);
    Forget(plan.layer, slot);
  }
  void EndPromptLayer(const LayerPlan& plan, SeqSlot slot, int64_t first, int64_t rows) {
    if (plan.entries == EntrySource::kStage) stage_.EndLayer(plan.layer, slot, first, rows);
  }

  // The entries that a pass reads and appends to: in the pool or on a stage.
  LayerEntries Entries(const LayerPlan& plan) const {
    const LayerEntries pool = views_.Entries(plan.layer);
    return plan.entries == EntrySource::kStage ? stage_.Staged(plan.layer, pool) : pool;
  }
  // `values` are in the basis of entries.
  void AppendIndex(const LayerPlan& plan, const TokenBatch& batch, const Tensor& keys, const Tensor& values) {
    if (plan.has_index) index_.Append(plan.layer, batch, keys, values);
  }

  // A chunk in a layer that retains everything. The caller appends the index.
  void Prefill(const LayerPlan& plan, const TokenRun& run, const TokenBatch& batch, const LayerHeads& heads) {
    const LayerEntries entries = Entries(plan);
    AppendEntries(plan, batch, heads.entry_k, heads.entry_v, entries);
    backend_.AttendPrefill(Queue::kCompute, heads.entry_q, run, Attention(plan), entries, heads.out);
  }

  // Fills in the table of a prompt's temporary cache.
  void OpenPromptCache(const PromptCache& prompt, int64_t tokens) {
    std::vector<std::byte*> extents;
    for (int64_t row = 0; row < tokens; row += kExtentTokens)
      extents.push_back(prompt.entries + static_cast<size_t>(row) * pool_.options().layout.row_bytes());
    Put(extents, prompt.extents);
    Put(std::vector<int32_t>{static_cast<int32_t>(tokens)}, prompt.quota);
  }
  // A chunk in a layer that evicts. After the prompt's last chunk, copies the survivors to the pool.
  void PrefillEvicting(const LayerPlan& plan, const PromptCache& prompt, int64_t prompt_tokens, const TokenRun& run,
                       const TokenBatch& batch, const LayerHeads& heads) {
    const Queue queue = Queue::kCompute;
    const RetainRule rule = method_.retain_rule();
    TokenBatch batch_in_prompt = batch;
    batch_in_prompt.slots = work_.zeros;
    const TokenRun run_in_prompt{.slot = SeqSlot(0), .first_row = run.first_row, .count = run.count};
    backend_.AssignRows(queue, batch_in_prompt, rule, prompt.cache, work_.own_rows);
    backend_.Append(queue, batch_in_prompt, heads.entry_k, heads.entry_v, prompt.cache.entries);
    if (plan.has_index) index_.Append(plan.layer, batch_in_prompt, heads.k, heads.entry_v, prompt.index());
    backend_.AttendPrefill(queue, heads.entry_q, run_in_prompt, Attention(plan), prompt.cache.entries, heads.out);
    if (rule.sums_attention) backend_.SumColumns(queue, heads.entry_q, run_in_prompt, Attention(plan), prompt.cache);
    if (rule.on_select != PriorityUpdate::kKeep)
      SeedPriorities(plan, prompt, prompt_tokens, run, batch_in_prompt, heads);
    if (run.first_row + run.count == prompt_tokens) {
      backend_.AwaitPool();
      backend_.CopySurvivors(queue, rule, prompt.cache, prompt_tokens, run.slot, views_.Cache(plan.layer));
    }
  }

  // ---- a step ----

  // Called before and after the layers of a step. `sequences`: rows before the step; valid until EndStep.
  void BeginStep(std::span<const SlotRows> sequences) {
    if (!shape_.remote) return;
    backend_.AwaitPool();
    stage_.AwaitWriteout();
    if (!stages_steps()) return;
    staged_ = sequences;
    stage_.BeginFetching();
    for (int64_t i = 0, layer = NextStaged(-1); i < stage_.kStages && layer < config_.layers; ++i) {
      StageLayer(LayerId(layer));
      layer = NextStaged(layer);
    }
  }
  void EndStep() {
    staged_ = {};
    if (shape_.remote) backend_.CountWaits(Queue::kCompute, work_.clocks, config_.layers);
  }
  // A step enqueues the same operations whatever the rows, and nothing is reported to the host.
  bool replayable() const { return !stages_steps() && !method_.measure_mass && !observer_; }
  // Some rule has, or had, a mass. Steps then enqueue one operation more.
  bool by_mass() const { return by_mass_; }

  // Selects a layer's rows by guessed queries before the layer runs, and starts to fetch them.
  void SelectAhead(const LayerPlan& plan, const StepTokens& tokens, const Tensor& queries) {
    const StepTokens own = TokensFor(plan, tokens);
    if (plan.evicts) AssignRows(plan, own.batch, work_.own_rows);
    Select(plan, own, queries);
  }

  // The part of a step that needs no fetched entries.
  void Prepare(const LayerPlan& plan, const StepTokens& tokens, const LayerHeads& heads) {
    Prepare(plan, TokensFor(plan, tokens), heads, work_.own_rows);
  }
  // Attends to the selected rows, or to all rows.
  void Attend(const LayerPlan& plan, const StepTokens& tokens, const LayerHeads& heads) {
    AttendTo(plan, TokensFor(plan, tokens), heads);
  }

  // Prepare and Attend for a chunk of one sequence. Precondition: nothing is fetched, nothing is selected ahead.
  void AttendRun(const LayerPlan& plan, const StepTokens& all, const LayerHeads& heads) {
    const StepTokens tokens = TokensFor(plan, all);
    const int64_t count = tokens.batch.count;
    if (plan.evicts) {
      // Each token may evict a row, so the next token needs the updated cache.
      for (int64_t i = 0; i < count; ++i) {
        const StepTokens one = tokens.Range(i, 1);
        Prepare(plan, one, heads.Rows(i, 1), work_.own_rows + i * shape_.owned.kv_heads);
        AttendTo(plan, one, heads.Rows(i, 1));
      }
      return;
    }
    AppendEntries(plan, tokens.batch, heads.entry_k, heads.entry_v, Entries(plan));
    AppendIndex(plan, tokens.batch, heads.k, heads.entry_v);
    // There is memory for the selections of this many tokens.
    const int64_t part = plan.selects ? shape_.select_tokens() : count;
    for (int64_t first = 0; first < count; first += part) {
      const int64_t n = std::min(part, count - first);
      const StepTokens some = tokens.Range(first, n);
      if (plan.selects) Select(plan, some, heads.Rows(first, n).select);
      if (plan.selects) SumTails(plan, some, heads.Rows(first, n).q);
      if (plan.selects) Observe(plan, some.batch, heads.Rows(first, n));
      AttendTo(plan, some, heads.Rows(first, n));
    }
  }

  // ---- synthetic entries and observers ----

  // Appends entries and index of a batch to the pool, as they are.
  void AppendInPlace(const LayerPlan& plan, const TokenBatch& batch, const Tensor& k, const Tensor& v) {
    AppendEntries(plan, batch, k, v, views_.Entries(plan.layer));
    AppendIndex(plan, batch, k, v);
  }
  // Writes the eviction state of a sequence of `tokens` tokens whose newest rows are retained.
  void FillEvictionState(SeqSlot slot, int64_t tokens) {
    if (!method_.evicts()) return;
    const int64_t rows = std::min(tokens, pool_.quota(slot).retained);
    std::vector<int32_t> positions(static_cast<size_t>(rows));
    std::iota(positions.begin(), positions.end(), static_cast<int32_t>(tokens - rows));
    for (LayerId layer : IdRange<LayerId>(config_.layers)) {
      if (!shape_.evicts(layer)) continue;
      for (int64_t head = 0; head < shape_.owned.kv_heads; ++head) {
        Put(positions, views_.Retained(layer).Positions(slot.value(), head));
        std::vector<float> priorities;
        for (const int32_t position : positions)
          priorities.push_back(PriorityAtAppend(method_.retain->on_append, position, head));
        Put(priorities, views_.Retained(layer).Priorities(slot.value(), head));
      }
    }
  }

  // See Instruments::ObserveSelection.
  void Observe(SelectionObserver observer, std::optional<SeqSlot> slot) {
    observer_ = std::move(observer);
    observed_ = slot;
  }

 private:
  bool turned() const { return shape_.pool.layout.turned(); }
  Tensor Turned(const Tensor& x, const Tensor& memory) {
    if (!turned()) return x;
    const Tensor out = memory.Rows(0, x.rows);
    backend_.TurnHeads(Queue::kCompute, x, config_.head_dim, out);
    return out;
  }
  // Turns what a tail knows of values: their mean, and the columns of their sketches.
  static void TurnValues(int64_t head_dim, int64_t value_dims, TailMatrices& matrices) {
    const auto d = static_cast<size_t>(head_dim), columns = static_cast<size_t>(value_dims);
    std::vector<float> column(d);
    for (size_t head = 0; head * d < matrices.value_mean.size(); ++head) {
      TurnHead(std::span(matrices.value_mean).subspan(head * d, d));
      float* const value = matrices.value.data() + head * d * columns;
      for (size_t c = 0; c < columns; ++c) {
        for (size_t i = 0; i < d; ++i) column[i] = value[i * columns + c];
        TurnHead(column);
        for (size_t i = 0; i < d; ++i) value[i * columns + c] = column[i];
      }
    }
  }

  // In an evicting layer a token's row differs from its position.
  StepTokens TokensFor(const LayerPlan& plan, const StepTokens& tokens) const {
    if (!plan.evicts) return tokens;
    return {views_.EvictingBatch(tokens.batch), std::min(tokens.max_rows, shape_.retained_rows())};
  }
  AttentionShape Attention(const LayerPlan& plan) const {
    return {.heads = shape_.owned.heads,
            .scale = plan.spec->attention_scale,
            .soft_cap = plan.spec->attention_soft_cap,
            .window = plan.spec->window};
  }

  // Appends the entries of a batch, and the means of the blocks that they complete.
  void AppendEntries(const LayerPlan& plan, const TokenBatch& batch, const Tensor& keys, const Tensor& values,
                     const LayerEntries& entries) {
    backend_.Append(Queue::kCompute, batch, keys, values, entries);
    if (plan.has_index) index_.AppendMeans(plan.layer, batch, entries);
  }

  // Assigns a row to each new entry: the next free one, or in a full cache that of the evicted entry.
  void AssignRows(const LayerPlan& plan, const TokenBatch& batch, int32_t* rows) {
    backend_.AssignRows(Queue::kCompute, batch, method_.retain_rule(), views_.Cache(plan.layer), rows);
  }

  // `rows`: where an evicting layer stores the rows that it assigns to the batch.
  void Prepare(const LayerPlan& plan, const StepTokens& tokens, const LayerHeads& heads, int32_t* rows) {
    if (plan.evicts && !plan.ahead) AssignRows(plan, tokens.batch, rows);
    AppendEntries(plan, tokens.batch, heads.entry_k, heads.entry_v, views_.Entries(plan.layer));
    if (plan.knows_current()) AppendIndex(plan, tokens.batch, heads.k, heads.entry_v);
    if (plan.selects && !plan.ahead) Select(plan, tokens, heads.select);
    if (!plan.knows_current()) AppendIndex(plan, tokens.batch, heads.k, heads.entry_v);
    if (plan.selects) SumTails(plan, tokens, heads.q);
    if (plan.entries == EntrySource::kFetched) FetchLate(plan, tokens.batch);
    if constexpr (FetchingBackend<B>)
      if (plan.entries == EntrySource::kFetched)
        backend_.AppendFetched(Queue::kCompute, tokens.batch, heads.entry_k, heads.entry_v, views_.Fetched(plan.layer),
                               views_.List(plan.layer));
    if (plan.selects) Observe(plan, tokens.batch, heads);
  }

  void AttendTo(const LayerPlan& plan, const StepTokens& tokens, const LayerHeads& heads) {
    if (plan.entries == EntrySource::kFetched) return AttendFetched(plan, tokens, heads);
    if (plan.selects)
      return backend_.AttendSelected(Queue::kCompute, heads.entry_q, tokens.batch, views_.Attended(plan.layer),
                                     views_.TailOf(plan.layer), Attention(plan), Entries(plan), heads.out);
    AttendToAll(plan, tokens, heads);
  }
  void AttendFetched(const LayerPlan& plan, const StepTokens& tokens, const LayerHeads& heads) {
    if constexpr (FetchingBackend<B>) {
      backend_.NoteReady(Queue::kCompute, Clock(plan.layer));
      backend_.Wait(Queue::kCompute, fetched_[views_.Turn(plan.layer)]);
      backend_.AttendFetched(Queue::kCompute, heads.entry_q, tokens.batch, views_.Attended(plan.layer),
                             views_.TailOf(plan.layer), Attention(plan), views_.Entries(plan.layer),
                             views_.Fetched(plan.layer), views_.AttendedList(plan.layer), heads.out);
    }
  }
  void AttendToAll(const LayerPlan& plan, const StepTokens& tokens, const LayerHeads& heads) {
    LayerCache cache = views_.Cache(plan.layer);
    cache.entries = Entries(plan);
    // Only in a step: a run has appended to the stage already.
    const bool staged = !staged_.empty() && plan.entries == EntrySource::kStage;
    if (staged) {
      stage_.AwaitFetched(plan.layer, Clock(plan.layer));
      backend_.Append(Queue::kCompute, tokens.batch, heads.entry_k, heads.entry_v, cache.entries);
    }
    backend_.AttendDecode(Queue::kCompute, heads.entry_q, tokens.batch, tokens.max_rows, Attention(plan), cache.entries,
                          heads.out);
    if (plan.evicts && method_.retain_rule().sums_attention)
      backend_.SumAttention(Queue::kCompute, heads.entry_q, tokens.batch, Attention(plan), cache);
    if (!staged) return;
    stage_.Release(plan.layer);
    int64_t next = plan.layer.value();
    for (int64_t i = 0; i < stage_.kStages; ++i) next = NextStaged(next);
    if (next < config_.layers) StageLayer(LayerId(next));
  }

  SelectCall CallOf(const LayerPlan& plan, const StepTokens& tokens) const {
    return {.rules = work_.rules,
            .totals = work_.totals + plan.layer.value() * shape_.pool.max_sequences,
            .current_known = plan.knows_current(),
            .mean_counts = method_.mean_counts,
            .max_rows = tokens.max_rows,
            .retained = views_.Retained(plan.layer),
            .page = method_.select->page_rows,
            .soft_cap = plan.spec->attention_soft_cap,
            .by_mass = by_mass_};
  }
  // A selection by the layer's own query has computed its tails; one by a guess computes them here, with late rows.
  void SumTails(const LayerPlan& plan, const StepTokens& tokens, const Tensor& queries) {
    if (!method_.has_tail() || plan.knows_current()) return;
    SelectCall call = CallOf(plan, tokens);
    call.current_known = true;
    call.tail = views_.TailOf(plan.layer);
    call.late = work_.late;
    index_.SumTails(plan.layer, tokens.batch, call, queries, Attention(plan), views_.Cache(plan.layer),
                    views_.Selected(plan.layer));
  }

  // Selects rows, and starts to fetch the misses.
  void Select(const LayerPlan& plan, const StepTokens& tokens, const Tensor& queries) {
    const Queue queue = Queue::kCompute;
    const Selection& selected = views_.Selected(plan.layer);
    SelectCall call = CallOf(plan, tokens);
    if (plan.knows_current()) call.tail = views_.TailOf(plan.layer);
    LayerCache cache = views_.Cache(plan.layer);
    cache.entries = Entries(plan);
    index_.Select(plan.layer, tokens.batch, call, queries, Attention(plan), cache, selected);
    if (plan.evicts) backend_.UpdatePriorities(queue, tokens.batch, method_.retain_rule(), call, selected);
    if (plan.entries == EntrySource::kFetched) Fetch(plan, tokens.batch);
  }
  void Fetch(const LayerPlan& plan, const TokenBatch& batch) {
    if constexpr (FetchingBackend<B>) {
      const LayerId layer = plan.layer;
      const Queue queue = Queue::kCompute;
      FetchTotals* totals = work_.fetch_totals + layer.value() * shape_.pool.max_sequences;
      backend_.AssignCells(queue, batch, views_.Selected(layer), views_.Fetched(layer), shape_.forced_hits,
                           views_.List(layer), totals);
      backend_.Wait(Queue::kFetch, backend_.Record(queue));
      backend_.FetchMisses(Queue::kFetch, batch, views_.Selected(layer), views_.Entries(layer), views_.Fetched(layer),
                           views_.List(layer), Clock(layer));
      fetched_[views_.Turn(layer)] = backend_.Record(Queue::kFetch);
    }
  }

  // Starts to fetch the late rows that are not on the device. This trip follows the layer's first one on the link and
  // precedes that of the next layer, which is selected later.
  void FetchLate(const LayerPlan& plan, const TokenBatch& batch) {
    if constexpr (FetchingBackend<B>) {
      if (!method_.has_late()) return;
      const LayerId layer = plan.layer;
      backend_.AssignLate(Queue::kCompute, batch, work_.late, views_.Fetched(layer), views_.List(layer),
                          work_.late_list, work_.fetch_totals + layer.value() * shape_.pool.max_sequences);
      backend_.Wait(Queue::kFetch, backend_.Record(Queue::kCompute));
      backend_.FetchMisses(Queue::kFetch, batch, work_.late.all, views_.Entries(layer), views_.Fetched(layer),
                           work_.late_list, Clock(layer));
      fetched_[views_.Turn(layer)] = backend_.Record(Queue::kFetch);
    }
  }

  // Initialises the priorities of a prompt's entries by the selections of its last tokens.
  void SeedPriorities(const LayerPlan& plan, const PromptCache& prompt, int64_t prompt_tokens, const TokenRun& run,
                      const TokenBatch& batch, const LayerHeads& heads) {
    // As many as rows in the smallest default selection: enough to rank the rows, and a few percent of a long prefill.
    constexpr int64_t kSeeds = 256;
    const int64_t end = run.first_row + run.count;
    SelectCall call{.rules = work_.rules + run.slot.value(),
                    .totals = work_.uncounted,
                    .mean_counts = method_.mean_counts,
                    .max_rows = end,
                    .soft_cap = plan.spec->attention_soft_cap};
    for (int64_t row = std::max(run.first_row, prompt_tokens - kSeeds); row < end; row += shape_.select_tokens()) {
      const int64_t first = row - run.first_row, count = std::min(shape_.select_tokens(), end - row);
      const TokenBatch part = batch.Range(first, count);
      const Selection& selected = views_.Selected(plan.layer);
      call.retained = {};  // in the prompt's cache, row = position
      index_.Select(plan.layer, part, call, heads.q.Rows(first, count), Attention(plan), prompt.cache, selected);
      call.retained = prompt.cache.retained;
      backend_.UpdatePriorities(Queue::kCompute, part, method_.retain_rule(), call, selected);
    }
  }

  // ---- whole layers of a remote pool ----

  // Steps read all rows of a remote pool.
  bool stages_steps() const { return shape_.remote && !method_.selects(); }
  Status StartStage() {
    RETURN_IF_ERROR(stage_.Start());
    if (!stages_steps()) return Ok();
    for (SeqSlot slot : IdRange<SeqSlot>(shape_.pool.max_sequences))
      RETURN_IF_ERROR(stage_.Open(slot, shape_.stage_rows()));
    return Ok();
  }
  // The first layer after `layer` that steps read on a stage, or the number of layers. Layers with a window are on the
  // device.
  int64_t NextStaged(int64_t layer) const {
    do ++layer;
    while (layer < config_.layers && shape_.pool.on_device(layer));
    return std::min(layer, config_.layers);
  }
  void StageLayer(LayerId layer) { stage_.Fetch(layer, staged_, Clock(layer)); }
  FetchClock* Clock(LayerId layer) const { return work_.clocks + layer.value(); }

  // ---- observers ----

  void Observe(const LayerPlan& plan, const TokenBatch& batch, const LayerHeads& heads) {
    if (method_.measure_mass)
      backend_.MeasureMass(Queue::kCompute, heads.entry_q, batch, views_.Attended(plan.layer), Attention(plan),
                           Entries(plan), work_.mass + plan.layer.value());
    if (observer_) ReportSelection(plan.layer, batch);
  }
  // The host waits for every list.
  void ReportSelection(LayerId layer, const TokenBatch& batch) {
    const auto fetch = [&](const int32_t* from, int64_t count) {
      std::vector<int32_t> host(static_cast<size_t>(count));
      backend_.Synchronize(backend_.Download(Queue::kCompute, from, host.size() * sizeof(int32_t), host.data()));
      return host;
    };
    const int64_t heads = shape_.owned.kv_heads;
    const Selection& selected = views_.Attended(layer);
    const std::vector<int32_t> slots = fetch(batch.slots, batch.count);
    const std::vector<int32_t> counts = fetch(selected.counts, batch.count * heads);
    for (size_t i = 0; i < counts.size(); ++i) {
      const int64_t token = static_cast<int64_t>(i) / heads, head = static_cast<int64_t>(i) % heads;
      const SeqSlot slot(slots[static_cast<size_t>(token)]);
      if (observed_ && slot != *observed_) continue;
      observer_(layer, slot, KvHead(shape_.owned.first_kv_head + head), fetch(selected.Rows(token, head), counts[i]));
    }
  }

  template <class T>
  void Put(const std::vector<T>& host, T* to) {
    backend_.Upload(Queue::kCompute, host.data(), host.size() * sizeof(T), to);
  }

  B& backend_;
  const WorkspaceShape shape_;
  const ModelConfig& config_;
  const KvMethod& method_;
  const Workspace& work_;
  const Pool& pool_;
  LayerViews views_;
  IndexOps<B> index_;
  LayerStage<B> stage_;               // unused unless the pool is remote
  std::span<const SlotRows> staged_;  // the sequences of the current step, if its layers are staged
  SelectionObserver observer_;
  std::optional<SeqSlot> observed_;  // none: all slots
  std::array<Ticket, 2> fetched_;    // ends of the latest fetches, by LayerViews::Turn
  Buffer index_memory_, fetch_memory_;
  bool by_mass_ = false;
  uint64_t tables_version_ = 0;  // Pool::table_version of the uploaded tables
};

}  // namespace infinigen
