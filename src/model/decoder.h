// The forward pass, written once over the backend concept (backend/backend.h).
//
// Two ways through the layers, one arithmetic:
//
//   Prefill: a prompt is a grid of units (layer, chunk of B::kChunkTokens tokens), walked layer by layer. The residual
//            stream of the whole prompt stays in compute memory between units, so a unit is resumable work: the engine
//            runs one, does something else, runs the next. After the last unit any token's logits can be asked for.
//   Step:    one token for each of up to max_batch sequences of any lengths.
//
// A prompt can also go through its grid as steps: every token attends as it would in a decode step, by selection, but a
// chunk of tokens shares each matrix product. The result is that of the steps one by one, bit for bit.
//
// The decoder puts operations in order; it decides nothing about which entries exist (kv/pool.h) and moves no bytes
// itself. What attention does with the cache is model/cache_attention.h. Called from the engine's thread only. A step
// takes no memory.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "backend/backend.h"
#include "kv/pool.h"
#include "model/cache_attention.h"
#include "model/config.h"
#include "model/executor.h"
#include "model/host_numbers.h"
#include "model/layer_math.h"
#include "model/layer_plan.h"
#include "model/sketch_source.h"
#include "model/weight_stream.h"
#include "model/weights.h"
#include "model/workspace.h"

namespace infinigen {

// A prompt on its way through the grid. Made by Decoder::BeginPrefill.
struct PrefillJob {
  SeqSlot slot;
  int64_t first_row = 0;  // of tokens[0]
  PrefillKind kind = PrefillKind::kDense;
  std::vector<int32_t> tokens;
  Buffer memory;
  Tensor residual;      // [tokens][hidden]
  Tensor guess;         // the same shape, for steps whose layers guess from the layer before
  Buffer stage_memory;  // where layers that evict have the prompt until they are done with it
  PromptCache stage;
  std::optional<ColumnSums> columns;  // of next_layer, where the prompt chooses sketch columns
  std::vector<float> keys;            // [tokens][kv_heads·head_dim] of next_layer, likewise
  int64_t next_layer = 0;
  int64_t next_token = 0;            // first token of the next unit's chunk
  std::array<Ticket, 4> enqueued{};  // the latest units
  size_t units = 0;
};

template <Backend B>
class Decoder {
 public:
  // `backend`, `config`, `weights`, `pool` and `options` outlive the decoder. Weights, sketches and pool are those of
  // the owned heads.
  static Result<std::unique_ptr<Decoder>> Make(B& backend, const ModelConfig& config, const OwnedHeads& owned,
                                               const Weights& weights, Pool& pool, const ExecutorOptions& options,
                                               SketchSource sketches) {
    std::unique_ptr<Decoder> decoder(new Decoder(backend, config, owned, pool, options, std::move(sketches)));
    ASSIGN_OR_RETURN(decoder->weights_, LoadWeightsTo(backend, decoder->stream_, weights, options.weights_on_device));
    RETURN_IF_ERROR(decoder->AllocateWorkspace());
    RETURN_IF_ERROR(decoder->cache_.Start(decoder->sketches_.bases));
    return decoder;
  }

  // The slot was given to a new sequence.
  void BeginSequence(SeqSlot slot) {
    for (LayerId layer : IdRange<LayerId>(config_.layers)) cache_.Forget(layer, slot);
  }
  void SetRule(SeqSlot slot, const SelectRule& rule) { cache_.SetRule(slot, rule); }
  // The index of an extent's rows, to and from host memory.
  void SaveIndex(SeqSlot slot, int64_t extent, std::byte* host) { cache_.SaveIndex(slot, extent, host); }
  void LoadIndex(SeqSlot slot, int64_t extent, const std::byte* host) { cache_.LoadIndex(slot, extent, host); }

  // `tokens` become rows first_row, first_row + 1, ... of the sequence; the rows before exist. Precondition: slot
  // admitted for as many rows.
  Result<PrefillJob> BeginPrefill(SeqSlot slot, int64_t first_row, std::span<const int32_t> tokens, PrefillKind kind) {
    CHECK(!tokens.empty() && first_row >= 0);
    const int64_t count = static_cast<int64_t>(tokens.size());
    PrefillJob job{.slot = slot, .first_row = first_row, .kind = kind, .tokens = {tokens.begin(), tokens.end()}};
    const bool guesses = kind == PrefillKind::kSteps && method_.selects() && method_.guesses_from_layer();
    const size_t numbers = tokens.size() * static_cast<size_t>(config_.hidden), bytes = numbers * sizeof(float);
    const size_t guess_bytes = guesses ? numbers * SizeOf(shape_.guess_type()) : 0;
    ASSIGN_OR_RETURN(job.memory, Buffer::Make(backend_.compute_memory(), bytes + guess_bytes));
    job.residual = {job.memory.data(), DType::kF32, count, config_.hidden, config_.hidden};
    if (guesses) job.guess = {job.memory.data() + bytes, shape_.guess_type(), count, config_.hidden, config_.hidden};
    if (method_.evicts() && kind == PrefillKind::kDense) {
      // What was evicted cannot be rebuilt, so a prompt is read from its beginning.
      CHECK(first_row == 0);
      ASSIGN_OR_RETURN(job.stage_memory, Buffer::Make(backend_.compute_memory(), PromptCache::Bytes(shape_, count)));
      job.stage = PromptCache::Carve(job.stage_memory.data(), shape_, count);
      cache_.OpenStage(job.stage, count);
    }
    RETURN_IF_ERROR(cache_.OpenPrompt(slot, first_row + count));
    pool_.SetRows(slot, first_row + count);
    return job;
  }

  // A prefill that is done with, or given up.
  void EndPrefill(const PrefillJob& job) { cache_.ClosePrompt(job.slot); }

  // What BeginPrefill takes for a dense prefill: of its own, and on the stages of a remote pool where OpenPrompt does.
  uint64_t PrefillBytes(int64_t first_row, int64_t count) const {
    return JobBytes(shape_, count) + PromptStageBytes(shape_, first_row + count);
  }
  static uint64_t JobBytes(const WorkspaceShape& shape, int64_t tokens) {
    if (tokens == 0) return 0;
    return static_cast<uint64_t>(tokens * shape.config.hidden) * sizeof(float) +
           (shape.method.evicts() ? PromptCache::Bytes(shape, tokens) : 0);
  }
  static uint64_t PromptStageBytes(const WorkspaceShape& shape, int64_t rows) {
    return shape.stages_prompts() ? LayerStage<B>::SlotBytes(shape.pool, rows) : 0;
  }

  int64_t PrefillUnits(const PrefillJob& job) const {
    return config_.layers * ((static_cast<int64_t>(job.tokens.size()) + B::kChunkTokens - 1) / B::kChunkTokens);
  }

  // Runs the next unit; true when it was the last one.
  bool RunPrefillUnit(PrefillJob& job) {
    CHECK(job.next_layer < config_.layers);
    const int64_t count = std::min<int64_t>(B::kChunkTokens, static_cast<int64_t>(job.tokens.size()) - job.next_token);
    const TokenRun run{.slot = job.slot, .first_row = job.first_row + job.next_token, .count = count};
    for (int64_t i = 0; i < count; ++i)
      SetToken(i, job.tokens[static_cast<size_t>(job.next_token + i)], job.slot, run.first_row + i);
    LayerCall call{.pass = job.kind == PrefillKind::kSteps ? Pass::kRun : Pass::kPrefill, .run = run, .job = &job};
    call.tokens = {UploadBatch(count), run.first_row + count};
    call.x = job.residual.Rows(job.next_token, count);
    if (job.guess) call.guess = job.guess.Rows(job.next_token, count);
    call.ends_layer = job.next_token + count == static_cast<int64_t>(job.tokens.size());

    const LayerPlan& plan = Plans(call.pass)[static_cast<size_t>(job.next_layer)];
    if (job.next_token == 0) cache_.BeginPromptLayer(plan, job.slot, job.first_row);
    if (job.next_layer == 0) Embed(call.tokens.batch, call.x);
    RunLayer(plan, call);
    if (job.next_layer == 0) CountUnit(call);
    if (job.columns && call.ends_layer) ChooseColumns(plan, job);
    job.next_token += count;
    // The host stays a few units ahead and no more, so that it can be told to stop.
    backend_.Synchronize(
        std::exchange(job.enqueued[job.units++ % job.enqueued.size()], backend_.Record(Queue::kCompute)));
    if (call.ends_layer) {
      cache_.EndPromptLayer(plan, job.slot, job.first_row, job.first_row + job.next_token);
      job.next_token = 0;
      ++job.next_layer;
    }
    return job.next_layer == config_.layers;
  }

  // Logits after tokens [first, first + count) of a finished prefill, to the host: logits [count][vocab]. The residual
  // stream stays as it is, so any tokens may be asked for, in any order.
  void PrefillLogits(const PrefillJob& job, int64_t first, int64_t count, std::span<float> logits) {
    CHECK(job.next_layer == config_.layers && logits.size() == static_cast<size_t>(count * config_.vocab));
    for (int64_t done = 0; done < count;) {
      const int64_t part = std::min(count - done, work_.logits.rows);
      Download(ComputeLogits(job.residual.Rows(first + done, part)),
               logits.subspan(static_cast<size_t>(done * config_.vocab)));
      done += part;
    }
  }

  // One token for each item, logits [items][vocab] to the host.
  void Step(std::span<const StepItem> items, std::span<float> logits) {
    const int64_t count = static_cast<int64_t>(items.size());
    CHECK(count > 0 && count <= max_batch_ && logits.size() == static_cast<size_t>(count * config_.vocab));
    LayerCall call{.pass = Pass::kStep};
    step_rows_.clear();
    for (int64_t i = 0; i < count; ++i) {
      const StepItem& item = items[static_cast<size_t>(i)];
      step_rows_.push_back({item.slot, item.row});
      pool_.SetRows(item.slot, item.row + 1);
      SetToken(i, item.token, item.slot, item.row);
      call.tokens.max_rows = std::max(call.tokens.max_rows, item.row + 1);
    }
    call.tokens.batch = UploadBatch(count);
    call.x = work_.step_residual.Rows(0, count);
    if (work_.step_guess) call.guess = work_.step_guess.Rows(0, count);
    cache_.BeginStep(step_rows_);
    RunStep(call);
    cache_.EndStep();
    CountSteps(1, count);
    Download(work_.logits.Rows(0, count), logits);
  }

  // Called with the queries and keys of every prefill unit, after rotation; empty: nobody.
  void ObservePrefill(PrefillObserver observer) { observer_ = std::move(observer); }

  void ObserveSelection(SelectionObserver observer, std::optional<SeqSlot> slot) {
    cache_.Observe(std::move(observer), slot);
  }

  // Rows [0, rows) of the sequence get random entries, as if a prompt had been prefilled: for benchmarks.
  void FillSynthetic(SeqSlot slot, int64_t rows, uint64_t seed) {
    pool_.SetRows(slot, rows);
    backend_.AwaitPool();
    SplitMix random(seed);
    std::vector<float> numbers(static_cast<size_t>(work_.k.rows * work_.k.cols));
    for (int64_t first = 0; first < rows; first += work_.k.rows) {
      const int64_t count = std::min(work_.k.rows, rows - first);
      for (int64_t i = 0; i < count; ++i) SetToken(i, 0, slot, first + i);
      const TokenBatch batch = UploadBatch(count);
      for (const Tensor* side : {&work_.k, &work_.v}) {
        for (float& number : numbers) number = AboutNormal(random);
        FromHost(backend_, numbers, *side);
      }
      for (LayerId layer : IdRange<LayerId>(config_.layers)) {
        const int64_t held = std::min(count, pool_.quotas(layer)[slot.index()] - first);
        if (held <= 0) continue;
        cache_.AppendInPlace(Plans(Pass::kPrefill)[layer.index()], batch.Range(0, held), work_.k.Rows(0, held),
                             work_.v.Rows(0, held));
      }
    }
    BeginSequence(slot);
    cache_.FillEvictionState(slot, rows);
  }

  // Of all steps so far: a step of several sequences is one. Of those of a slot: each of its tokens is one.
  KvStats Stats() {
    StepCounts all;
    for (const StepCounts& of : counts_) all.Add(of);
    all.steps = steps_;
    return cache_.Stats(all);
  }
  KvStats Stats(SeqSlot slot) { return cache_.Stats(counts_[slot.index()], slot); }

  static WorkspaceShape ShapeOf(const ModelConfig& config, const OwnedHeads& owned, const PoolOptions& pool,
                                const ExecutorOptions& options, bool remote) {
    return {.config = config,
            .pool = pool,
            .method = options.method,
            .owned = owned,
            .max_batch = options.max_batch,
            .chunk = B::kChunkTokens,
            .activation = options.activation,
            .remote = remote,
            .fetches = FetchingBackend<B> && remote && options.method.selects(),
            .forced_hits = options.forced_hits,
            .hot_rows = options.hot_rows};
  }

 private:
  Decoder(B& backend, const ModelConfig& config, const OwnedHeads& owned, Pool& pool, const ExecutorOptions& options,
          SketchSource sketches)
      : backend_(backend),
        config_(config),
        pool_(pool),
        method_(options.method),
        stream_(backend),
        sketches_(std::move(sketches)),
        max_batch_(options.max_batch),
        shape_(ShapeOf(config, owned, pool.options(), options, backend.pool_is_remote())),
        plans_{PlanLayers(shape_, Pass::kPrefill), PlanLayers(shape_, Pass::kRun), PlanLayers(shape_, Pass::kStep)},
        math_(backend, shape_, work_),
        cache_(backend, shape_, work_, pool) {}

  // What a layer works on: the tokens of a step, or of one prefill unit.
  struct LayerCall {
    Pass pass = Pass::kStep;
    StepTokens tokens;
    Tensor x;                   // [count][hidden] the residual stream, changed in place
    Tensor guess;               // [count][hidden] what the layer before left for a guess; replaced by this layer
    TokenRun run;               // the same tokens, where they are a chunk of one sequence
    PrefillJob* job = nullptr;  // of such a chunk
    bool ends_layer = true;     // no further chunk of the prompt follows in this layer
  };
  const std::vector<LayerPlan>& Plans(Pass pass) const { return plans_[static_cast<size_t>(pass)]; }

  // ---- one step ----

  // Everything from the tokens' ids to their logits: on backends that can, recorded once per shape and launched again.
  void RunStep(LayerCall& call) {
    if constexpr (requires { backend_.LaunchGraph(uint64_t{}); }) {
      if (!Replayable()) return RunLayers(call);
      // Lengths are on the device; a recorded step serves all lengths up to the next power of two.
      int64_t& max_rows = call.tokens.max_rows;
      const auto rows = static_cast<uint64_t>(std::max(max_rows, kExtentTokens));
      max_rows = std::min(pool_.options().max_tokens, static_cast<int64_t>(std::bit_ceil(rows)));
      const uint64_t key = static_cast<uint64_t>(max_rows) << 22 | uint64_t{backend_.skipped().fetch} << 21 |
                           uint64_t{backend_.skipped().compute} << 20 | static_cast<uint64_t>(call.tokens.batch.count);
      if (backend_.LaunchGraph(key)) return;
      const bool recording = backend_.BeginGraph(key);
      RunLayers(call);
      if (!recording || backend_.EndGraph()) return;
    }
    RunLayers(call);
  }
  void RunLayers(const LayerCall& call) {
    Embed(call.tokens.batch, call.x);
    for (const LayerPlan& plan : Plans(call.pass)) RunLayer(plan, call);
    ComputeLogits(call.x);
  }
  // Nothing that a step enqueues depends on what the host alone knows.
  bool Replayable() const {
    return !stream_.streams_any() && cache_.replayable() && method_.from != GuessSource::kPrevStep;
  }

  // ---- one layer ----

  void RunLayer(const LayerPlan& plan, const LayerCall& call) {
    const LayerSpec& spec = *plan.spec;
    const LayerWeights w = stream_.Use(plan.layer, weights_.layers[plan.layer.index()]);
    const LayerHeads heads = Heads(plan, w, call);
    if (call.pass == Pass::kStep)
      StepAttention(plan, call, heads);
    else if (call.pass == Pass::kRun)
      cache_.AttendRun(plan, call.tokens, heads);
    else
      PrefillAttention(plan, call, heads);
    math_.Join(spec, w.o, w.attention_norm, heads.out, call.x);
    LeaveMidGuess(plan, call);
    if (plan.select_next == SelectNext::kAfterAttention) SelectForNext(plan, call);
    const Tensor hidden = math_.MlpHidden(spec, w, call.x);
    math_.Join(spec, w.down, w.mlp_norm, hidden, call.x);
    if (call.ends_layer) stream_.Done(plan.layer);
  }

  // Queries, keys and values of the layer's tokens, and the query that selects rows.
  LayerHeads Heads(const LayerPlan& plan, const LayerWeights& w, const LayerCall& call) {
    const LayerSpec& spec = *plan.spec;
    const int64_t m = call.tokens.batch.count;
    // Where rows were selected ahead, the guess was made by the layer before.
    const bool guesses = plan.query != GuessSource::kSelf && !plan.ahead;
    LayerHeads heads{.q = work_.q.Rows(0, m), .k = work_.k.Rows(0, m), .v = work_.v.Rows(0, m)};
    heads.out = work_.mixed.Rows(0, m);
    heads.select = guesses ? work_.guess_q.Rows(0, m) : heads.q;
    if (guesses && method_.guesses_from_layer()) math_.Query(spec, w, call.guess, heads.select);
    const Tensor input = math_.Input(spec, w.attention_norm, call.x);
    if (plan.leaves_guess && method_.from == GuessSource::kPrevLayer) backend_.Copy(Queue::kCompute, input, call.guess);
    math_.QueryKeyValue(spec, w, input, heads.q, heads.k, heads.v);
    if (KeepsLastQueries()) ExchangeLastQueries(plan, call, heads);
    math_.Rotate(spec, heads.q);
    math_.Rotate(spec, heads.k);
    if (guesses) math_.Rotate(spec, heads.select);
    return heads;
  }

  // The next layer's fetch may start between this layer's own preparation and its wait.
  void StepAttention(const LayerPlan& plan, const LayerCall& call, const LayerHeads& heads) {
    cache_.Prepare(plan, call.tokens, heads);
    if (plan.select_next == SelectNext::kBeforeAttention) SelectForNext(plan, call);
    cache_.Attend(plan, call.tokens, heads);
  }

  void PrefillAttention(const LayerPlan& plan, const LayerCall& call, const LayerHeads& heads) {
    if (observer_) ShowPrefill(plan.layer, call, heads);
    if (plan.evicts)
      return cache_.PrefillStaged(plan, call.job->stage, static_cast<int64_t>(call.job->tokens.size()), call.run,
                                  call.tokens.batch, heads);
    if (method_.prompt_columns && plan.has_index)
      WatchColumns(plan.layer, call, heads);
    else
      cache_.AppendIndex(plan, call.tokens.batch, heads.k);
    cache_.Prefill(plan, call.run, call.tokens.batch, heads);
  }

  // prev-mid: the next layer's guess is made from the residual stream after this layer's attention.
  void LeaveMidGuess(const LayerPlan& plan, const LayerCall& call) {
    if (!plan.leaves_guess || method_.from != GuessSource::kPrevMid) return;
    const size_t next = plan.layer.index() + 1;
    const LayerSpec& spec = config_.specs[next];
    if (spec.norm_placement == NormPlacement::kAfterResidual)
      backend_.Copy(Queue::kCompute, call.x, call.guess);
    else
      math_.Norm(spec.norm, weights_.layers[next].attention_norm, call.x, call.guess);
  }

  // Selects the next layer's rows by what this layer left for a guess, and starts to fetch them.
  void SelectForNext(const LayerPlan& plan, const LayerCall& call) {
    const LayerPlan& next = Plans(call.pass)[plan.layer.index() + 1];
    const Tensor query = work_.guess_q.Rows(0, call.tokens.batch.count);
    math_.Query(*next.spec, stream_.Use(next.layer, weights_.layers[next.layer.index()]), call.guess, query);
    math_.Rotate(*next.spec, query);
    cache_.SelectAhead(next, call.tokens, query);
  }

  // prev-step: a token's guess is the query of the token before it, not yet rotated; the last query of each sequence is
  // kept for its next step. The first token of a sequence has no query before it, and attends to itself alone.
  bool KeepsLastQueries() const { return method_.selects() && method_.from == GuessSource::kPrevStep; }
  void ExchangeLastQueries(const LayerPlan& plan, const LayerCall& call, const LayerHeads& heads) {
    const Queue queue = Queue::kCompute;
    const int64_t m = call.tokens.batch.count;
    const bool guesses = heads.select.data != heads.q.data;
    const auto last = [&](int64_t slot) {
      return work_.last_q.Rows(plan.layer.value() * pool_.options().max_sequences + slot, 1);
    };
    if (call.pass != Pass::kStep) {
      const Tensor kept = last(call.run.slot.value());
      if (guesses) backend_.Copy(queue, kept, heads.select.Rows(0, 1));
      if (guesses && m > 1) backend_.Copy(queue, heads.q.Rows(0, m - 1), heads.select.Rows(1, m - 1));
      return backend_.Copy(queue, heads.q.Rows(m - 1, 1), kept);
    }
    for (int64_t i = 0; i < m; ++i) {
      const int64_t slot = host_slots_[static_cast<size_t>(i)];
      if (guesses) backend_.Copy(queue, last(slot), heads.select.Rows(i, 1));
      backend_.Copy(queue, heads.q.Rows(i, 1), last(slot));
    }
  }

  // Queries and keys of a prefill unit, for the observer.
  void ShowPrefill(LayerId layer, const LayerCall& call, const LayerHeads& heads) {
    const std::vector<float> queries = ToHost(backend_, heads.q), keys = ToHost(backend_, heads.k);
    const auto view = [](const std::vector<float>& host, const Tensor& of) {
      return ConstTensor{reinterpret_cast<const std::byte*>(host.data()), DType::kF32, of.rows, of.cols};
    };
    observer_(layer, call.run.first_row, view(queries, heads.q), view(keys, heads.k));
  }

  // Where the prompt chooses sketch columns: first only the sums by which it does, and its keys.
  void WatchColumns(LayerId layer, const LayerCall& call, const LayerHeads& heads) {
    const std::vector<float> queries = ToHost(backend_, heads.q), keys = ToHost(backend_, heads.k);
    if (!call.job->columns)
      call.job->columns.emplace(sketches_.rotation(layer), shape_.owned.kv_heads, config_.head_dim);
    call.job->columns->Add(queries, shape_.owned.heads / shape_.owned.kv_heads);
    call.job->columns->Add(keys, 1);
    call.job->keys.insert(call.job->keys.end(), keys.begin(), keys.end());
  }

  // The whole prompt has been through the layer: its columns are fixed from here on, and its keys get their sketches.
  void ChooseColumns(const LayerPlan& plan, PrefillJob& job) {
    cache_.SetBasis(plan.layer, job.slot, sketches_.choose(plan.layer, job.columns->sums()));
    const int64_t total = static_cast<int64_t>(job.tokens.size()), width = work_.k.cols;
    for (int64_t first = 0; first < total; first += work_.k.rows) {
      const int64_t count = std::min(work_.k.rows, total - first);
      for (int64_t i = 0; i < count; ++i) SetToken(i, 0, job.slot, job.first_row + first + i);
      const TokenBatch batch = UploadBatch(count);
      FromHost(backend_,
               std::span(job.keys).subspan(static_cast<size_t>(first * width), static_cast<size_t>(count * width)),
               work_.k.Rows(0, count));
      cache_.AppendIndex(plan, batch, work_.k.Rows(0, count));
    }
    job.columns.reset();
    job.keys.clear();
  }

  void CountUnit(const LayerCall& call) {
    if (call.pass == Pass::kRun) return CountSteps(call.run.count, call.run.count);
    CountEvicted(call.run.slot, call.run.first_row, call.run.count);
  }
  void CountSteps(int64_t steps, int64_t tokens) {
    steps_ += steps;
    for (size_t i = 0; i < static_cast<size_t>(tokens); ++i) {
      StepCounts& of = counts_[static_cast<size_t>(host_slots_[i])];
      ++of.steps;
      of.seen += static_cast<uint64_t>(host_rows_[i]) + 1;
      of.retained += static_cast<uint64_t>(host_retained_[i]) + 1;
      CountEvicted(SeqSlot(host_slots_[i]), host_rows_[i], 1);
    }
  }
  // Tokens [first, first + count) of the sequence have come.
  void CountEvicted(SeqSlot slot, int64_t first, int64_t count) {
    const int64_t quota = pool_.quota(slot).retained;
    counts_[slot.index()].evicted +=
        static_cast<uint64_t>(std::max<int64_t>(0, first + count - std::max(first, quota)));
  }

  // ---- before the first and after the last layer ----

  // x = embeddings of the batch; leaves the batch's rotation table in the workspace.
  void Embed(const TokenBatch& batch, const Tensor& x) {
    const Queue queue = Queue::kCompute;
    if (config_.has_projections()) {
      const Tensor narrow = work_.narrow.Rows(0, batch.count);
      backend_.Embed(queue, batch, weights_.embedding, narrow);
      math_.Project(weights_.project_in, narrow, x);
    } else {
      backend_.Embed(queue, batch, weights_.embedding, x);
    }
    if (config_.positions == PositionKind::kLearned)
      backend_.AddPositions(queue, batch, weights_.positions, config_.position_offset, x);
  }

  // Precondition: x.rows ≤ work_.logits.rows, where they go.
  Tensor ComputeLogits(const Tensor& x) {
    const int64_t m = x.rows;
    Tensor h =
        config_.final_norm ? math_.Norm(*config_.final_norm, weights_.final_norm, x, work_.normed.Rows(0, m)) : x;
    if (config_.has_projections()) {
      const Tensor narrow = work_.narrow.Rows(0, m);
      math_.Project(weights_.project_out, h, narrow);
      h = narrow;
    }
    const Tensor out = work_.logits.Rows(0, m);
    math_.Project(weights_.lm_head, h, out);
    return out;
  }
  // The one point where the host waits.
  void Download(const Tensor& computed, std::span<float> logits) {
    const size_t bytes = static_cast<size_t>(computed.rows * config_.vocab) * sizeof(float);
    backend_.Synchronize(backend_.Download(Queue::kCompute, computed.data, bytes, logits.data()));
  }

  // ---- small parts ----

  void SetToken(int64_t i, int32_t id, SeqSlot slot, int64_t row) {
    host_ids_[static_cast<size_t>(i)] = id;
    host_slots_[static_cast<size_t>(i)] = slot.value();
    host_rows_[static_cast<size_t>(i)] = static_cast<int32_t>(row);
    host_retained_[static_cast<size_t>(i)] = static_cast<int32_t>(std::min(row, pool_.quota(slot).retained - 1));
  }

  // Brings tokens set by SetToken, and the extent tables where they changed, to the compute device.
  TokenBatch UploadBatch(int64_t count) {
    const size_t bytes = static_cast<size_t>(count) * sizeof(int32_t);
    backend_.Upload(Queue::kCompute, host_ids_.data(), bytes, work_.ids);
    backend_.Upload(Queue::kCompute, host_slots_.data(), bytes, work_.slots);
    backend_.Upload(Queue::kCompute, host_rows_.data(), bytes, work_.rows);
    if (method_.evicts()) backend_.Upload(Queue::kCompute, host_retained_.data(), bytes, work_.retained_rows);
    cache_.UploadTables();
    const TokenBatch batch{.count = count, .ids = work_.ids, .slots = work_.slots, .rows = work_.rows};
    for (int64_t table = 0; table < work_.frequencies.rows; ++table)
      backend_.RopeTable(Queue::kCompute, batch, work_.frequencies.Rows(table, 1), math_.RopeRows(table, count));
    return batch;
  }

  // ---- set-up ----

  Status AllocateWorkspace() {
    ASSIGN_OR_RETURN(workspace_memory_, Buffer::Make(backend_.compute_memory(), Workspace::Bytes(shape_)));
    work_ = Workspace::Carve(workspace_memory_.data(), shape_);
    for (size_t table = 0; table < config_.ropes.size(); ++table) {
      const std::vector<float> frequencies = RopeInverseFrequencies(config_.ropes[table], config_.head_dim);
      CHECK(std::ssize(frequencies) == work_.frequencies.cols);
      backend_.Upload(Queue::kCompute, frequencies.data(), frequencies.size() * sizeof(float),
                      work_.frequencies.row(static_cast<int64_t>(table)));
    }
    const size_t tokens = static_cast<size_t>(shape_.tokens());
    host_ids_.resize(tokens);
    host_slots_.resize(tokens);
    host_rows_.resize(tokens);
    host_retained_.resize(tokens);
    step_rows_.reserve(static_cast<size_t>(max_batch_));
    counts_.resize(static_cast<size_t>(pool_.options().max_sequences));
    return backend_.Reserve(pool_.options().max_tokens, shape_.select_tokens(), shape_.owned.heads,
                            shape_.owned.kv_heads, config_.head_dim);
  }

  B& backend_;
  const ModelConfig& config_;
  Pool& pool_;
  const KvMethod& method_;
  WeightStream<B> stream_;
  const SketchSource sketches_;
  const int64_t max_batch_;
  const WorkspaceShape shape_;
  const std::array<std::vector<LayerPlan>, 3> plans_;  // [Pass][layers]

  WeightViews weights_;  // where the backend reads them
  Buffer workspace_memory_;
  Workspace work_;
  LayerMath<B> math_;
  CacheAttention<B> cache_;
  PrefillObserver observer_;

  std::vector<SlotRows> step_rows_;                         // of the sequences of a step, before it
  std::vector<int32_t> host_ids_, host_slots_, host_rows_;  // [max(max_batch, chunk)]
  std::vector<int32_t> host_retained_;                      // the same: the last row in layers that evict
  int64_t steps_ = 0;
  std::vector<StepCounts> counts_;  // [max_sequences] of the sequences that had a slot, so far
};

}  // namespace infinigen
