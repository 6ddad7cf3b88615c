// DecoderExecutor: the Executor over a Decoder, for any backend. Included only by executor.cc and cuda_executor.cc,
// which name the backends.
#pragma once

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "base/size.h"
#include "model/broken_numbers.h"
#include "model/decoder.h"
#include "model/executor.h"

namespace infinigen {

// The pool is reached over a link.
inline bool IsRemote(const ExecutorOptions& options) {
  return options.device == Device::kCuda && !options.pool_on_device;
}

// With a remote pool and selection, the dense layers' entries stay on the device: they are read whole in every step.
inline int64_t DeviceLayers(const ExecutorOptions& options) {
  return IsRemote(options) && options.method.selects() ? options.method.dense_layers : 0;
}

inline OwnedHeads OwnedBy(const ModelConfig& config, const ExecutorOptions& options) {
  if (!options.owned) return AllHeads(config);
  const OwnedHeads owned = *options.owned;
  CHECK(owned.first_kv_head >= 0 && owned.kv_heads > 0 && owned.first_kv_head + owned.kv_heads <= config.kv_heads);
  CHECK(owned.heads * config.kv_heads == owned.kv_heads * config.heads);  // whole groups
  return owned;
}

template <Backend B>
PoolOptions PoolFor(const ModelConfig& config, const ExecutorOptions& options) {
  const OwnedHeads owned = OwnedBy(config, options);
  PoolOptions pool{.layout = {.type = options.kv_type, .kv_heads = owned.kv_heads, .head_dim = config.head_dim},
                   .layers = config.layers,
                   .max_sequences = options.max_batch,
                   .max_tokens = options.max_tokens,
                   .limit_bytes = options.pool_limit_bytes,
                   .evicting_from = options.method.evicts() ? options.method.dense_layers : INT64_MAX,
                   .device_layers = DeviceLayers(options),
                   .poisons = options.poisons};
  if (const int64_t window = config.window(); window > 0) {
    pool.window = window;
    for (const LayerSpec& spec : config.specs) pool.windowed.push_back(spec.window > 0);
    pool.ring_rows = PoolOptions::RingFor(window, std::max<int64_t>(B::kChunkTokens, options.max_batch));
    pool.device_windows = IsRemote(options);
  }
  pool.index_bytes = WorkspaceShape{config, pool, options.method, owned}.index().extent_bytes();
  return pool;
}

template <Backend B>
class DecoderExecutor final : public Executor, public Sharing, public Instruments {
 public:
  DecoderExecutor(const ModelConfig& config, const ExecutorOptions& options, std::string name,
                  std::unique_ptr<B> backend)
      : config_(config),
        options_(options),
        name_(std::move(name)),
        owned_backend_(std::move(backend)),
        backend_(*owned_backend_),
        pool_(PoolFor<B>(config, options_), backend_.pool_memory(), &backend_.compute_memory()),
        jobs_(static_cast<size_t>(options.max_batch)) {}

  Status Start(const Weights& weights, SketchSource sketches) {
    source_ = weights.storage == nullptr ? nullptr : weights.storage->source.get();
    ASSIGN_OR_RETURN(decoder_, Decoder<B>::Make(backend_, config_, OwnedBy(config_, options_), weights, pool_, options_,
                                                std::move(sketches)));
    return Ok();
  }

  ~DecoderExecutor() override { AwaitQueues(); }

  const ModelConfig& config() const override { return config_; }
  const ExecutorOptions& options() const override { return options_; }
  Sharing* sharing() override { return options_.method.evicts() ? nullptr : this; }
  Instruments& instruments() override { return *this; }

  Result<SeqSlot> Admit(int64_t final_tokens) override {
    const int64_t retained = options_.method.evicts() ? Quotas().Quota(final_tokens) : final_tokens;
    if (retained > 0) {
      ASSIGN_OR_RETURN(const SeqSlot slot, pool_.Admit({final_tokens, retained}));
      Begin(slot);
      return slot;
    }
    return Exhausted(
        "the KV limit of {} for {} sequences is too small: the dense layers of a sequence of {} tokens take it all",
        FormatSize(options_.method.limit.bytes), options_.max_batch, final_tokens);
  }

  // ---- Sharing ----

  Result<SeqSlot> AdmitGrowing(int64_t rows, std::span<const SharedId> prefix) override {
    const int64_t quota = WholeExtents(rows);
    ASSIGN_OR_RETURN(const SeqSlot slot, pool_.Admit({quota, quota}, prefix));
    Begin(slot);
    for (size_t extent = 0; extent < prefix.size(); ++extent)
      decoder_->LoadIndex(slot, static_cast<int64_t>(extent), pool_.index(prefix[extent]));
    return slot;
  }
  Status Grow(SeqSlot slot, int64_t rows) override { return pool_.Grow(slot, WholeExtents(rows)); }
  int64_t Quota(SeqSlot slot) const override { return pool_.quota(slot).rows; }
  int64_t free_extents() const override { return pool_.free_extents(); }

  // Sketches in columns that a prompt chose are useless to other prompts. A ring overwrites rows that a prefix needs.
  bool can_share() const override { return !options_.method.prompt_columns && config_.window() == 0; }
  Result<SharedId> Share(SeqSlot slot, int64_t extent) override {
    ASSIGN_OR_RETURN(const SharedId id, pool_.Share(slot, extent));
    backend_.AwaitPool();
    AwaitQueues();  // all entries of the extent must be in the pool
    decoder_->SaveIndex(slot, extent, pool_.index(id));
    return id;
  }
  void Adopt(SeqSlot slot, int64_t extent, SharedId id) override {
    AwaitQueues();  // no queue may still use the extent that is replaced
    pool_.Adopt(slot, extent, id);
    decoder_->LoadIndex(slot, extent, pool_.index(id));
  }
  void DropShared(SharedId id) override {
    AwaitQueues();
    pool_.Drop(id);
  }
  uint64_t shared_extent_bytes() const override {
    return Pool::QuotaBytes(pool_.options(), {kExtentTokens, kExtentTokens});
  }
  uint64_t shared_index_bytes() const override { return pool_.options().index_bytes; }

  // ---- running ----

  void SetRule(SeqSlot slot, const SelectRule& rule) override { decoder_->SetRule(slot, rule); }
  void Release(SeqSlot slot) override {
    EndPrefill(slot);
    AwaitQueues();  // no queue may still use the sequence's memory
    if (options_.poisons) PoisonIndex(slot);
    pool_.Release(slot);
  }

  void Reset() override {
    AwaitQueues();
    for (std::optional<PrefillJob>& job : jobs_) {
      if (job) decoder_->EndPrefill(*job);
      job.reset();
    }
    decoder_->ObserveSelection({}, std::nullopt);
    for (int64_t slot = 0; options_.poisons && slot < options_.max_batch; ++slot) PoisonIndex(SeqSlot(slot));
    pool_.ReleaseAll();
  }

  Status BeginPrefill(SeqSlot slot, int64_t first_row, std::span<const int32_t> tokens, PrefillKind kind) override {
    ASSIGN_OR_RETURN(jobs_[slot.index()], decoder_->BeginPrefill(slot, first_row, tokens, kind));
    return Ok();
  }
  int64_t PrefillUnits(SeqSlot slot) const override { return decoder_->PrefillUnits(*jobs_[slot.index()]); }
  bool RunPrefillUnit(SeqSlot slot) override { return decoder_->RunPrefillUnit(*jobs_[slot.index()]); }
  void PrefillLogits(SeqSlot slot, int64_t first, int64_t count, std::span<float> logits) override {
    decoder_->PrefillLogits(*jobs_[slot.index()], first, count, logits);
  }
  void EndPrefill(SeqSlot slot) override {
    std::optional<PrefillJob>& job = jobs_[slot.index()];
    if (job) decoder_->EndPrefill(*job);
    job.reset();
  }
  int64_t FirstRestart(SeqSlot slot) const override { return decoder_->FirstRestart(slot); }
  uint64_t PrefillBytes(int64_t first_row, int64_t count) const override {
    return decoder_->PrefillBytes(first_row, count);
  }

  void Step(std::span<const StepItem> items, std::span<float> logits) override { decoder_->Step(items, logits); }

  std::string ExplainBreak(const StepItem& item) override {
    if (!broken_tensor_) {
      const Status finite = source_ == nullptr ? Ok() : CheckFinite(*source_, options_.threads);
      broken_tensor_ = finite.ok() ? std::string() : finite.error().message;
    }
    return broken_tensor_->empty() ? decoder_->ExplainBreak(item) : *broken_tensor_;
  }

  // ---- Instruments ----

  std::string device_name() const override { return name_; }
  void ObservePrefill(PrefillObserver observer) override { decoder_->ObservePrefill(std::move(observer)); }
  void ObserveSelection(SelectionObserver observer, std::optional<SeqSlot> slot) override {
    decoder_->ObserveSelection(std::move(observer), slot);
  }
  Status PrefillHidden(SeqSlot slot, int64_t first, int64_t count, std::span<float> hidden) override {
    decoder_->PrefillHidden(*jobs_[slot.index()], first, count, hidden);
    return Ok();
  }
  Status LogitsOfHidden(std::span<const float> hidden, std::span<float> logits) override {
    return decoder_->LogitsOfHidden(hidden, logits);
  }
  void FillSynthetic(SeqSlot slot, int64_t rows, uint64_t seed) override { decoder_->FillSynthetic(slot, rows, seed); }
  KvStats Stats() override { return decoder_->Stats(); }
  KvStats SlotStats(SeqSlot slot) override { return decoder_->Stats(slot); }

  uint64_t pool_bytes() const override { return pool_.used_bytes(); }
  uint64_t pool_peak_bytes() const override { return pool_.peak_bytes(); }
  DeviceUse device_use() const override {
    if constexpr (requires { backend_.peak_bytes(); })
      return {.peak_bytes = backend_.peak_bytes(), .pinning_s = backend_.pinning_s()};
    return {};
  }
  void AwaitPool() override { backend_.AwaitPool(); }
  bool Skip(bool fetch, bool compute) override {
    if constexpr (requires { backend_.Skip({}); }) backend_.Skip({.fetch = fetch, .compute = compute});
    return requires { backend_.Skip({}); };
  }
  std::vector<ZoneTime> TakeZones(bool on) override {
    std::vector<ZoneTime> zones;
    if constexpr (requires { backend_.CollectZones(); }) {
      const auto times = backend_.CollectZones();
      for (size_t zone = 0; zone < times.size(); ++zone) zones.push_back({B::kZoneNames[zone], times[zone]});
      backend_.TimeZones(on);
    }
    return zones;
  }

 private:
  void Begin(SeqSlot slot) {
    decoder_->BeginSequence(slot);
    if (options_.method.selects()) SetRule(slot, options_.method.rule);
  }
  // Of whole extents: the last one of a slot may be shorter. An evicting method has an index of fewer rows.
  void PoisonIndex(SeqSlot slot) {
    if (pool_.options().index_bytes == 0 || options_.method.evicts()) return;
    const std::vector<std::byte> poison(pool_.options().index_bytes, std::byte{kPoison});
    for (int64_t extent = 0; extent < options_.max_tokens / kExtentTokens; ++extent)
      decoder_->LoadIndex(slot, extent, poison.data());
  }
  QuotaRule Quotas() const { return QuotasOf(options_.method, pool_.options()); }
  int64_t WholeExtents(int64_t rows) const {
    return std::min((rows + kExtentTokens - 1) / kExtentTokens * kExtentTokens, options_.max_tokens);
  }
  void AwaitQueues() {
    for (const Queue queue : {Queue::kCompute, Queue::kFetch, Queue::kWriteout, Queue::kWeights})
      backend_.Synchronize(backend_.Record(queue));
  }

  const ModelConfig& config_;
  ExecutorOptions options_;
  std::string name_;
  std::unique_ptr<B> owned_backend_;
  B& backend_;
  Pool pool_;  // allocated by the backend, so declared after it
  std::unique_ptr<Decoder<B>> decoder_;
  const TensorSource* source_ = nullptr;         // null for random weights
  std::optional<std::string> broken_tensor_;     // nullopt: not searched for
  std::vector<std::optional<PrefillJob>> jobs_;  // [max_batch]; set while a sequence prefills
};

template <Backend B>
MemoryPlan PlanFor(const ModelConfig& config, const ExecutorOptions& options, uint64_t weights_bytes) {
  const PoolOptions pool = PoolFor<B>(config, options);
  const WorkspaceShape shape = Decoder<B>::ShapeOf(config, OwnedBy(config, options), pool, options, IsRemote(options));
  // A limit too small for one row is planned as one row: the plan then exceeds the limit and is rejected.
  const int64_t retained =
      options.method.evicts() ? std::max<int64_t>(1, shape.quotas().Quota(options.max_tokens)) : options.max_tokens;
  const uint64_t sequence_bytes = Pool::QuotaBytes(pool, {options.max_tokens, retained});
  return {.weights_bytes = weights_bytes,
          .workspace_bytes = Workspace::Bytes(shape),
          .sketch_bytes = shape.index().total_bytes(),
          .prefill_bytes = PrefillJob::DenseBytes(shape, options.max_tokens) +
                           PrefillJob::DenseBytes(shape, options.planned_side_tokens()),
          .pool_bytes = static_cast<uint64_t>(options.max_batch) * sequence_bytes,
          .pool_bytes_per_token = sequence_bytes / static_cast<uint64_t>(options.max_tokens)};
}

template <Backend B>
Result<std::unique_ptr<Executor>> MakeDecoderExecutor(const ModelConfig& config, const Weights& weights,
                                                      const ExecutorOptions& options, SketchSource sketches,
                                                      std::string name, std::unique_ptr<B> backend) {
  auto executor = std::make_unique<DecoderExecutor<B>>(config, options, std::move(name), std::move(backend));
  RETURN_IF_ERROR(executor->Start(weights, std::move(sketches)));
  return Result<std::unique_ptr<Executor>>(std::move(executor));
}

}  // namespace infinigen
