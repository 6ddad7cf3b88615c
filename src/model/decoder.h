// Decoder: the forward pass, written once as a template over the backend concept (backend/backend.h).
//
// Tokens go through the layers in one of two ways, with the same arithmetic:
//
//   Prefill: a prompt is a grid of units (layer, chunk of B::kChunkTokens tokens), processed layer by layer. Between
//            units the residual stream of the whole prompt stays in compute memory, so the engine can run one unit,
//            do other work, and run the next. After the last unit the logits of any token are available.
//   Step:    one token for each of up to max_batch sequences of any lengths.
//
// A prefill can also run as steps (PrefillKind::kSteps): every token attends as in a decode step, by selection, but a
// chunk of tokens shares each matrix product. The result is bit-identical to single steps.
//
// The decoder only orders operations: the pool (kv/pool.h) decides which entries exist, and the backend moves bytes.
// model/cache_attention.h has the part of a layer that uses the cache. Called from the engine's thread only. A step
// allocates no memory.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
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
#include "model/host_transfer.h"
#include "model/kv_counts.h"
#include "model/layer_math.h"
#include "model/layer_plan.h"
#include "model/prefill_job.h"
#include "model/weight_stream.h"
#include "model/weights.h"
#include "model/workspace.h"
#include "tensor/finite.h"

namespace infinigen {

template <Backend B>
class Decoder {
 public:
  // `backend`, `config`, `weights`, `pool` and `options` outlive the decoder. Weights, sketches and pool contain the
  // owned heads only.
  static Result<std::unique_ptr<Decoder>> Make(B& backend, const ModelConfig& config, const OwnedHeads& owned,
                                               const Weights& weights, Pool& pool, const ExecutorOptions& options,
                                               SketchSource sketches) {
    std::unique_ptr<Decoder> decoder(new Decoder(backend, config, owned, pool, options, std::move(sketches)));
    ASSIGN_OR_RETURN(decoder->weights_, LoadWeightsTo(backend, decoder->stream_, weights, options.weights_on_device));
    RETURN_IF_ERROR(decoder->AllocateWorkspace());
    RETURN_IF_ERROR(decoder->cache_.Start(decoder->sketches_));
    return decoder;
  }

  // To be called when a slot is given to a new sequence.
  void BeginSequence(SeqSlot slot) {
    for (LayerId layer : IdRange<LayerId>(config_.layers)) cache_.Forget(layer, slot);
    reached_[slot.index()] = 0;
  }
  // See Executor::FirstRestart. Row r of a ring is overwritten by row r + ring_rows.
  int64_t FirstRestart(SeqSlot slot) const {
    const PoolOptions& pool = pool_.options();
    const int64_t overwritten = pool.window == 0 ? 0 : reached_[slot.index()] - pool.ring_rows;
    return overwritten <= 0 ? 0 : overwritten + pool.window - 1;
  }
  void SetRule(SeqSlot slot, const SelectRule& rule) { cache_.SetRule(slot, rule); }
  // Copies the index of an extent's rows to or from host memory.
  void SaveIndex(SeqSlot slot, int64_t extent, std::byte* host) { cache_.SaveIndex(slot, extent, host); }
  void LoadIndex(SeqSlot slot, int64_t extent, const std::byte* host) { cache_.LoadIndex(slot, extent, host); }

  // `tokens` become rows first_row, first_row + 1, … of the sequence. Precondition: earlier rows exist, and the slot's
  // quota has room.
  Result<PrefillJob> BeginPrefill(SeqSlot slot, int64_t first_row, std::span<const int32_t> tokens, PrefillKind kind) {
    CHECK(!tokens.empty() && (first_row == 0 || first_row >= FirstRestart(slot)));
    const int64_t count = static_cast<int64_t>(tokens.size());
    PrefillJob job{.slot = slot, .first_row = first_row, .kind = kind, .tokens = {tokens.begin(), tokens.end()}};
    const bool guesses = kind == PrefillKind::kSteps && method_.selects() && method_.guesses_from_layer();
    const size_t numbers = tokens.size() * static_cast<size_t>(config_.hidden), bytes = numbers * sizeof(float);
    const size_t guess_bytes = guesses ? numbers * SizeOf(shape_.guess_type()) : 0;
    ASSIGN_OR_RETURN(job.memory, Buffer::Make(backend_.compute_memory(), bytes + guess_bytes));
    job.residual = {job.memory.data(), DType::kF32, count, config_.hidden, config_.hidden};
    if (guesses) job.guess = {job.memory.data() + bytes, shape_.guess_type(), count, config_.hidden, config_.hidden};
    if (method_.evicts() && kind == PrefillKind::kDense) {
      // Evicted entries cannot be restored, so a prompt is always prefilled from its beginning.
      CHECK(first_row == 0);
      ASSIGN_OR_RETURN(job.prompt_memory, Buffer::Make(backend_.compute_memory(), PromptCache::Bytes(shape_, count)));
      job.prompt_cache = PromptCache::Carve(job.prompt_memory.data(), shape_, count);
      cache_.OpenPromptCache(job.prompt_cache, count);
    }
    RETURN_IF_ERROR(cache_.OpenPrompt(slot, first_row + count));
    pool_.SetRows(slot, first_row + count);
    int64_t& reached = reached_[slot.index()];
    reached = first_row == 0 ? count : std::max(reached, first_row + count);
    return job;
  }

  // Frees the stage memory of a prefill, which may be finished or not.
  void EndPrefill(const PrefillJob& job) { cache_.ClosePrompt(job.slot); }

  // Memory that BeginPrefill allocates for a dense prefill: the job's own, and that on the stages of a remote pool.
  uint64_t PrefillBytes(int64_t first_row, int64_t count) const {
    return PrefillJob::DenseBytes(shape_, count) + PromptStageBytes(shape_, first_row + count);
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
      batch_.Set(i, job.tokens[static_cast<size_t>(job.next_token + i)], job.slot, run.first_row + i);
    LayerCall call{.pass = job.kind == PrefillKind::kSteps ? Pass::kRun : Pass::kPrefill, .run = run, .job = &job};
    call.tokens = {UploadBatch(count), run.first_row + count};
    call.x = job.residual.Rows(job.next_token, count);
    if (job.guess) call.guess = job.guess.Rows(job.next_token, count);
    call.ends_layer = job.next_token + count == static_cast<int64_t>(job.tokens.size());

    const LayerPlan& plan = Plans(call.pass)[static_cast<size_t>(job.next_layer)];
    if (job.next_token == 0) cache_.BeginPromptLayer(plan, job.slot, job.first_row);
    if (job.next_layer == 0) Embed(call.tokens.batch, call.x);
    RunLayer(plan, call);
    if (job.next_layer == 0) call.pass == Pass::kRun ? counter_.AddRun(run) : counter_.AddPrefill(run);
    if (job.columns && call.ends_layer) ChooseColumns(plan, job);
    job.next_token += count;
    // The host stays only a few units ahead of the device, so that a prefill can be aborted soon.
    backend_.Synchronize(
        std::exchange(job.enqueued[job.units++ % job.enqueued.size()], backend_.Record(Queue::kCompute)));
    if (call.ends_layer) {
      cache_.EndPromptLayer(plan, job.slot, job.first_row, job.first_row + job.next_token);
      job.next_token = 0;
      ++job.next_layer;
    }
    return job.next_layer == config_.layers;
  }

  // Logits [count][vocab] after tokens [first, first + count) of a finished prefill. The residual stream is not
  // changed, so this can be called for any tokens in any order.
  void PrefillLogits(const PrefillJob& job, int64_t first, int64_t count, std::span<float> logits) {
    CHECK(job.next_layer == config_.layers && logits.size() == static_cast<size_t>(count * config_.vocab));
    for (int64_t done = 0; done < count;) {
      const int64_t part = std::min(count - done, work_.logits.rows);
      Download(ComputeLogits(job.residual.Rows(first + done, part)),
               logits.subspan(static_cast<size_t>(done * config_.vocab)));
      done += part;
    }
  }

  // See Instruments::PrefillHidden and LogitsOfHidden.
  void PrefillHidden(const PrefillJob& job, int64_t first, int64_t count, std::span<float> hidden) {
    CHECK(job.next_layer == config_.layers && hidden.size() == static_cast<size_t>(count * config_.hidden));
    backend_.Synchronize(
        backend_.Download(Queue::kCompute, job.residual.row(first), hidden.size_bytes(), hidden.data()));
  }
  Status LogitsOfHidden(std::span<const float> hidden, std::span<float> logits) {
    const auto width = static_cast<size_t>(config_.hidden), vocab = static_cast<size_t>(config_.vocab);
    const size_t count = hidden.size() / width, most = std::min(count, static_cast<size_t>(work_.logits.rows));
    CHECK(hidden.size() == count * width && logits.size() == count * vocab);
    if (count == 0) return Ok();
    ASSIGN_OR_RETURN(const Buffer memory, Buffer::Make(backend_.compute_memory(), most * width * sizeof(float)));
    for (size_t done = 0; done < count; done += most) {
      const size_t part = std::min(count - done, most);
      backend_.Upload(Queue::kCompute, hidden.data() + done * width, part * width * sizeof(float), memory.data());
      const Tensor states{memory.data(), DType::kF32, static_cast<int64_t>(part), config_.hidden, config_.hidden};
      Download(ComputeLogits(states), logits.subspan(done * vocab));
    }
    return Ok();
  }

  // One token for each item; logits [items][vocab].
  void Step(std::span<const StepItem> items, std::span<float> logits) {
    const int64_t count = static_cast<int64_t>(items.size());
    CHECK(count > 0 && count <= shape_.max_batch && logits.size() == static_cast<size_t>(count * config_.vocab));
    LayerCall call{.pass = Pass::kStep};
    step_rows_.clear();
    for (int64_t i = 0; i < count; ++i) {
      const StepItem& item = items[static_cast<size_t>(i)];
      step_rows_.push_back({item.slot, item.row});
      pool_.SetRows(item.slot, item.row + 1);
      reached_[item.slot.index()] = std::max(reached_[item.slot.index()], item.row + 1);
      batch_.Set(i, item.token, item.slot, item.row);
      call.tokens.max_rows = std::max(call.tokens.max_rows, item.row + 1);
    }
    call.tokens.batch = UploadBatch(count);
    call.x = work_.step_residual.Rows(0, count);
    if (work_.step_guess) call.guess = work_.step_guess.Rows(0, count);
    cache_.BeginStep(step_rows_);
    RunStep(call);
    cache_.EndStep();
    counter_.AddStep(items);
    Download(work_.logits.Rows(0, count), logits);
  }

  // Runs the token again, as a step, and looks at the residual stream after each layer. See Executor::ExplainBreak.
  std::string ExplainBreak(const StepItem& item) {
    LayerCall call{.pass = Pass::kStep};
    step_rows_.assign(1, {item.slot, item.row});
    batch_.Set(0, item.token, item.slot, item.row);
    call.tokens = {UploadBatch(1), item.row + 1};
    call.x = work_.step_residual.Rows(0, 1);
    if (work_.step_guess) call.guess = work_.step_guess.Rows(0, 1);
    cache_.BeginStep(step_rows_);
    Embed(call.tokens.batch, call.x);
    std::string where;
    if (!AllFinite(ToHost(backend_, call.x))) where = fmt::format("the embedding of token {}", item.token);
    for (const LayerPlan& plan : Plans(call.pass)) {
      RunLayer(plan, call);
      if (where.empty() && !AllFinite(ToHost(backend_, call.x)))
        where = fmt::format("layer {} of {}", plan.layer.value(), config_.layers);
    }
    cache_.EndStep();
    return where.empty() ? "the final norm or the output matrix" : where;
  }

  // The observer receives every prefill unit; an empty one ends it.
  void ObservePrefill(PrefillObserver observer) { observer_ = std::move(observer); }

  void ObserveSelection(SelectionObserver observer, std::optional<SeqSlot> slot) {
    cache_.Observe(std::move(observer), slot);
  }

  // For benchmarks: fills rows [0, rows) of the sequence with random entries, as if a prompt had been prefilled.
  void FillSynthetic(SeqSlot slot, int64_t rows, uint64_t seed) {
    pool_.SetRows(slot, rows);
    backend_.AwaitPool();
    SplitMix random(seed);
    std::vector<float> numbers(static_cast<size_t>(work_.k.rows * work_.k.cols));
    for (int64_t first = 0; first < rows; first += work_.k.rows) {
      const int64_t count = std::min(work_.k.rows, rows - first);
      for (int64_t i = 0; i < count; ++i) batch_.Set(i, 0, slot, first + i);
      const TokenBatch batch = UploadBatch(count);
      for (const Tensor* part : {&work_.k, &work_.v}) {
        for (float& number : numbers) number = AboutNormal(random);
        FromHost(backend_, numbers, *part);
      }
      for (LayerId layer : IdRange<LayerId>(config_.layers)) {
        const int64_t held = std::min(count, pool_.quotas(layer)[slot.index()] - first);
        if (held <= 0) continue;
        cache_.AppendInPlace(Plans(Pass::kPrefill)[layer.index()], batch.Range(0, held), work_.k.Rows(0, held),
                             work_.v.Rows(0, held));
      }
    }
    BeginSequence(slot);
    reached_[slot.index()] = rows;
    cache_.FillEvictionState(slot, rows);
  }

  // Statistics of all steps so far, and of the steps of all sequences that had a slot. The host waits for the device.
  KvStats Stats() { return KvCounts<B>(backend_, shape_, work_, pool_).All(counter_.All()); }
  KvStats Stats(SeqSlot slot) { return KvCounts<B>(backend_, shape_, work_, pool_).Of(counter_.Of(slot), slot); }

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
        shape_(ShapeOf(config, owned, pool.options(), options, backend.pool_is_remote())),
        plans_{PlanLayers(shape_, Pass::kPrefill), PlanLayers(shape_, Pass::kRun), PlanLayers(shape_, Pass::kStep)},
        math_(backend, shape_, work_),
        cache_(backend, shape_, work_, pool),
        batch_(backend, work_, pool),
        counter_(pool),
        reached_(static_cast<size_t>(pool.options().max_sequences)) {}

  // The input of a layer: the tokens of a step, or of one prefill unit.
  struct LayerCall {
    Pass pass = Pass::kStep;
    StepTokens tokens;
    Tensor x;                   // [count][hidden] the residual stream, updated in place
    Tensor guess;               // [count][hidden] input of this layer's guess; overwritten with that of the next layer
    TokenRun run;               // of a prefill unit: the same tokens as a range of rows
    PrefillJob* job = nullptr;  // of a prefill unit
    bool ends_layer = true;     // this is the prompt's last chunk in this layer
  };
  const std::vector<LayerPlan>& Plans(Pass pass) const { return plans_[static_cast<size_t>(pass)]; }

  // ---- one step ----

  // Everything from token ids to logits. Backends with graphs record it once per shape and replay it.
  void RunStep(LayerCall& call) {
    if constexpr (requires { backend_.LaunchGraph(uint64_t{}); }) {
      if (!Replayable()) return RunLayers(call);
      // The graph reads sequence lengths from device memory, so it serves all lengths up to the next power of two.
      int64_t& max_rows = call.tokens.max_rows;
      const auto rows = static_cast<uint64_t>(std::max(max_rows, kExtentTokens));
      max_rows = std::min(pool_.options().max_tokens, static_cast<int64_t>(std::bit_ceil(rows)));
      const uint64_t key = static_cast<uint64_t>(max_rows) << 22 | uint64_t{backend_.skipped().fetch} << 21 |
                           uint64_t{backend_.skipped().compute} << 20 | uint64_t{cache_.by_mass()} << 19 |
                           static_cast<uint64_t>(call.tokens.batch.count);
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
  // The operations of a step depend on nothing that only the host knows.
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
    cache_.TurnBack(heads);
    math_.Join(spec, w.o, w.attention_norm, w.attention_out_norm, heads.out, call.x);
    LeaveMidGuess(plan, call);
    if (plan.select_next == SelectNext::kAfterAttention) SelectForNext(plan, call);
    const Tensor hidden = math_.MlpHidden(spec, w, call.x);
    math_.Join(spec, w.down, w.mlp_norm, w.mlp_out_norm, hidden, call.x);
    if (call.ends_layer) stream_.Done(plan.layer);
  }

  // Computes queries, keys and values of the layer's tokens, and the query that selects rows.
  LayerHeads Heads(const LayerPlan& plan, const LayerWeights& w, const LayerCall& call) {
    const LayerSpec& spec = *plan.spec;
    const int64_t m = call.tokens.batch.count;
    // If rows were selected ahead, the layer before has made the guess.
    const bool guesses = plan.query != GuessSource::kSelf && !plan.ahead;
    LayerHeads heads{.q = work_.q.Rows(0, m), .k = work_.k.Rows(0, m), .v = work_.v.Rows(0, m)};
    heads.out = work_.mixed.Rows(0, m);
    heads.select = guesses ? work_.guess_q.Rows(0, m) : heads.q;
    if (guesses && method_.guesses_from_layer()) math_.Query(spec, w, call.guess, heads.select);
    const Tensor input = math_.Input(spec, w.attention_norm, call.x);
    if (plan.leaves_guess && method_.from == GuessSource::kPrevLayer) backend_.Copy(Queue::kCompute, input, call.guess);
    math_.QueryKeyValue(spec, w, input, heads.q, heads.k, heads.v);
    if (method_.selects() && method_.from == GuessSource::kPrevStep) ExchangeLastQueries(plan, call, heads);
    math_.Rotate(spec, heads.q);
    math_.Rotate(spec, heads.k);
    if (guesses) math_.Rotate(spec, heads.select);
    cache_.Turn(heads);
    return heads;
  }

  // The next layer's fetch may start after this layer's preparation, before this layer waits for its own fetch.
  void StepAttention(const LayerPlan& plan, const LayerCall& call, const LayerHeads& heads) {
    cache_.Prepare(plan, call.tokens, heads);
    if (plan.select_next == SelectNext::kBeforeAttention) SelectForNext(plan, call);
    cache_.Attend(plan, call.tokens, heads);
  }

  void PrefillAttention(const LayerPlan& plan, const LayerCall& call, const LayerHeads& heads) {
    if (observer_) ShowPrefill(plan.layer, call, heads);
    if (plan.evicts)
      return cache_.PrefillEvicting(plan, call.job->prompt_cache, static_cast<int64_t>(call.job->tokens.size()),
                                    call.run, call.tokens.batch, heads);
    if (method_.prompt_columns && plan.has_index)
      WatchColumns(plan.layer, call, heads);
    else
      cache_.AppendIndex(plan, call.tokens.batch, heads.k, heads.entry_v);
    cache_.Prefill(plan, call.run, call.tokens.batch, heads);
  }

  // kPrevMid: stores the residual stream after this layer's attention, normalised, as the input of the next guess.
  void LeaveMidGuess(const LayerPlan& plan, const LayerCall& call) {
    if (!plan.leaves_guess || method_.from != GuessSource::kPrevMid) return;
    const size_t next = plan.layer.index() + 1;
    const LayerSpec& spec = config_.specs[next];
    if (spec.norm_placement == NormPlacement::kAfterResidual)
      backend_.Copy(Queue::kCompute, call.x, call.guess);
    else
      math_.Norm(spec.norm, weights_.layers[next].attention_norm, call.x, call.guess);
  }

  // Guesses the next layer's query, selects its rows, and starts to fetch them.
  void SelectForNext(const LayerPlan& plan, const LayerCall& call) {
    const LayerPlan& next = Plans(call.pass)[plan.layer.index() + 1];
    const Tensor query = work_.guess_q.Rows(0, call.tokens.batch.count);
    math_.Query(*next.spec, stream_.Use(next.layer, weights_.layers[next.layer.index()]), call.guess, query);
    math_.Rotate(*next.spec, query);
    cache_.SelectAhead(next, call.tokens, query);
  }

  // kPrevStep: a token's guess is the unrotated query of the token before it. The last query of each sequence is stored
  // for its next step. The first token of a sequence has no earlier query; it attends only to itself.
  void ExchangeLastQueries(const LayerPlan& plan, const LayerCall& call, const LayerHeads& heads) {
    const Queue queue = Queue::kCompute;
    const int64_t m = call.tokens.batch.count;
    const bool guesses = heads.select.data != heads.q.data;
    const auto last = [&](int64_t slot) {
      return work_.last_q.Rows(plan.layer.value() * pool_.options().max_sequences + slot, 1);
    };
    if (call.pass != Pass::kStep) {
      const Tensor stored = last(call.run.slot.value());
      if (guesses) backend_.Copy(queue, stored, heads.select.Rows(0, 1));
      if (guesses && m > 1) backend_.Copy(queue, heads.q.Rows(0, m - 1), heads.select.Rows(1, m - 1));
      return backend_.Copy(queue, heads.q.Rows(m - 1, 1), stored);
    }
    for (int64_t i = 0; i < m; ++i) {
      const int64_t slot = batch_.slot(i);
      if (guesses) backend_.Copy(queue, last(slot), heads.select.Rows(i, 1));
      backend_.Copy(queue, heads.q.Rows(i, 1), last(slot));
    }
  }

  // Reports a prefill unit to the observer.
  void ShowPrefill(LayerId layer, const LayerCall& call, const LayerHeads& heads) {
    const std::vector<float> queries = ToHost(backend_, heads.q), keys = ToHost(backend_, heads.k);
    const std::vector<float> values = ToHost(backend_, heads.v);
    const auto view = [](const std::vector<float>& host, const Tensor& of) {
      return ConstTensor{reinterpret_cast<const std::byte*>(host.data()), DType::kF32, of.rows, of.cols};
    };
    observer_(layer, {.first_row = call.run.first_row,
                      .queries = view(queries, heads.q),
                      .keys = view(keys, heads.k),
                      .values = view(values, heads.v)});
  }

  // Where the prompt chooses sketch columns: collects the column sums and the keys, to be sketched by ChooseColumns.
  void WatchColumns(LayerId layer, const LayerCall& call, const LayerHeads& heads) {
    const std::vector<float> queries = ToHost(backend_, heads.q), keys = ToHost(backend_, heads.k);
    if (!call.job->columns)
      call.job->columns.emplace(sketches_.rotation(layer), shape_.owned.kv_heads, config_.head_dim);
    call.job->columns->Add(queries, shape_.owned.heads / shape_.owned.kv_heads);
    call.job->columns->Add(keys, 1);
    call.job->keys.insert(call.job->keys.end(), keys.begin(), keys.end());
  }

  // After the prompt's last chunk in a layer: chooses the columns, which are fixed from here on, and appends the
  // sketches of the prompt's keys.
  void ChooseColumns(const LayerPlan& plan, PrefillJob& job) {
    cache_.SetBasis(plan.layer, job.slot, sketches_.choose(plan.layer, job.columns->sums()));
    const int64_t total = static_cast<int64_t>(job.tokens.size()), width = work_.k.cols;
    for (int64_t first = 0; first < total; first += work_.k.rows) {
      const int64_t count = std::min(work_.k.rows, total - first);
      for (int64_t i = 0; i < count; ++i) batch_.Set(i, 0, job.slot, job.first_row + first + i);
      const TokenBatch batch = UploadBatch(count);
      FromHost(backend_,
               std::span(job.keys).subspan(static_cast<size_t>(first * width), static_cast<size_t>(count * width)),
               work_.k.Rows(0, count));
      cache_.AppendIndex(plan, batch, work_.k.Rows(0, count), {});  // such methods have no sketches of values
    }
    job.columns.reset();
    job.keys.clear();
  }

  // ---- before the first and after the last layer ----

  // x = embeddings of the batch.
  void Embed(const TokenBatch& batch, const Tensor& x) {
    const Queue queue = Queue::kCompute;
    if (config_.has_projections()) {
      const Tensor narrow = work_.narrow.Rows(0, batch.count);
      backend_.Embed(queue, batch, weights_.embedding, narrow);
      math_.Project(weights_.project_in, narrow, x);
    } else {
      backend_.Embed(queue, batch, weights_.embedding, x);
    }
    if (config_.embedding_scale != 1) backend_.Scale(queue, config_.embedding_scale, x);
    if (config_.positions == PositionKind::kLearned)
      backend_.AddPositions(queue, batch, weights_.positions, config_.position_offset, x);
  }

  // Logits of x, in work_.logits. Precondition: x.rows ≤ work_.logits.rows.
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
    if (config_.logit_soft_cap > 0) backend_.SoftCap(Queue::kCompute, config_.logit_soft_cap, out);
    return out;
  }
  // The only point of a step where the host waits.
  void Download(const Tensor& computed, std::span<float> logits) {
    const size_t bytes = static_cast<size_t>(computed.rows * config_.vocab) * sizeof(float);
    backend_.Synchronize(backend_.Download(Queue::kCompute, computed.data, bytes, logits.data()));
  }

  // Uploads the tokens set in batch_, and the extent tables if they changed; computes the batch's RoPE tables.
  TokenBatch UploadBatch(int64_t count) {
    const TokenBatch batch = batch_.Upload(count);
    cache_.UploadTables();
    for (int64_t table = 0; table < work_.frequencies.rows; ++table) {
      const Tensor rows = math_.RopeRows(table, count);
      Tensor frequencies = work_.frequencies.Rows(table, 1);
      frequencies.cols = rows.cols / 2;
      backend_.RopeTable(Queue::kCompute, batch, frequencies,
                         static_cast<float>(config_.ropes[static_cast<size_t>(table)].magnitude), rows);
    }
    return batch;
  }

  // ---- set-up ----

  Status AllocateWorkspace() {
    ASSIGN_OR_RETURN(workspace_memory_, Buffer::Make(backend_.compute_memory(), Workspace::Bytes(shape_)));
    work_ = Workspace::Carve(workspace_memory_.data(), shape_);
    for (size_t table = 0; table < config_.ropes.size(); ++table) {
      const std::vector<float> frequencies =
          RopeInverseFrequencies(config_.ropes[table], config_.head_dim, pool_.options().max_tokens);
      CHECK(std::ssize(frequencies) <= work_.frequencies.cols);
      backend_.Upload(Queue::kCompute, frequencies.data(), frequencies.size() * sizeof(float),
                      work_.frequencies.row(static_cast<int64_t>(table)));
    }
    batch_.Start(shape_.tokens());
    step_rows_.reserve(static_cast<size_t>(shape_.max_batch));
    return backend_.Reserve(pool_.options().max_tokens, shape_.select_tokens(), shape_.owned.heads,
                            shape_.owned.kv_heads, config_.head_dim);
  }

  B& backend_;
  const ModelConfig& config_;
  Pool& pool_;
  const KvMethod& method_;
  WeightStream<B> stream_;
  const SketchSource sketches_;
  const WorkspaceShape shape_;
  const std::array<std::vector<LayerPlan>, 3> plans_;  // [Pass][layers]

  WeightViews weights_;  // in memory that the backend reads
  Buffer workspace_memory_;
  Workspace work_;
  LayerMath<B> math_;
  CacheAttention<B> cache_;
  BatchUpload<B> batch_;
  StepCounter counter_;
  PrefillObserver observer_;
  std::vector<int64_t> reached_;     // [max_sequences] most rows that the sequence has had since it began at row 0
  std::vector<SlotRows> step_rows_;  // rows of each sequence of a step, before the step
};

}  // namespace infinigen
