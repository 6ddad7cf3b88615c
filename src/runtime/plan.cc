#include "runtime/plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/machine.h"
#include "base/size.h"

namespace infinigen {
namespace {

// Host memory outside the executor: each running sequence has a row of logits in the engine (4 bytes per logit) and a
// sampler that sorts them (16 bytes).
constexpr uint64_t kHostBytesPerLogit = 20;
// Default batch of a server. A step of 32 sequences costs little more than one of 8 while reading the weights
// dominates.
constexpr int64_t kServedBatch = 32;
// A prompt of up to this many tokens (a question with a page or two) is prefilled beside a longer one. Its residual
// stream takes 32 MiB in a model with 4,096 dimensions.
constexpr int64_t kSideTokens = 2048;

// Decides whether one set of options fits, for any context.
struct Fit {
  const ModelConfig& config;
  uint64_t weights_bytes;
  const ExecutorOptions& options;
  std::optional<uint64_t> kv_limit;
  uint64_t available_bytes;

  MemoryPlan Parts(int64_t tokens, int64_t batch) const {
    ExecutorOptions trial = options;
    trial.max_tokens = tokens;
    trial.max_batch = batch;
    MemoryPlan parts = PlanMemory(config, trial, weights_bytes);
    (parts.has_device ? parts.sampling_bytes : parts.workspace_bytes) +=
        static_cast<uint64_t>(batch * config.vocab) * kHostBytesPerLogit;
    return parts;
  }
  // The parts with the pool cut to its limit; sequences then wait for each other's memory.
  MemoryPlan Limited(int64_t tokens) const {
    MemoryPlan parts = Parts(tokens, options.max_batch);
    if (kv_limit) parts.pool_bytes = std::min(parts.pool_bytes, *kv_limit);
    parts.device_pool_bytes = std::min(parts.device_pool_bytes, parts.pool_bytes);
    return parts;
  }
  uint64_t OneSequence(int64_t tokens) const { return Parts(tokens, 1).pool_bytes; }
  // Sequences that evict reserve their whole quota at once, so all of them must fit; otherwise one must.
  bool LimitHolds(int64_t tokens) const {
    if (!kv_limit) return true;
    return (options.method.evicts() ? Parts(tokens, options.max_batch).pool_bytes : OneSequence(tokens)) <= *kv_limit;
  }
  bool HostHolds(int64_t tokens) const { return Limited(tokens).host_bytes() + kMarginBytes <= available_bytes; }
  bool DeviceHolds(int64_t tokens) const {
    const MemoryPlan parts = Limited(tokens);
    return !parts.has_device || parts.device_bytes() + kGpuMarginBytes <= options.device_memory_bytes;
  }
  bool MemoryHolds(int64_t tokens) const { return HostHolds(tokens) && DeviceHolds(tokens); }

  int64_t LargestContext() const {
    // Invariant: `low` fits or is 0; nothing above `high` fits.
    int64_t low = 0;
    int64_t high = config.positions == PositionKind::kLearned ? config.max_positions : kMaxContext;
    while (low < high) {
      const int64_t middle = low + (high - low + 1) / 2;
      if (LimitHolds(middle) && MemoryHolds(middle))
        low = middle;
      else
        high = middle - 1;
    }
    return low;
  }
};

// Rows of a hot set that takes the free GPU memory within the request's bounds.
int64_t PlanHotSet(const Fit& fit, const HotSetRequest& hot) {
  const ExecutorOptions& options = fit.options;
  if (options.device != Device::kCuda || hot.limit_bytes == 0) return 0;
  const MemoryPlan without = fit.Limited(options.max_tokens);
  const uint64_t taken = without.device_bytes() + kGpuMarginBytes;
  const uint64_t left = options.device_memory_bytes > taken ? options.device_memory_bytes - taken : 0;
  return HotRows(fit.config, options, {.bytes = std::min(left, hot.limit_bytes), .selections = hot.selections});
}

// A message about the first part that does not fit, with its numbers; empty if everything fits.
std::string Refusal(const Fit& fit, const MemoryPlan& parts, int64_t largest_context) {
  const ExecutorOptions& options = fit.options;
  const bool on_device = parts.has_device && parts.pool_on_device;
  const std::string advice = largest_context > 0 ? fmt::format("the largest context that fits at batch {} is {}",
                                                               options.max_batch, largest_context)
                                                 : fmt::format("no context fits at batch {}", options.max_batch);
  if (!fit.LimitHolds(options.max_tokens) && options.method.evicts())
    return fmt::format("--kv-limit {} is too small: {} sequences of {} tokens would not get one row per layer each; {}",
                       FormatSize(*fit.kv_limit), options.method.limit.sequences, options.max_tokens, advice);
  if (!fit.LimitHolds(options.max_tokens))
    return fmt::format(
        "--kv-limit {} is too small: one sequence of {} tokens takes {}; {}, or pass --kv-evict to evict entries",
        FormatSize(*fit.kv_limit), options.max_tokens, FormatSize(fit.OneSequence(options.max_tokens)), advice);
  if (!fit.DeviceHolds(options.max_tokens))
    return fmt::format(
        "not enough GPU memory: weights {} + {}sketches {} + stages {} + hot set {} + workspace {} + prefill {} + "
        "margin {} exceed the usable {}; {}",
        FormatSize(parts.weights_bytes - parts.host_weights_bytes),
        on_device ? fmt::format("pool {} ({} tokens x {}) + ", FormatSize(parts.pool_bytes), options.max_tokens,
                                options.max_batch)
        : parts.device_pool_bytes > 0
            ? fmt::format("entries of dense layers {} + ", FormatSize(parts.device_pool_bytes))
            : "",
        FormatSize(parts.sketch_bytes), FormatSize(parts.stage_bytes), FormatSize(parts.hot_bytes),
        FormatSize(parts.workspace_bytes), FormatSize(parts.prefill_bytes), FormatSize(kGpuMarginBytes),
        FormatSize(options.device_memory_bytes), advice);
  if (!fit.HostHolds(options.max_tokens) && parts.has_device)
    return fmt::format(
        "not enough host memory: pool {} ({} tokens x {}) + weights {} + logits {} + driver {} + margin {} exceed the "
        "{} available; {}",
        FormatSize(on_device ? 0 : parts.pool_bytes), options.max_tokens, options.max_batch,
        FormatSize(parts.host_weights_bytes), FormatSize(parts.sampling_bytes), FormatSize(parts.driver_bytes),
        FormatSize(kMarginBytes), FormatSize(fit.available_bytes), advice);
  if (!fit.HostHolds(options.max_tokens))
    return fmt::format(
        "not enough memory: weights {} + pool {} ({} tokens x {}) + sketches {} + workspace {} + prefill {} + margin "
        "{} exceed the {} available; {}",
        FormatSize(parts.weights_bytes), FormatSize(parts.pool_bytes), options.max_tokens, options.max_batch,
        FormatSize(parts.sketch_bytes), FormatSize(parts.workspace_bytes), FormatSize(parts.prefill_bytes),
        FormatSize(kMarginBytes), FormatSize(fit.available_bytes), advice);
  return {};
}

// Options of a request for one model, still without a pool limit and a hot set.
Result<ExecutorOptions> OptionsFor(const Model& model, const RunRequest& request, bool serves) {
  const KvRequest& kv = request.kv;
  const DeviceChoice& device = request.device;
  const bool cuda = device.device == Device::kCuda, on_device = kv.home == KvHome::kDevice;
  if (on_device && !cuda) return Unsupported("--kv-home device: needs --device cuda");
  const bool fetches = cuda && !on_device;
  if (!fetches && (kv.wants_hot_set() || kv.force_hits.value_or(0) > 0))
    return Unsupported("--kv-hot and --kv-force-hits need --device cuda and --kv-home host");
  // Sequences that evict divide a limit in bytes equally. The divisor must not depend on the number of prompts, or
  // results would: it is the user's batch, or 1.
  const bool divided = kv.evicts() && kv.limit_bytes;
  const int64_t most = request.batch > 0 ? request.batch : divided ? 1 : serves ? kServedBatch : kDefaultBatch;
  ExecutorOptions options{.device = device.device,
                          .threads = device.threads,
                          .max_tokens = request.max_tokens,
                          .max_batch = serves ? most : std::min(request.useful_batch, most),
                          .kv_type = kv.store_type().value_or(StoreTypeOf(model.dtype)),
                          .side_tokens = serves ? kSideTokens : 0,
                          .pool_on_device = on_device,
                          .forced_hits = kv.force_hits.value_or(0)};
  if (cuda) {
    options.activation = model.dtype;
    options.device_memory_bytes = device.device_memory_bytes;
    options.weights_on_device = device.weights_on_device;
  }
  ASSIGN_OR_RETURN(options.method, ResolveMethod(kv, {.config = model.config,
                                                      .max_tokens = request.max_tokens,
                                                      .fetches = fetches,
                                                      .sequences = most,
                                                      .any_cap = serves}));
  // Limits the batch to the sequences that fit into the limit.
  if (!request.waits && kv.limit_bytes && !options.method.evicts()) {
    ExecutorOptions one = options;
    one.max_batch = 1;
    const uint64_t bytes = PlanMemory(model.config, one, 0).pool_bytes;
    options.max_batch = std::clamp<int64_t>(static_cast<int64_t>(*kv.limit_bytes / bytes), 1, options.max_batch);
  }
  return options;
}

// Plans one request on this machine, for any context and batch.
class Planner {
 public:
  Planner(const Model& model, const RunRequest& request, const ExecutorOptions& options)
      : model_(model), request_(request), options_(options) {
    weights_bytes_ = static_cast<uint64_t>(model.weights.TotalBytes());
    available_ = AvailableHostMemory().value_or(UINT64_MAX / 2);
    // Random weights are already allocated, so the free memory no longer includes them.
    if (model.is_random() && options.device != Device::kCuda) available_ += weights_bytes_;
    const KvRequest& kv = request.kv;
    // Forced hits replace a hot set.
    hot_ = {.limit_bytes = kv.force_hits.value_or(0) > 0 ? 0 : kv.hot_bytes.value_or(UINT64_MAX),
            .selections = kv.hot_selections};
  }

  // The plan with the largest batch that fits. A fixed batch does not shrink.
  RunPlan Fitting(int64_t tokens, bool fixed_batch) const {
    int64_t batch = options_.max_batch;
    RunPlan plan = At(tokens, batch, request_.kv.pool_limit());
    while (!plan.refusal.empty() && !fixed_batch && batch > 1) plan = At(tokens, --batch, request_.kv.pool_limit());
    return plan;
  }
  // The same for sequences that grow: if memory does not hold all of them at full length, they share the pool.
  RunPlan FittingShared(int64_t tokens, bool fixed_batch) const {
    for (int64_t batch = options_.max_batch;; --batch) {
      const RunPlan whole = At(tokens, batch, request_.kv.pool_limit());
      if (whole.refusal.empty()) return whole;
      if (!request_.kv.pool_limit() && !options_.method.evicts()) {
        RunPlan shared = At(tokens, batch, whole.options.pool_limit_bytes);
        if (shared.refusal.empty()) return shared;
      }
      if (fixed_batch || batch == 1) return whole;
    }
  }
  // Adds skew and warnings to the plan.
  RunPlan Finished(RunPlan plan) const {
    const KvRequest& kv = request_.kv;
    const KvMethod& method = plan.options.method;
    plan.reads_weights = plan.options.device == Device::kCpu && request_.device.reads_weights;
    plan.skew_file = kv.skew_file;
    plan.wants_skew = kv.selection().uses_basis;
    if (plan.options.forced_hits > 0 && !model_.is_random())
      plan.warnings.emplace_back(
          "--kv-force-hits: forced hits are never fetched, so the generated text is meaningless; only times are valid");
    if (kv.wants_hot_set() && method.selects() && plan.options.hot_rows == 0)
      plan.warnings.emplace_back("--kv-hot: too small for one selection of every sequence, so the hot set is off");
    return plan;
  }

 private:
  RunPlan At(int64_t tokens, int64_t batch, std::optional<uint64_t> kv_limit) const {
    ExecutorOptions options = options_;
    options.max_tokens = tokens;
    options.max_batch = batch;
    return PlanOptions(model_.config, weights_bytes_, options, kv_limit, available_, hot_);
  }

  const Model& model_;
  const RunRequest& request_;
  const ExecutorOptions& options_;
  uint64_t weights_bytes_ = 0, available_ = 0;
  HotSetRequest hot_;
};

// The plan at the requested context, or at the largest that fits if the context may shrink.
template <class Plan>
RunPlan WithContext(const RunRequest& request, Plan plan_at) {
  RunPlan plan = plan_at(request.max_tokens);
  const bool shrinks = request.least_tokens > 0 && plan.largest_context >= request.least_tokens;
  return plan.refusal.empty() || !shrinks ? plan : plan_at(plan.largest_context);
}

}  // namespace

RunPlan PlanOptions(const ModelConfig& config, uint64_t weights_bytes, const ExecutorOptions& asked,
                    std::optional<uint64_t> kv_limit, uint64_t available_bytes, const HotSetRequest& hot) {
  const Fit cold{config, weights_bytes, asked, kv_limit, available_bytes};
  ExecutorOptions options = asked;
  options.hot_rows = PlanHotSet(cold, hot);
  const Fit fit{config, weights_bytes, options, kv_limit, available_bytes};
  RunPlan plan{.options = options, .parts = fit.Limited(options.max_tokens), .available_bytes = available_bytes};
  const MemoryPlan& parts = plan.parts;
  plan.device_available_bytes = parts.has_device ? options.device_memory_bytes : 0;
  // The hot set shrinks when the context grows, so the largest context is computed without it.
  plan.largest_context = cold.LargestContext();
  plan.refusal = Refusal(fit, parts, plan.largest_context);

  const bool on_device = parts.has_device && parts.pool_on_device;
  const uint64_t fixed = on_device ? parts.device_bytes() - parts.pool_bytes + kGpuMarginBytes
                                   : parts.host_bytes() + parts.device_pool_bytes - parts.pool_bytes + kMarginBytes;
  const uint64_t room = on_device ? options.device_memory_bytes : available_bytes;
  // With a share, the limit is the sum of the shares of all sequences.
  const uint64_t free_bytes = (room > fixed ? room - fixed : 0) + parts.device_pool_bytes;
  plan.options.pool_limit_bytes = kv_limit.value_or(options.method.evicts() ? parts.pool_bytes : free_bytes);
  return plan;
}

Result<RunPlan> PlanRun(const Model& model, const RunRequest& request) {
  ASSIGN_OR_RETURN(const ExecutorOptions options, OptionsFor(model, request, /*serves=*/false));
  const Planner planner(model, request, options);
  const bool fixed = request.batch > 0;
  return planner.Finished(WithContext(request, [&](int64_t tokens) { return planner.Fitting(tokens, fixed); }));
}

Result<RunPlan> PlanServer(const Model& model, const RunRequest& request) {
  ASSIGN_OR_RETURN(const ExecutorOptions options, OptionsFor(model, request, /*serves=*/true));
  const Planner planner(model, request, options);
  const bool fixed = request.batch > 0;
  RunPlan plan =
      planner.Finished(WithContext(request, [&](int64_t tokens) { return planner.FittingShared(tokens, fixed); }));
  return plan.refusal.empty() ? WithPrefixes(std::move(plan)) : plan;
}

RunPlan WithPrefixes(RunPlan plan) {
  ExecutorOptions& options = plan.options;
  const MemoryPlan& parts = plan.parts;
  // Entries cannot be shared if they depend on evictions or on columns that one prompt chose.
  if (options.method.evicts() || options.method.prompt_columns) return plan;
  const uint64_t context = parts.pool_bytes_per_token * static_cast<uint64_t>(options.max_tokens) +
                           parts.sketch_bytes / static_cast<uint64_t>(options.max_batch);
  const uint64_t wanted = std::max(parts.pool_bytes / 2, context);
  options.pool_limit_bytes = std::min(options.pool_limit_bytes, parts.pool_bytes + wanted);
  plan.prefix_bytes = std::min(wanted, options.pool_limit_bytes);
  return plan;
}

RunPlan FullBeside(const Model& model, const RunPlan& plan) {
  RunPlan full = plan;
  full.options.method = {};
  full.options.pool_limit_bytes = UINT64_MAX;
  full.options.hot_rows = 0;
  full.options.forced_hits = 0;
  // Unquantised, so that the comparison includes the quantisation error.
  if (IsQuantised(full.options.kv_type)) full.options.kv_type = StoreTypeOf(model.dtype);
  full.parts = PlanMemory(model.config, full.options, 0);
  full.skew_file.clear();
  full.wants_skew = false;
  full.warnings.clear();
  return full;
}

RunPlan OnCpu(const RunPlan& plan) {
  RunPlan cpu = plan;
  cpu.options = {.device = Device::kCpu,
                 .threads = plan.options.threads,
                 .max_tokens = plan.options.max_tokens,
                 .max_batch = plan.options.max_batch,
                 .kv_type = plan.options.kv_type,
                 .method = plan.options.method};
  cpu.warnings.clear();
  return cpu;
}

}  // namespace infinigen
