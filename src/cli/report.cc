#include "cli/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/machine.h"
#include "base/size.h"

namespace infinigen {
namespace {

using Json = nlohmann::ordered_json;

// A rate or a mean of nothing is unknown, not 0.
Json OrNull(bool known, double value) { return known ? Json(value) : Json(nullptr); }

}  // namespace

double Mean(const std::vector<float>& values) {
  double sum = 0;
  for (const float value : values) sum += value;
  return values.empty() ? 0 : sum / static_cast<double>(values.size());
}

double Percentile(std::vector<float> values, double percent) {
  if (values.empty()) return 0;
  const double rank = std::ceil(percent / 100 * static_cast<double>(values.size()));
  const auto nth = values.begin() + static_cast<ptrdiff_t>(std::max(rank, 1.0)) - 1;
  std::nth_element(values.begin(), nth, values.end());
  return *nth;
}

std::string BackendName(Device device) { return device == Device::kReference ? "reference" : "cpu"; }

Json ModelJson(const Model& model) {
  return {{"name", model.config.name},
          {"arch", Name(model.config.architecture)},
          {"params", ParameterCount(model.config)},
          {"dtype", Name(model.dtype)}};
}

Json DeviceJson(const Executor& executor) {
  return {{"name", executor.device_name()},
          {"backend", BackendName(executor.options().device)},
          {"threads", executor.options().threads}};
}

Json KvJson(const ExecutorOptions& options) {
  return {{"preset", "full"},
          {"alpha", nullptr},
          {"cap", nullptr},
          {"ratio", nullptr},
          {"from", nullptr},
          {"evict", "none"},
          {"limit_bytes", options.pool_limit_bytes},
          {"type", Name(options.kv_type)},
          {"home", "host"}};
}

Json TimingJson(const Timing& timing) {
  const bool steps = !timing.step_ms.empty();
  return {{"load_s", timing.load_s},
          {"prefill_s", timing.prefill_s},
          {"prefill_tok_s", OrNull(timing.prefill_s > 0, timing.prefill_rate())},
          {"decode_s", timing.decode_s},
          {"decode_tok_s", OrNull(timing.decode_s > 0, timing.decode_rate())},
          {"decode_step_ms_mean", OrNull(steps, Mean(timing.step_ms))},
          {"decode_step_ms_p99", OrNull(steps, Percentile(timing.step_ms, 99))}};
}

Json KvStatsJson(const PoolUse& pool) {
  return {{"selected_ratio", 1.0},
          {"extra_ratio", 0.0},
          {"attended_ratio", 1.0},
          {"fetched_bytes", 0},
          {"fetched_bytes_per_step", 0},
          {"hit_ratio", nullptr},
          {"evicted", 0},
          {"pool_bytes", pool.bytes},
          {"pool_peak_bytes", pool.peak_bytes},
          {"sketch_bytes", 0},
          {"hot_bytes", 0}};
}

Json MemoryJson() { return {{"host_peak_bytes", PeakResidentBytes()}, {"device_peak_bytes", 0}}; }

Json PlanJson(const RunPlan& plan) {
  const MemoryPlan& parts = plan.parts;
  return {{"context", plan.options.max_tokens},
          {"batch", plan.options.max_batch},
          {"weights_bytes", parts.weights_bytes},
          {"sketch_bytes", 0},
          {"hot_bytes", 0},
          {"pool_bytes", parts.pool_bytes},
          {"pool_bytes_per_token", parts.pool_bytes_per_token},
          {"workspace_bytes", parts.workspace_bytes},
          {"prefill_bytes", parts.prefill_bytes},
          {"total_bytes", parts.total_bytes()},
          {"available_bytes", plan.available_bytes},
          {"margin_bytes", kMarginBytes},
          {"largest_context", plan.largest_context},
          {"fits", plan.refusal.empty()}};
}

std::string Dump(const Json& json) { return json.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n"; }

std::string StatisticsLines(const Timing& timing, int64_t generated, const PoolUse& pool,
                            const ExecutorOptions& options) {
  std::string text = fmt::format("prompt {} tokens, {:.1f} tok/s; generated {} tokens", timing.prefill_tokens,
                                 timing.prefill_rate(), generated);
  if (!timing.step_ms.empty())
    text += fmt::format(", {:.1f} tok/s ({:.2f} ms a step, p99 {:.2f})", timing.decode_rate(), Mean(timing.step_ms),
                        Percentile(timing.step_ms, 99));
  text +=
      fmt::format("\nmemory {} at most, KV pool {} (--kv full, {}), {} thread{}\n", FormatSize(PeakResidentBytes()),
                  FormatSize(pool.peak_bytes), Name(options.kv_type), options.threads, options.threads == 1 ? "" : "s");
  return text;
}

}  // namespace infinigen
