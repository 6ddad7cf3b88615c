// Reports of a run, in two forms: the JSON that scripts depend on, and lines of text for people. Also the values that
// both are made from: Timing and PoolUse.
//
// JSON fields that a method does not have (alpha, cap, … of --kv full) are null. When the pool is on the compute
// device, nothing is fetched: hit_ratio is null, and fetched_bytes counts the bytes that attention read from the pool.
// `kv.select` states what the run really does: it is "all" even under --kv infinigen when the context is so short that
// every entry is attended to.
#pragma once

#include <chrono>
#include <cstdint>
#include <iterator>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "kv/stats.h"
#include "model/executor.h"
#include "runtime/model.h"
#include "runtime/plan.h"

namespace infinigen {

// ---- measured values ----

using Clock = std::chrono::steady_clock;

// Wall time that has passed since `since`.
inline double Seconds(Clock::time_point since) { return std::chrono::duration<double>(Clock::now() - since).count(); }

struct Timing {
  double load_s = 0;
  int64_t prefill_tokens = 0;
  double prefill_s = 0;
  int64_t decode_tokens = 0;
  double decode_s = 0;
  std::vector<float> step_ms;  // one per decode step

  double prefill_rate() const { return prefill_s > 0 ? static_cast<double>(prefill_tokens) / prefill_s : 0; }
  double decode_rate() const { return decode_s > 0 ? static_cast<double>(decode_tokens) / decode_s : 0; }
  void AddPrefill(double seconds, int64_t tokens) {
    prefill_s += seconds;
    prefill_tokens += tokens;
  }
  // Adds one decode step of `tokens` sequences.
  void AddStep(double seconds, int64_t tokens) {
    decode_s += seconds;
    decode_tokens += tokens;
    step_ms.push_back(static_cast<float>(seconds * 1e3));
  }
  // The part that was added after `before`, an earlier copy of this object.
  Timing Since(const Timing& before) const {
    return {.load_s = load_s,
            .prefill_tokens = prefill_tokens - before.prefill_tokens,
            .prefill_s = prefill_s - before.prefill_s,
            .decode_tokens = decode_tokens - before.decode_tokens,
            .decode_s = decode_s - before.decode_s,
            .step_ms = {step_ms.begin() + std::ssize(before.step_ms), step_ms.end()}};
  }
};

struct PoolUse {
  uint64_t bytes = 0;  // at the end of the run, before the sequences were released
  uint64_t peak_bytes = 0;
};

double Mean(const std::vector<float>& values);                 // 0 when empty
double Percentile(std::vector<float> values, double percent);  // nearest rank; 0 when empty

// ---- JSON and CSV ----

nlohmann::ordered_json ModelJson(const Model& model);
nlohmann::ordered_json DeviceJson(Executor& executor);
nlohmann::ordered_json KvJson(const ExecutorOptions& options);
nlohmann::ordered_json TimingJson(const Timing& timing);
// Optional parts of kv_stats.
struct StatsDetail {
  bool per_layer = false;    // an entry for every layer
  bool mass_recall = false;  // the share of true attention inside the selection
};
nlohmann::ordered_json KvStatsJson(const PoolUse& pool, const KvStats& stats, const StatsDetail& detail = {});
nlohmann::ordered_json MemoryJson(const DeviceUse& device = {});
nlohmann::ordered_json PlanJson(const RunPlan& plan);

// The object on one line, with a line end. Bytes that are not UTF-8 (in file names) are replaced; it never throws.
std::string Dump(const nlohmann::ordered_json& json);
// `text` as a CSV field, quoted if necessary.
std::string CsvField(std::string text);
// "cpu", "reference".
std::string BackendName(Device device);

// ---- text for people; several lines with line ends unless stated otherwise ----

// The memory plan, one line for each part.
std::string DescribePlan(const ModelConfig& config, const RunPlan& plan);

// "--kv infinigen, bf16", without a line end.
std::string KvWords(const ExecutorOptions& options);
// What the method retains, where, and what a step attends to: one sentence without a line end.
std::string DescribeMethod(const ExecutorOptions& options);

// Speed, memory and attended share. `generated` counts all new tokens, including the first of each sequence, which its
// prefill produces.
std::string StatisticsLines(const Timing& timing, int64_t generated, const PoolUse& pool, const KvStats& stats,
                            const ExecutorOptions& options);
// The attended share of the cache. Empty before the first step and for methods that attend to everything.
std::string AttendedWords(const KvStats& stats, const ExecutorOptions& options);
// A Markdown table with one line per layer.
std::string LayerTable(const KvStats& stats);

}  // namespace infinigen
