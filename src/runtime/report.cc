#include "runtime/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "base/machine.h"
#include "base/size.h"
#include "model/cuda_executor.h"

namespace infinigen {
namespace {

using Json = nlohmann::ordered_json;

// A rate or mean without measurements is null, not 0.
Json OrNull(bool known, Json value) { return known ? std::move(value) : Json(nullptr); }

// The number as the user wrote it, not the nearest float: 0.2, not 0.200000003.
double Tidy(float value) { return std::strtod(fmt::format("{}", value).c_str(), nullptr); }

// As --kv-sketch takes it: 56x4, 48x4/16.
std::string SketchName(const SketchLayout& sketch) {
  const int bits = sketch.type == SketchType::kBF16 ? 16 : sketch.type == SketchType::kInt8 ? 8 : 4;
  return fmt::format("{}x{}", sketch.dims, bits) +
         (sketch.scale_dims > 0 ? fmt::format("/{}", sketch.scale_dims) : std::string());
}

// Adds what is known of the attention inside and outside the selections of one layer, or of all.
void AddMass(const LayerKvStats& of, Json& json) {
  if (of.tail_mass.count > 0)
    json["tail_mass"] = {{"mean", MeanShare(of.tail_mass)}, {"p95", SharePercentile(of.tail_mass, 95)}};
  if (of.mass.count > 0) json["mass_recall"] = {{"mean", MeanShare(of.mass)}, {"p5", SharePercentile(of.mass, 5)}};
  if (of.compares_missed())
    json["missed_mass"] = {{"estimated", MeanShare(of.tail_mass)}, {"true", 1 - MeanShare(of.mass)}};
}

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

std::string CsvField(std::string text) {
  if (text.find_first_of(",\"\r\n") == std::string::npos) return text;
  for (size_t at = 0; (at = text.find('"', at)) != std::string::npos; at += 2) text.insert(at, 1, '"');
  return fmt::format("\"{}\"", text);
}

std::string BackendName(Device device) {
  return device == Device::kReference ? "reference" : device == Device::kCuda ? "cuda" : "cpu";
}

Json ModelJson(const Model& model) {
  return {{"name", model.config.name},
          {"arch", model.config.family_name()},
          {"params", ParameterCount(model.config)},
          {"dtype", Name(model.weight_type)}};
}

Json DeviceJson(Executor& executor) {
  return {{"name", executor.instruments().device_name()},
          {"backend", BackendName(executor.options().device)},
          {"threads", executor.options().threads}};
}

Json KvJson(const ExecutorOptions& options) {
  const KvMethod& method = options.method;
  // A selecting method reports its parameters even if the context is so short that nothing is selected.
  const bool attends_all = !method.selects();
  const bool stores = method.preset == "full" || method.preset == "int8" || method.preset == "int4";
  const bool selects = !attends_all || !stores;
  const bool sketches = method.select->uses_basis || (attends_all && method.preset == "infinigen");
  const bool threshold = std::isfinite(method.rule.alpha);
  Json json = {{"preset", method.preset},
               {"alpha", OrNull(selects, threshold ? Json(Tidy(method.rule.alpha)) : Json("inf"))},
               {"cap", OrNull(selects, method.rule.cap)},
               {"ratio", OrNull(sketches, method.ratio)},
               {"from", OrNull(selects, Name(method.from))},
               {"evict", options.method.evicts() ? options.method.retain->name : "none"},
               {"limit_bytes", options.pool_limit_bytes},
               {"type", Name(options.kv_type)},
               {"home", options.pool_on_device ? "device" : "host"},
               {"select", method.select->name}};
  if (!selects) return json;
  json.update({{"min", method.rule.min_rows},
               {"sinks", method.rule.sinks},
               {"window", method.rule.window},
               {"dense_layers", method.dense_layers},
               {"counts", method.mean_counts ? "mean" : "ragged"}});
  if (sketches)
    json.update({{"tail", method.rule.tail},
                 {"mass", OrNull(method.rule.mass > 0, Tidy(method.rule.mass))},
                 {"late", method.has_late() ? method.rule.late : 0},
                 {"sketch", SketchName(method.sketch)},
                 {"value_dims", method.sketch.value_dims},
                 {"whole_rows", method.rule.whole_rows},
                 {"sketch_type", Name(method.sketch.type)},
                 {"sketch_dims", method.sketch.dims},
                 {"projection", Name(method.projection)},
                 {"columns", method.prompt_columns ? "prompt" : "fixed"}});
  if (method.select->page_rows > 1) json["page"] = method.select->page_rows;
  if (method.rule.force_count > 0) json["force_count"] = method.rule.force_count;
  if (options.forced_hits > 0) json["forced_hits"] = options.forced_hits;
  if (options.hot_rows > 0) json["hot_rows"] = options.hot_rows;
  return json;
}

Json TimingJson(const Timing& timing) {
  const bool steps = !timing.step_ms.empty();
  return {{"load_s", timing.load_s},
          {"prefill_s", timing.prefill_s},
          {"prefill_tok_s", OrNull(timing.prefill_s > 0, timing.prefill_rate())},
          {"decode_s", timing.decode_s},
          {"decode_tok_s", OrNull(timing.decode_s > 0, timing.decode_rate())},
          {"decode_step_ms_mean", OrNull(steps, Mean(timing.step_ms))},
          {"decode_step_ms_p99", OrNull(steps, Percentile(timing.step_ms, 99))},
          {"decode_step_ms_median", OrNull(steps, Percentile(timing.step_ms, 50))}};
}

Json KvStatsJson(const PoolUse& pool, const KvStats& stats, const StatsDetail& detail) {
  const LayerKvStats selecting = stats.Selecting(), all = stats.All();
  const uint64_t rows = stats.entry_row_bytes > 0 ? pool.peak_bytes / stats.entry_row_bytes : 0;
  Json json = {
      {"selected_ratio", selecting.selected_ratio()},
      {"extra_ratio", selecting.extra_ratio()},
      {"attended_ratio", all.attended_ratio()},
      {"fetched_bytes", stats.fetched_bytes},
      {"fetched_bytes_per_step", stats.steps > 0 ? stats.fetched_bytes / static_cast<uint64_t>(stats.steps) : 0},
      {"hit_ratio", OrNull(stats.fetches, stats.hit_ratio())},
      {"fetch_stall_s", static_cast<double>(stats.stall_ns) * 1e-9},
      {"evicted", stats.evicted},
      {"pool_bytes", pool.bytes},
      {"pool_peak_bytes", pool.peak_bytes},
      {"sketch_bytes", rows * stats.sketch_row_bytes},
      {"hot_bytes", stats.hot_bytes}};
  // A step that attends to everything has recall 1.
  const Json whole = OrNull(stats.steps > 0, 1.0);
  if (selecting.totals.late > 0) json["late_ratio"] = selecting.late_ratio();
  AddMass(selecting, json);
  if (selecting.mass.count == 0 && detail.mass_recall) json["mass_recall"] = {{"mean", whole}, {"p5", whole}};
  if (!detail.per_layer) return json;
  json["layers"] = Json::array();
  for (size_t layer = 0; layer < stats.layers.size(); ++layer) {
    const LayerKvStats& of = stats.layers[layer];
    Json& entry = json["layers"].emplace_back(Json{{"layer", layer},
                                                   {"selects", of.selects},
                                                   {"selected_ratio", of.selected_ratio()},
                                                   {"extra_ratio", of.extra_ratio()},
                                                   {"attended_ratio", of.attended_ratio()}});
    if (of.totals.late > 0) entry["late_ratio"] = of.late_ratio();
    AddMass(of, entry);
  }
  return json;
}

Json MemoryJson(const DeviceUse& device) {
  Json json = {{"host_peak_bytes", PeakResidentBytes()}, {"device_peak_bytes", device.peak_bytes}};
  if (device.pinning_s > 0) json["pinning_s"] = device.pinning_s;
  return json;
}

Json PlanJson(const RunPlan& plan) {
  const MemoryPlan& parts = plan.parts;
  return {{"context", plan.options.max_tokens},
          {"batch", plan.options.max_batch},
          {"weights_bytes", parts.weights_bytes},
          {"sketch_bytes", parts.sketch_bytes},
          {"hot_bytes", parts.hot_bytes},
          {"pool_bytes", parts.pool_bytes},
          {"pool_bytes_per_token", parts.pool_bytes_per_token},
          {"workspace_bytes", parts.workspace_bytes},
          {"prefill_bytes", parts.prefill_bytes},
          {"stage_bytes", parts.stage_bytes},
          {"driver_bytes", parts.driver_bytes},
          {"device_bytes", parts.device_bytes()},
          {"host_bytes", parts.host_bytes()},
          {"device_available_bytes", plan.device_available_bytes},
          {"total_bytes", parts.total_bytes()},
          {"available_bytes", plan.available_bytes},
          {"margin_bytes", kMarginBytes},
          {"largest_context", plan.largest_context},
          {"fits", plan.refusal.empty()}};
}

std::string Dump(const Json& json) { return json.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n"; }

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
  if (parts.device_pool_bytes > 0) line("", parts.device_pool_bytes, "of the pool are on the GPU: the dense layers");
  if (plan.prefix_bytes > 0)
    line("prefixes", plan.extra_prefix_bytes(),
         fmt::format("prefix cache, at most {}{}", FormatSize(plan.prefix_bytes),
                     plan.extra_prefix_bytes() < plan.prefix_bytes ? "; the rest is free pool memory" : ""));
  if (gpu) line("stages", parts.stage_bytes, "");
  if (gpu) line("logits", parts.sampling_bytes, "on the host");
  if (gpu) line("driver", parts.driver_bytes, "on the host, with libraries");
  line("workspace", parts.workspace_bytes, "");
  const int64_t side = options.planned_side_tokens();
  line("prefill", parts.prefill_bytes,
       side > 0 ? fmt::format("one prompt, and a second of up to {} tokens", side) : "");
  const uint64_t extra = plan.extra_prefix_bytes();
  line("total", parts.total_bytes() + extra, "");
  if (gpu) {
    line("on GPU", parts.device_bytes() + (parts.pool_on_device ? extra : 0),
         fmt::format("of {} that may be used, of which {} are for driver and libraries",
                     FormatSize(options.device_memory_bytes), FormatSize(kGpuMarginBytes)));
    line("on host", parts.host_bytes() + (parts.pool_on_device ? 0 : extra), "");
  }
  line("available", plan.available_bytes,
       fmt::format("{}of which {} stay free", gpu ? "on the host, " : "", FormatSize(kMarginBytes)));
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
    text = fmt::format("the entries of all tokens are retained {}", where);
  else if (method.limit.bytes > 0)
    text = fmt::format("up to {} of entries are retained {}; {} decides which entry is evicted",
                       FormatSize(method.limit.bytes), where, method.retain->name);
  else
    text = fmt::format("the entries of {:.0f} % of the tokens are retained {}; {} decides which entry is evicted",
                       100 * method.limit.share, where, method.retain->name);
  if (method.evicts() && method.dense_layers > 0)
    text += fmt::format(", except in {} dense layers", method.dense_layers);
  if (!method.selects()) return text + "; a step attends to all of them";
  const std::string what =
      method.select->page_rows > 1 ? fmt::format("pages of {}", method.select->page_rows) : std::string("entries");
  const std::string threshold =
      std::isfinite(rule.alpha) ? fmt::format(" with scores within {} of the best", rule.alpha) : std::string();
  return text +
         fmt::format("; a step attends to {}{} (at least {}, at most {:.0f} %), {} sinks and a window of {} tokens",
                     what, threshold, rule.min_rows, 100 * rule.cap, rule.sinks, rule.window);
}

std::string AttendedWords(const KvStats& stats, const ExecutorOptions& options) {
  if (stats.steps == 0 || !options.method.selects()) return {};
  const LayerKvStats selecting = stats.Selecting();
  std::string text = fmt::format(
      "attended to {:.1f} % of the cache (selected {:.1f} %{}, sinks and window {:.1f} %), {} read per step\n",
      100 * stats.All().attended_ratio(), 100 * selecting.selected_ratio(),
      selecting.totals.late > 0 ? fmt::format(", of these {:.1f} % late", 100 * selecting.late_ratio()) : std::string(),
      100 * selecting.extra_ratio(), FormatSize(stats.read_bytes / static_cast<uint64_t>(stats.steps)));
  if (selecting.mass.count > 0)
    text += fmt::format("{:.1f} % of the true attention was inside the selection (5th percentile {:.1f} %)\n",
                        100 * MeanShare(selecting.mass), 100 * SharePercentile(selecting.mass, 5));
  if (selecting.tail_mass.count > 0)
    text += fmt::format(
        "{:.1f} % of the attention, by estimate, was outside the selection (95th percentile {:.1f} %): the tail\n",
        100 * MeanShare(selecting.tail_mass), 100 * SharePercentile(selecting.tail_mass, 95));
  if (selecting.compares_missed())
    text += fmt::format("outside the selection: {:.2f} % of the attention by estimate, {:.2f} % in truth\n",
                        100 * MeanShare(selecting.tail_mass), 100 * (1 - MeanShare(selecting.mass)));
  return text;
}

std::string StatisticsLines(const Timing& timing, int64_t generated, const PoolUse& pool, const KvStats& stats,
                            const ExecutorOptions& options) {
  std::string text = fmt::format("prompt {} tokens, {:.1f} tok/s; generated {} tokens", timing.prefill_tokens,
                                 timing.prefill_rate(), generated);
  if (!timing.step_ms.empty())
    text += fmt::format(", {:.1f} tok/s ({:.2f} ms per step, p99 {:.2f})", timing.decode_rate(), Mean(timing.step_ms),
                        Percentile(timing.step_ms, 99));
  text += fmt::format("\nmemory peak {}, KV pool {} ({}), {} thread{}\n", FormatSize(PeakResidentBytes()),
                      FormatSize(pool.peak_bytes), KvWords(options), options.threads, options.threads == 1 ? "" : "s");
  return text + AttendedWords(stats, options);
}

std::string LayerTable(const KvStats& stats) {
  const bool mass = stats.All().mass.count > 0, missed = stats.All().compares_missed();
  std::string text =
      fmt::format("| layer | selected | extra | attended |{}{}\n|--:|--:|--:|--:|{}{}\n",
                  mass ? " mass recall | 5th percentile |" : "", missed ? " missed, estimated | missed, true |" : "",
                  mass ? "--:|--:|" : "", missed ? "--:|--:|" : "");
  for (size_t layer = 0; layer < stats.layers.size(); ++layer) {
    const LayerKvStats& of = stats.layers[layer];
    text += fmt::format("| {} | {:.1f} % | {:.1f} % | {:.1f} % |", layer, 100 * of.selected_ratio(),
                        100 * of.extra_ratio(), 100 * of.attended_ratio());
    if (mass) {
      text += of.mass.count > 0
                  ? fmt::format(" {:.1f} % | {:.1f} % |", 100 * MeanShare(of.mass), 100 * SharePercentile(of.mass, 5))
                  : std::string(" all | all |");
    }
    if (missed) {
      text += of.compares_missed()
                  ? fmt::format(" {:.2f} % | {:.2f} % |", 100 * MeanShare(of.tail_mass), 100 * (1 - MeanShare(of.mass)))
                  : std::string(" none | none |");
    }
    text += "\n";
  }
  return text;
}

}  // namespace infinigen
