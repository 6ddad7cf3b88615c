#include "cli/memory_plan.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/machine.h"
#include "base/size.h"
#include "model/cuda_executor.h"

namespace infinigen {
namespace {

// Beside the executor, each running sequence has a row of logits in the engine (4 bytes each) and a sampler that sorts
// them (16).
constexpr uint64_t kHostBytesPerLogit = 20;

// The question "does it fit" for one set of options, asked at any context.
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
  // A pool with a limit is no larger than it: sequences then wait for each other.
  MemoryPlan Limited(int64_t tokens) const {
    MemoryPlan parts = Parts(tokens, options.max_batch);
    if (kv_limit) parts.pool_bytes = std::min(parts.pool_bytes, *kv_limit);
    parts.near_pool_bytes = std::min(parts.near_pool_bytes, parts.pool_bytes);
    return parts;
  }
  uint64_t OneSequence(int64_t tokens) const { return Parts(tokens, 1).pool_bytes; }
  // Sequences that evict have their quotas all at once.
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
    int64_t low = 0;  // fits, or is 0
    int64_t high = config.positions == PositionKind::kLearned ? config.max_positions : kMaxContext;
    while (low < high) {  // everything above high does not fit
      const int64_t middle = low + (high - low + 1) / 2;
      if (LimitHolds(middle) && MemoryHolds(middle))
        low = middle;
      else
        high = middle - 1;
    }
    return low;
  }
};

// Entries stay on the GPU as far as its memory goes, and as they are wanted there.
int64_t PlanHotSet(const Fit& fit) {
  const ExecutorOptions& options = fit.options;
  if (options.device != Device::kCuda || options.hot_limit_bytes == 0) return 0;
  const MemoryPlan without = fit.Limited(options.max_tokens);
  const uint64_t taken = without.device_bytes() + kGpuMarginBytes;
  const uint64_t left = options.device_memory_bytes > taken ? options.device_memory_bytes - taken : 0;
  return HotRows(fit.config, options, std::min(left, options.hot_limit_bytes));
}

}  // namespace

RunPlan PlanRun(const ModelConfig& config, uint64_t weights_bytes, const ExecutorOptions& asked,
                std::optional<uint64_t> kv_limit, uint64_t available_bytes) {
  ExecutorOptions options = asked;
  options.method.hot_rows = PlanHotSet({config, weights_bytes, options, kv_limit, available_bytes});
  const Fit fit{config, weights_bytes, options, kv_limit, available_bytes};
  RunPlan plan{.options = options, .parts = fit.Limited(options.max_tokens), .available_bytes = available_bytes};
  plan.device_available_bytes = plan.parts.has_device ? options.device_memory_bytes : 0;
  // A hot set is made of what is left: a longer context shrinks it.
  ExecutorOptions cold = options;
  cold.method.hot_rows = 0;
  plan.largest_context = Fit{config, weights_bytes, cold, kv_limit, available_bytes}.LargestContext();
  const MemoryPlan& parts = plan.parts;
  const bool near = parts.has_device && parts.pool_on_device;
  const uint64_t fixed = near ? parts.device_bytes() - parts.pool_bytes + kGpuMarginBytes
                              : parts.host_bytes() + parts.near_pool_bytes - parts.pool_bytes + kMarginBytes;
  const uint64_t room = near ? options.device_memory_bytes : available_bytes;
  // A share is a share of every sequence, and the sum of those is the limit.
  const uint64_t free_bytes = (room > fixed ? room - fixed : 0) + parts.near_pool_bytes;
  plan.options.pool_limit_bytes = kv_limit.value_or(options.method.evicts() ? parts.pool_bytes : free_bytes);

  const std::string advice = plan.largest_context > 0 ? fmt::format("the largest context that fits at batch {} is {}",
                                                                    options.max_batch, plan.largest_context)
                                                      : fmt::format("no context fits at batch {}", options.max_batch);
  if (!fit.LimitHolds(options.max_tokens) && options.method.evicts())
    plan.refusal =
        fmt::format("--kv-limit {} for {} sequences of {} tokens does not leave each a row in every layer; {}",
                    FormatSize(*kv_limit), options.method.limit.sequences, options.max_tokens, advice);
  else if (!fit.LimitHolds(options.max_tokens))
    plan.refusal =
        fmt::format("--kv-limit {} does not hold a sequence of {} tokens, which takes {}; {}", FormatSize(*kv_limit),
                    options.max_tokens, FormatSize(fit.OneSequence(options.max_tokens)),
                    advice + ", or let entries leave by --kv-evict");
  else if (!fit.DeviceHolds(options.max_tokens))
    plan.refusal = fmt::format(
        "not enough GPU memory: weights {} + {}sketches {} + stages {} + hot set {} + workspace {} + prefill {} + "
        "margin {} exceed the {} that may be used; {}",
        FormatSize(parts.weights_bytes - parts.host_weights_bytes),
        near ? fmt::format("pool {} ({} tokens x {}) + ", FormatSize(parts.pool_bytes), options.max_tokens,
                           options.max_batch)
        : parts.near_pool_bytes > 0 ? fmt::format("entries of dense layers {} + ", FormatSize(parts.near_pool_bytes))
                                    : "",
        FormatSize(parts.sketch_bytes), FormatSize(parts.stage_bytes), FormatSize(parts.hot_bytes),
        FormatSize(parts.workspace_bytes), FormatSize(parts.prefill_bytes), FormatSize(kGpuMarginBytes),
        FormatSize(options.device_memory_bytes), advice);
  else if (!fit.HostHolds(options.max_tokens) && parts.has_device)
    plan.refusal = fmt::format(
        "not enough host memory: pool {} ({} tokens x {}) + weights {} + logits {} + margin {} exceed the {} "
        "available; {}",
        FormatSize(near ? 0 : parts.pool_bytes), options.max_tokens, options.max_batch,
        FormatSize(parts.host_weights_bytes), FormatSize(parts.sampling_bytes), FormatSize(kMarginBytes),
        FormatSize(available_bytes), advice);
  else if (!fit.HostHolds(options.max_tokens))
    plan.refusal = fmt::format(
        "not enough memory: weights {} + pool {} ({} tokens x {}) + sketches {} + workspace {} + prefill {} + margin "
        "{} exceed the {} available; {}",
        FormatSize(parts.weights_bytes), FormatSize(parts.pool_bytes), options.max_tokens, options.max_batch,
        FormatSize(parts.sketch_bytes), FormatSize(parts.workspace_bytes), FormatSize(parts.prefill_bytes),
        FormatSize(kMarginBytes), FormatSize(available_bytes), advice);
  return plan;
}

RunPlan PlanRunHere(const Model& model, ExecutorOptions options, std::optional<uint64_t> kv_limit, bool fixed_batch) {
  const uint64_t weights_bytes = static_cast<uint64_t>(model.weights.TotalBytes());
  uint64_t available = AvailableHostMemory().value_or(UINT64_MAX / 2);
  // Random weights are allocated already, so they are no longer part of what is available.
  if (model.weights.storage->source == nullptr && options.device != Device::kCuda) available += weights_bytes;
  RunPlan plan = PlanRun(model.config, weights_bytes, options, kv_limit, available);
  while (!plan.refusal.empty() && !fixed_batch && options.max_batch > 1) {
    --options.max_batch;
    plan = PlanRun(model.config, weights_bytes, options, kv_limit, available);
  }
  return plan;
}

void PlanPrefixes(RunPlan* plan) {
  ExecutorOptions& options = plan->options;
  const MemoryPlan& parts = plan->parts;
  if (options.method.evicts() || options.method.prompt_columns) return;  // such entries are nobody else's
  const uint64_t context = parts.pool_bytes_per_token * static_cast<uint64_t>(options.max_tokens) +
                           parts.sketch_bytes / static_cast<uint64_t>(options.max_batch);
  const uint64_t wanted = std::max(parts.pool_bytes / 2, context);
  options.pool_limit_bytes = std::min(options.pool_limit_bytes, parts.pool_bytes + wanted);
  plan->prefix_bytes = std::min(wanted, options.pool_limit_bytes);
}

std::string DescribePlan(const ModelConfig& config, const RunPlan& plan) {
  const ExecutorOptions& options = plan.options;
  std::string text = fmt::format("memory plan: {}, context {} tokens, batch {}, --kv {}, entries in {}\n", config.name,
                                 options.max_tokens, options.max_batch, options.method.preset, Name(options.kv_type));
  const auto line = [&](std::string_view name, uint64_t bytes, const std::string& note) {
    text += fmt::format("  {:<10}{:>12}{}{}\n", name, FormatSize(bytes), note.empty() ? "" : "   ", note);
  };
  const MemoryPlan& parts = plan.parts;
  const bool gpu = parts.has_device;
  const std::string per_token = fmt::format("{} per token", FormatSize(parts.pool_bytes_per_token));
  line("weights", parts.weights_bytes,
       parts.host_weights_bytes > 0 ? fmt::format("{} of them on the host", FormatSize(parts.host_weights_bytes)) : "");
  line("sketches", parts.sketch_bytes, "");
  line("hot set", parts.hot_bytes, "");
  line("pool", parts.pool_bytes,
       !gpu ? per_token : fmt::format("{}, {}", per_token, parts.pool_on_device ? "on the GPU" : "on the host"));
  if (parts.near_pool_bytes > 0)
    line("", parts.near_pool_bytes, "of the pool on the GPU: layers that are attended to whole");
  if (plan.prefix_bytes > 0)
    line("prefixes", plan.extra_prefix_bytes(),
         fmt::format("of at most {} for what prompts begin with{}", FormatSize(plan.prefix_bytes),
                     plan.extra_prefix_bytes() < plan.prefix_bytes ? "; the rest where the pool is free" : ""));
  if (gpu) line("stages", parts.stage_bytes, "");
  if (gpu) line("logits", parts.sampling_bytes, "on the host");
  line("workspace", parts.workspace_bytes, "");
  const int64_t side = options.planned_side_tokens();
  line("prefill", parts.prefill_bytes,
       side > 0 ? fmt::format("a prompt, and one of up to {} tokens beside it", side) : "");
  const uint64_t extra = plan.extra_prefix_bytes();
  line("total", parts.total_bytes() + extra, "");
  if (gpu) {
    line("on GPU", parts.device_bytes() + (parts.pool_on_device ? extra : 0),
         fmt::format("of {} that may be used, {} of them for driver and libraries",
                     FormatSize(options.device_memory_bytes), FormatSize(kGpuMarginBytes)));
    line("on host", parts.host_bytes() + (parts.pool_on_device ? 0 : extra), "");
  }
  line("available", plan.available_bytes,
       fmt::format("{}of which {} are kept free", gpu ? "on the host, " : "", FormatSize(kMarginBytes)));
  text += fmt::format("largest context that fits at batch {}: {} tokens (the model was made for {})\n",
                      options.max_batch, plan.largest_context, config.max_positions);
  return text;
}

}  // namespace infinigen
