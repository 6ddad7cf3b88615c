// What attention does with the cache in one layer: the KV method (kv/method.h) composed from backend operations.
//
//   append    new keys and values become entries; in layers that select by sketch, keys become sketches too, and by
//             page they widen their page's bounds
//   prefill   every token attends to all entries before it, whatever the method
//             a layer that evicts: on a stage with room for the whole prompt; then only survivors enter the pool
//   step      a layer that evicts: first a place for each new entry, where there is none left a victim's
//             dense layer: attend to everything
//             else: sketch the query (or the guess) → score all sketches, select rows → attend to those rows;
//             pages are scored by the query (or the guess) itself
//             a layer that evicts: what was selected, or attended, is written into the books
//
// Where the pool is remote, whatever walks all rows of a layer does so on a stage (model/entry_stage.h). Of layers that
// select, the selected entries are fetched, and with a hot set only those that are not near already; where the guess
// comes from the layer before, they are on their way while that one still computes (Speculate).
//
// kv decides (rules, quotas), the backend moves bytes, this puts them in order. It holds the method's memory on the
// compute device: sketches, bases, counters. Called by the decoder only; takes no memory after Start.
#pragma once

#include <algorithm>
#include <array>
#include <numeric>
#include <optional>
#include <span>
#include <vector>

#include "backend/backend.h"
#include "kv/method.h"
#include "kv/near_view.h"
#include "kv/pool.h"
#include "kv/stats.h"
#include "model/config.h"
#include "model/entry_stage.h"
#include "model/executor.h"
#include "model/kv_counts.h"
#include "model/layer_places.h"
#include "model/workspace.h"

namespace infinigen {

// What a layer made of its tokens: queries and keys rotated; out is attention's.
struct LayerHeads {
  Tensor q, guess, k, v, out;

  LayerHeads Rows(int64_t first, int64_t count) const {
    return {q.Rows(first, count), guess.Rows(first, count), k.Rows(first, count), v.Rows(first, count),
            out.Rows(first, count)};
  }
};

template <Backend B>
class CacheAttention {
 public:
  // All outlive it.
  CacheAttention(B& backend, const WorkspaceShape& shape, const Workspace& work, const Pool& pool)
      : backend_(backend),
        shape_(shape),
        config_(shape.config),
        method_(shape.method),
        work_(work),
        pool_(pool),
        at_(shape_, work, pool, backend.pool_is_remote()),
        stage_(backend, pool) {}

  // `bases` [layers]; those of layers without sketches are not looked at.
  Status Start(std::span<const SketchMatrices> bases) {
    if (method_.evicts()) Put(std::vector<int32_t>(static_cast<size_t>(shape_.tokens())), work_.zeros);
    if (remote()) {
      Put(std::vector<FetchClock>(static_cast<size_t>(config_.layers)), work_.clocks);
      RETURN_IF_ERROR(StartStage());
    }
    if (!method_.selects()) return Ok();
    ASSIGN_OR_RETURN(index_memory_, Buffer::Make(backend_.compute_memory(), shape_.index().total_bytes()));
    at_.SetIndex(index_memory_.data());
    const size_t totals = static_cast<size_t>(config_.layers * shape_.pool.max_sequences);
    Put(std::vector<SelectionTotals>(totals), work_.totals);
    if (method_.measure_mass) Put(std::vector<MassTotals>(static_cast<size_t>(config_.layers)), work_.mass);
    Put(std::vector<SelectRule>(static_cast<size_t>(shape_.pool.max_sequences), method_.rule), work_.rules);
    if (shape_.fetches) {
      ASSIGN_OR_RETURN(near_memory_, Buffer::Make(backend_.compute_memory(), shape_.near_bytes()));
      at_.SetNear(near_memory_.data());
      Put(std::vector<NearTotals>(totals), work_.near_totals);
    }
    for (LayerId layer : IdRange<LayerId>(config_.layers)) {
      if (!method_.select->uses_basis || !method_.has_index(layer)) continue;
      CHECK(layer.index() < bases.size());
      for (int64_t slot = 0; slot < (method_.prompt_columns ? shape_.pool.max_sequences : 1); ++slot)
        SetBasis(layer, SeqSlot(slot), bases[layer.index()]);
    }
    return Ok();
  }

  void SetBasis(LayerId layer, SeqSlot slot, const SketchMatrices& matrices) {
    const SketchBasis basis = at_.Basis(layer);
    const int64_t at = basis.per_slot ? slot.value() : 0;
    Put(matrices.query, const_cast<float*>(basis.Query(at, 0)));
    Put(matrices.key, const_cast<float*>(basis.Key(at, 0)));
    Put(matrices.key_offset, const_cast<float*>(basis.KeyOffset(at, 0)));
  }

  void SetRule(SeqSlot slot, const SelectRule& rule) {
    CHECK(method_.selects() && rule.cap <= method_.LargestCap());
    backend_.Upload(Queue::kCompute, &rule, sizeof(rule), work_.rules + slot.value());
  }

  // The index of an extent's rows: host [index layers][kv_heads][head_extent_bytes]. The host waits.
  void SaveIndex(SeqSlot slot, int64_t extent, std::byte* host) {
    const size_t bytes = shape_.index().head_extent_bytes();
    Ticket copied;
    at_.ForIndexOf(slot, extent, [&](std::byte* place, size_t i) {
      copied = backend_.Download(Queue::kCompute, place, bytes, host + i * bytes);
    });
    backend_.Synchronize(copied);
  }
  void LoadIndex(SeqSlot slot, int64_t extent, const std::byte* host) {
    const size_t bytes = shape_.index().head_extent_bytes();
    at_.ForIndexOf(slot, extent, [&](std::byte* place, size_t i) {
      backend_.Upload(Queue::kCompute, host + i * bytes, bytes, place);
    });
  }

  // Brings tables and quotas to the compute device where they changed. Once per step or unit, before anything else.
  void UploadTables() {
    if (tables_seen_ == pool_.table_version()) return;
    for (LayerId layer : IdRange<LayerId>(config_.layers)) {
      const std::span<std::byte* const> table = pool_.Table(layer);
      backend_.Upload(Queue::kCompute, table.data(), table.size_bytes(), work_.tables + layer.index() * table.size());
    }
    const auto upload_quotas = [&](LayerId layer, int32_t* to) {
      backend_.Upload(Queue::kCompute, pool_.quotas(layer).data(), pool_.quotas(layer).size_bytes(), to);
    };
    upload_quotas(LayerId(0), work_.quotas);
    if (method_.evicts()) upload_quotas(LayerId(config_.layers - 1), work_.kept_quotas);
    tables_seen_ = pool_.table_version();
  }

  // A prompt's way through layers that retain everything: on a stage, where the pool is remote. `first` of its rows are
  // there already.
  Status OpenPrompt(SeqSlot slot, int64_t rows) { return shape_.stages_prompts() ? stage_.Open(slot, rows) : Ok(); }
  void BeginPromptLayer(LayerId layer, SeqSlot slot, int64_t first) {
    if (far(layer) && !method_.evicts(layer)) stage_.BeginLayer(layer, slot, first);
    Forget(layer, slot);
  }
  void EndPromptLayer(LayerId layer, SeqSlot slot, int64_t first, int64_t rows) {
    if (far(layer) && !method_.evicts(layer)) stage_.EndLayer(layer, slot, first, rows);
  }
  // Rows of the sequence were written by others than steps, or it is new: nothing of it is near.
  void Forget(LayerId layer, SeqSlot slot) {
    if constexpr (FetchingBackend<B>)
      if (shape_.hot_rows > 0 && fetches(layer)) backend_.ForgetNear(Queue::kCompute, at_.Places(layer), slot);
  }
  void ClosePrompt(SeqSlot slot) {
    if (remote() && !stages_steps()) stage_.Close(slot);
  }

  // Around the layers of a step. The sequences with their rows before it, which layers that evict hold as far as they
  // may; they live until the step ends.
  void BeginStep(std::span<const SlotRows> sequences) {
    if (!remote()) return;
    backend_.AwaitPool();
    stage_.AwaitHome();
    if (!stages_steps()) return;
    fetching_ = sequences;
    stage_.BeginFetching();
    for (int64_t layer = 0; layer < std::min(config_.layers, stage_.kStages); ++layer) FetchLayer(LayerId(layer));
  }
  void EndStep() {
    fetching_ = {};
    if (remote()) backend_.CountWaits(Queue::kCompute, work_.clocks, config_.layers);
  }
  // Steps enqueue the same operations whatever the rows, and nobody on the host looks on.
  bool replayable() const { return !stages_steps() && !method_.measure_mass && !observer_; }

  void AppendEntries(LayerId layer, const TokenBatch& batch, const Tensor& k, const Tensor& v) {
    backend_.Append(Queue::kCompute, batch, k, v, at_.Entries(layer));
  }
  void AppendSketches(LayerId layer, const TokenBatch& batch, const Tensor& k) {
    if (!method_.has_index(layer)) return;
    if (method_.select->uses_basis)
      backend_.AppendSketches(Queue::kCompute, batch, k, at_.Basis(layer), at_.Sketches(layer));
    else
      backend_.AppendBounds(Queue::kCompute, batch, k, at_.Bounds(layer));
  }

  // A unit of a dense prefill in a layer that retains everything.
  void Prefill(LayerId layer, const TokenRun& run, const TokenBatch& batch, const LayerHeads& heads) {
    const LayerEntries near = Near(layer);
    backend_.Append(Queue::kCompute, batch, heads.k, heads.v, near);
    backend_.AttendPrefill(Queue::kCompute, heads.q, run, Attention(layer), near, heads.out);
  }

  bool fetches(LayerId layer) const { return at_.fetches(layer); }
  // That begins before the layer does: while the layer before has its own on their way, or after its attention.
  bool speculates_early(LayerId layer) const { return fetches(layer) && shape_.fetches_early(); }
  bool speculates(LayerId layer) const { return fetches(layer) && method_.guesses_from_layer(); }

  // What the layer will attend to in this step, by guessed queries, from here on under way.
  void Speculate(LayerId layer, const TokenBatch& tokens, int64_t max_rows, const Tensor& queries) {
    if (!method_.evicts(layer)) return ChooseAndFetch(layer, tokens, max_rows, queries);
    const TokenBatch batch = at_.KeptBatch(tokens);
    backend_.TakePlaces(Queue::kCompute, batch, method_.retain_rule(), at_.Cache(layer), work_.places);
    ChooseAndFetch(layer, batch, std::min(max_rows, shape_.kept_rows()), queries);
  }

  // Every token a decode step: its entry is added, and it attends. heads.guess are the queries that are compared with
  // the sketches: heads.q itself, or a guess of it. Tokens are of different sequences, or a run of one. `meanwhile()`
  // is called before the layer attends; where it waits for what is fetched, before it does.
  template <class F>
  void Step(LayerId layer, const TokenBatch& batch, int64_t max_rows, const LayerHeads& heads, bool one_sequence,
            F&& meanwhile) {
    if (!one_sequence && fetches(layer)) return StepFetching(layer, batch, max_rows, heads, meanwhile);
    meanwhile();
    if (method_.evicts(layer)) {
      // Each token of a sequence meets the cache that the one before it left.
      const int64_t together = one_sequence ? 1 : batch.count;
      for (int64_t first = 0; first < batch.count; first += together)
        StepEvicting(layer, at_.KeptBatch(batch).Range(first, together), work_.places + first * shape_.owned.kv_heads,
                     std::min(max_rows, shape_.kept_rows()), heads.Rows(first, together));
      return;
    }
    // The tokens of a prompt go home with their layer, those of a step at once.
    const LayerEntries entries = one_sequence ? Near(layer) : at_.Entries(layer);
    backend_.Append(Queue::kCompute, batch, heads.k, heads.v, entries);
    AppendSketches(layer, batch, heads.k);
    if (!method_.selects(layer)) {
      const LayerEntries all = one_sequence ? entries : BringAll(layer, batch, heads);
      backend_.AttendDecode(Queue::kCompute, heads.q, batch, max_rows, Attention(layer), all, heads.out);
      if (!one_sequence) LetGo(layer);
      return;
    }
    for (int64_t first = 0; first < batch.count; first += shape_.select_tokens()) {
      const int64_t count = std::min(shape_.select_tokens(), batch.count - first);
      const TokenBatch part = batch.Range(first, count);
      SelectRows(layer, part, max_rows, heads.Rows(first, count), entries);
      AttendSelected(layer, part, heads.Rows(first, count), entries);
    }
  }

  // The tables of a stage for the prompt of `tokens`.
  void OpenStage(const PrefillStage& stage, int64_t tokens) {
    std::vector<std::byte*> extents;
    for (int64_t row = 0; row < tokens; row += kExtentTokens)
      extents.push_back(stage.entries + static_cast<size_t>(row) * pool_.options().layout.row_bytes());
    Put(extents, stage.extents);
    Put(std::vector<int32_t>{static_cast<int32_t>(tokens)}, stage.quota);
  }

  // The books of a sequence of `tokens` of which the newest are retained.
  void FillBooks(SeqSlot slot, int64_t tokens) {
    if (!method_.evicts()) return;
    const int64_t rows = std::min(tokens, pool_.quota(slot).kept);
    std::vector<int32_t> positions(static_cast<size_t>(rows));
    std::iota(positions.begin(), positions.end(), static_cast<int32_t>(tokens - rows));
    for (LayerId layer : IdRange<LayerId>(config_.layers)) {
      if (!method_.evicts(layer)) continue;
      for (int64_t head = 0; head < shape_.owned.kv_heads; ++head) {
        Put(positions, at_.Retained(layer).Positions(slot.value(), head));
        std::vector<float> marks;
        for (const int32_t position : positions)
          marks.push_back(InitialMark(method_.retain->on_append, position, head));
        Put(marks, at_.Retained(layer).Marks(slot.value(), head));
      }
    }
  }

  // A unit of a dense prefill in a layer that evicts. After the prompt's last token the survivors are in the pool.
  void PrefillStaged(LayerId layer, const PrefillStage& stage, int64_t prompt_tokens, const TokenRun& run,
                     const TokenBatch& batch, const LayerHeads& heads) {
    const Queue queue = Queue::kCompute;
    const RetainRule rule = method_.retain_rule();
    TokenBatch staged = batch;
    staged.slots = work_.zeros;
    const TokenRun staged_run{.slot = SeqSlot(0), .first_row = run.first_row, .count = run.count};
    backend_.TakePlaces(queue, staged, rule, stage.cache, work_.places);
    backend_.Append(queue, staged, heads.k, heads.v, stage.cache.entries);
    if (method_.has_index(layer))
      backend_.AppendSketches(queue, staged, heads.k, at_.Basis(layer), stage.cache.sketches);
    backend_.AttendPrefill(queue, heads.q, staged_run, Attention(layer), stage.cache.entries, heads.out);
    if (rule.sums_attention) backend_.SumColumns(queue, heads.q, staged_run, Attention(layer), stage.cache);
    if (rule.on_select != SelectMark::kKeep) Seed(layer, stage, prompt_tokens, run, staged, heads);
    if (run.first_row + run.count == prompt_tokens) {
      backend_.AwaitPool();
      backend_.Settle(queue, rule, stage.cache, prompt_tokens, run.slot, at_.Cache(layer));
    }
  }

  // What the steps of `counts` attended to: of all sequences so far, or of those that had `slot`. The host waits.
  KvStats Stats(const StepCounts& counts) { return KvCounts<B>(backend_, shape_, work_, pool_, at_).All(counts); }
  KvStats Stats(const StepCounts& counts, SeqSlot slot) {
    return KvCounts<B>(backend_, shape_, work_, pool_, at_).Of(counts, slot);
  }
  void Observe(SelectionObserver observer, std::optional<SeqSlot> slot) {
    observer_ = std::move(observer);
    observed_ = slot;
  }

 private:
  // `places` are the batch's, still to be taken.
  void StepEvicting(LayerId layer, const TokenBatch& batch, int32_t* places, int64_t max_rows,
                    const LayerHeads& heads) {
    const Queue queue = Queue::kCompute;
    const RetainRule rule = method_.retain_rule();
    const LayerCache cache = at_.Cache(layer);
    backend_.TakePlaces(queue, batch, rule, cache, places);
    AppendEntries(layer, batch, heads.k, heads.v);
    if (!method_.selects(layer)) {
      LayerCache near = cache;
      near.entries = BringAll(layer, batch, heads);
      backend_.AttendDecode(queue, heads.q, batch, max_rows, Attention(layer), near.entries, heads.out);
      if (rule.sums_attention) backend_.SumAttention(queue, heads.q, batch, Attention(layer), near);
      return LetGo(layer);
    }
    // A guess is made before the key is known.
    const bool known = method_.from == GuessSource::kSelf;
    if (known) AppendSketches(layer, batch, heads.k);
    SelectRows(layer, batch, max_rows, heads, cache.entries);
    if (!known) AppendSketches(layer, batch, heads.k);
    backend_.MarkSelected(queue, batch, rule, Call(layer, max_rows), at_.Chosen(layer));
    AttendSelected(layer, batch, heads, cache.entries);
  }

  // A step of a layer whose selected entries are fetched.
  template <class F>
  void StepFetching(LayerId layer, const TokenBatch& tokens, int64_t max_rows, const LayerHeads& heads, F&& meanwhile) {
    if constexpr (FetchingBackend<B>) {
      const Queue queue = Queue::kCompute;
      const bool evicts = method_.evicts(layer), ahead = speculates(layer);
      const bool known = method_.from == GuessSource::kSelf;
      const TokenBatch batch = evicts ? at_.KeptBatch(tokens) : tokens;
      if (evicts) max_rows = std::min(max_rows, shape_.kept_rows());
      if (evicts && !ahead) backend_.TakePlaces(queue, batch, method_.retain_rule(), at_.Cache(layer), work_.places);
      AppendEntries(layer, batch, heads.k, heads.v);
      // A guess is made before the key is known.
      if (known) AppendSketches(layer, batch, heads.k);
      if (!ahead) ChooseAndFetch(layer, batch, max_rows, heads.guess);
      if (!known) AppendSketches(layer, batch, heads.k);
      backend_.AppendNear(queue, batch, heads.k, heads.v, at_.Places(layer), at_.List(layer));
      Measure(layer, batch, heads, at_.Entries(layer));
      meanwhile();
      backend_.NoteReady(queue, Clock(layer));
      backend_.Wait(queue, fetched_[at_.Turn(layer)]);
      backend_.AttendNear(queue, heads.q, batch, at_.Chosen(layer), Attention(layer), at_.Entries(layer),
                          at_.Places(layer), at_.List(layer), heads.out);
    }
  }

  // Chooses, and sends what is not near on its way.
  void ChooseAndFetch(LayerId layer, const TokenBatch& batch, int64_t max_rows, const Tensor& queries) {
    if constexpr (FetchingBackend<B>) {
      const Queue queue = Queue::kCompute;
      const SelectCall call = Call(layer, max_rows);
      Choose(layer, batch, call, queries, at_.Cache(layer));
      if (method_.evicts(layer)) backend_.MarkSelected(queue, batch, method_.retain_rule(), call, at_.Chosen(layer));
      NearTotals* totals = work_.near_totals + layer.value() * shape_.pool.max_sequences;
      backend_.FindNear(queue, batch, at_.Chosen(layer), at_.Places(layer), shape_.forced_hits, at_.List(layer),
                        totals);
      backend_.Wait(Queue::kFetch, backend_.Record(queue));
      backend_.FetchNear(Queue::kFetch, batch, at_.Chosen(layer), at_.Entries(layer), at_.Places(layer),
                         at_.List(layer), Clock(layer));
      fetched_[at_.Turn(layer)] = backend_.Record(Queue::kFetch);
    }
  }

  // ---- a remote pool ----

  bool remote() const { return at_.remote(); }
  bool far(LayerId layer) const { return at_.far(layer); }
  // Steps walk all rows.
  bool stages_steps() const { return remote() && !method_.selects(); }

  Status StartStage() {
    RETURN_IF_ERROR(stage_.Start());
    if (!stages_steps()) return Ok();
    for (SeqSlot slot : IdRange<SeqSlot>(shape_.pool.max_sequences))
      RETURN_IF_ERROR(stage_.Open(slot, shape_.stage_rows()));
    return Ok();
  }

  // Where a prompt's layer is.
  LayerEntries Near(LayerId layer) const {
    return far(layer) ? stage_.Near(layer, at_.Entries(layer)) : at_.Entries(layer);
  }
  // Where a step attends to all rows of a layer; the new entries are there too.
  LayerEntries BringAll(LayerId layer, const TokenBatch& batch, const LayerHeads& heads) {
    if (fetching_.empty()) return at_.Entries(layer);
    stage_.AwaitFetched(layer, Clock(layer));
    backend_.Append(Queue::kCompute, batch, heads.k, heads.v, Near(layer));
    return Near(layer);
  }
  void LetGo(LayerId layer) {
    if (fetching_.empty()) return;
    stage_.LetGo(layer);
    if (layer.value() + stage_.kStages < config_.layers) FetchLayer(LayerId(layer.value() + stage_.kStages));
  }
  void FetchLayer(LayerId layer) { stage_.Fetch(layer, fetching_, Clock(layer)); }
  FetchClock* Clock(LayerId layer) const { return work_.clocks + layer.value(); }

  // The last queries of a prompt are what its marks are made of.
  void Seed(LayerId layer, const PrefillStage& stage, int64_t prompt_tokens, const TokenRun& run,
            const TokenBatch& batch, const LayerHeads& heads) {
    // As many as the smallest selection by default: enough to tell who is looked at, a few percent of a long prefill.
    constexpr int64_t kSeeds = 256;
    const int64_t end = run.first_row + run.count;
    SelectCall call{.rules = work_.rules + run.slot.value(), .totals = work_.uncounted, .max_rows = end};
    call.mean_counts = method_.mean_counts;
    for (int64_t row = std::max(run.first_row, prompt_tokens - kSeeds); row < end; row += shape_.select_tokens()) {
      const int64_t first = row - run.first_row, count = std::min(shape_.select_tokens(), end - row);
      const TokenBatch part = batch.Range(first, count);
      call.retained = {};
      Choose(layer, part, call, heads.q.Rows(first, count), stage.cache);
      call.retained = stage.cache.retained;
      backend_.MarkSelected(Queue::kCompute, part, method_.retain_rule(), call, at_.Chosen(layer));
    }
  }

  SelectCall Call(LayerId layer, int64_t max_rows) const {
    return {.rules = work_.rules,
            .totals = work_.totals + layer.value() * shape_.pool.max_sequences,
            .current_known = method_.from == GuessSource::kSelf,
            .mean_counts = method_.mean_counts,
            .max_rows = max_rows,
            .retained = at_.Retained(layer),
            .page = method_.select->page_rows};
  }

  void Choose(LayerId layer, const TokenBatch& batch, const SelectCall& call, const Tensor& queries,
              const LayerCache& cache) {
    const Queue queue = Queue::kCompute;
    if (method_.select == &kSelectOracle)
      return backend_.SelectExact(queue, queries, batch, call, Attention(layer), cache.entries, at_.Chosen(layer));
    if (method_.select == &kSelectQuest)
      return backend_.SelectPages(queue, queries, batch, call, Attention(layer), at_.Bounds(layer), at_.Chosen(layer));
    const Tensor sketch_q = work_.sketch_q.Rows(0, batch.count);
    backend_.SketchQueries(queue, queries, batch, Attention(layer), at_.Basis(layer), sketch_q);
    backend_.Select(queue, sketch_q, batch, call, cache.sketches, at_.Chosen(layer));
  }

  void SelectRows(LayerId layer, const TokenBatch& batch, int64_t max_rows, const LayerHeads& heads,
                  const LayerEntries& entries) {
    LayerCache cache = at_.Cache(layer);
    cache.entries = entries;
    Choose(layer, batch, Call(layer, max_rows), heads.guess, cache);
    Measure(layer, batch, heads, entries);
  }
  // What those who ask are told of a selection.
  void Measure(LayerId layer, const TokenBatch& batch, const LayerHeads& heads, const LayerEntries& entries) {
    if (method_.measure_mass)
      backend_.MeasureMass(Queue::kCompute, heads.q, batch, at_.Chosen(layer), Attention(layer), entries,
                           work_.mass + layer.value());
    if (observer_) Tell(layer, batch);
  }
  void AttendSelected(LayerId layer, const TokenBatch& batch, const LayerHeads& heads, const LayerEntries& entries) {
    backend_.AttendSelected(Queue::kCompute, heads.q, batch, at_.Chosen(layer), Attention(layer), entries, heads.out);
  }

  // The host waits, for every list.
  void Tell(LayerId layer, const TokenBatch& batch) {
    const auto fetch = [&](const int32_t* from, int64_t count) {
      std::vector<int32_t> host(static_cast<size_t>(count));
      backend_.Synchronize(backend_.Download(Queue::kCompute, from, host.size() * sizeof(int32_t), host.data()));
      return host;
    };
    const std::vector<int32_t> slots = fetch(batch.slots, batch.count);
    const std::vector<int32_t> counts = fetch(at_.Chosen(layer).counts, batch.count * shape_.owned.kv_heads);
    for (size_t i = 0; i < counts.size(); ++i) {
      const int64_t token = static_cast<int64_t>(i) / shape_.owned.kv_heads,
                    head = static_cast<int64_t>(i) % shape_.owned.kv_heads;
      const SeqSlot slot(slots[static_cast<size_t>(token)]);
      if (observed_ && slot != *observed_) continue;
      observer_(layer, slot, KvHead(shape_.owned.first_kv_head + head),
                fetch(at_.Chosen(layer).Rows(token, head), counts[i]));
    }
  }

  AttentionShape Attention(LayerId layer) const {
    return {.heads = shape_.owned.heads, .scale = config_.specs[layer.index()].attention_scale};
  }

  template <class T>
  void Put(const std::vector<T>& host, T* place) {
    backend_.Upload(Queue::kCompute, host.data(), host.size() * sizeof(T), place);
  }

  B& backend_;
  const WorkspaceShape shape_;
  const ModelConfig& config_;
  const KvMethod& method_;
  const Workspace& work_;
  const Pool& pool_;
  LayerPlaces at_;
  EntryStage<B> stage_;                 // empty unless the pool is remote
  std::span<const SlotRows> fetching_;  // the sequences of a step whose layers are staged
  SelectionObserver observer_;
  std::optional<SeqSlot> observed_;  // by it; none: all
  std::array<Ticket, 2> fetched_;    // what the layers that come attend to, in turn
  Buffer index_memory_, near_memory_;
  uint64_t tables_seen_ = 0;
};

}  // namespace infinigen
