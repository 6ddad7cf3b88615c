#include "runtime/describe.h"

#include <fmt/format.h>

#include <cmath>

#include "base/machine.h"
#include "base/size.h"
#include "model/cuda_executor.h"

namespace infinigen {

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
  if (parts.device_pool_bytes > 0)
    line("", parts.device_pool_bytes, "of the pool on the GPU: layers that are attended to whole");
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

std::string KvWords(const ExecutorOptions& options) {
  return fmt::format("--kv {}, {}", options.method.preset, Name(options.kv_type));
}

std::string DescribeMethod(const ExecutorOptions& options) {
  const KvMethod& method = options.method;
  const SelectRule& rule = method.rule;
  const std::string_view where = options.pool_on_device ? "in GPU memory" : "in host memory";
  std::string text;
  if (!method.evicts())
    text = fmt::format("every token's entries are kept {}", where);
  else if (method.limit.bytes > 0)
    text = fmt::format("entries are kept {} up to {} in all; beyond that {} decides which leave", where,
                       FormatSize(method.limit.bytes), method.retain->name);
  else
    text = fmt::format("{:.0f} % of the tokens' entries are kept {}; beyond that {} decides which leave",
                       100 * method.limit.share, where, method.retain->name);
  if (method.evicts() && method.dense_layers > 0)
    text += fmt::format(", except in {} dense layers", method.dense_layers);
  if (!method.selects()) return text + "; a step attends to all that are kept";
  const std::string what =
      method.select->page_rows > 1 ? fmt::format("pages of {}", method.select->page_rows) : std::string("entries");
  const std::string threshold =
      std::isfinite(rule.alpha) ? fmt::format(" with scores within {} of the best", rule.alpha) : std::string();
  return text + fmt::format(
                    "; a step attends to {}{}, at least {} and at most {:.0f} % of them, to {} sinks and a "
                    "window of {}",
                    what, threshold, rule.min_rows, 100 * rule.cap, rule.sinks, rule.window);
}

std::string AttendedWords(const KvStats& stats, const ExecutorOptions& options) {
  if (stats.steps == 0 || !options.method.selects()) return {};
  const LayerKvStats selecting = stats.Selecting();
  std::string text =
      fmt::format("attended to {:.1f} % of the cache (selected {:.1f} %, sinks and window {:.1f} %), {} read a step\n",
                  100 * stats.All().attended_ratio(), 100 * selecting.selected_ratio(), 100 * selecting.extra_ratio(),
                  FormatSize(stats.read_bytes / static_cast<uint64_t>(stats.steps)));
  if (selecting.mass.count > 0)
    text += fmt::format("of the true attention, {:.1f} % lay inside (5th percentile {:.1f} %)\n",
                        100 * MeanShare(selecting.mass), 100 * SharePercentile(selecting.mass, 5));
  return text;
}

std::string StatisticsLines(const Timing& timing, int64_t generated, const PoolUse& pool, const KvStats& stats,
                            const ExecutorOptions& options) {
  std::string text = fmt::format("prompt {} tokens, {:.1f} tok/s; generated {} tokens", timing.prefill_tokens,
                                 timing.prefill_rate(), generated);
  if (!timing.step_ms.empty())
    text += fmt::format(", {:.1f} tok/s ({:.2f} ms a step, p99 {:.2f})", timing.decode_rate(), Mean(timing.step_ms),
                        Percentile(timing.step_ms, 99));
  text += fmt::format("\nmemory {} at most, KV pool {} ({}), {} thread{}\n", FormatSize(PeakResidentBytes()),
                      FormatSize(pool.peak_bytes), KvWords(options), options.threads, options.threads == 1 ? "" : "s");
  return text + AttendedWords(stats, options);
}

std::string LayerTable(const KvStats& stats) {
  const bool mass = stats.All().mass.count > 0;
  std::string text = fmt::format("| layer | selected | extra | attended |{}\n|--:|--:|--:|--:|{}\n",
                                 mass ? " mass recall | 5th percentile |" : "", mass ? "--:|--:|" : "");
  for (size_t layer = 0; layer < stats.layers.size(); ++layer) {
    const LayerKvStats& of = stats.layers[layer];
    text += fmt::format("| {} | {:.1f} % | {:.1f} % | {:.1f} % |", layer, 100 * of.selected_ratio(),
                        100 * of.extra_ratio(), 100 * of.attended_ratio());
    if (mass) {
      text += of.mass.count > 0
                  ? fmt::format(" {:.1f} % | {:.1f} % |", 100 * MeanShare(of.mass), 100 * SharePercentile(of.mass, 5))
                  : std::string(" all | all |");
    }
    text += "\n";
  }
  return text;
}

}  // namespace infinigen
