// What a run reports, as the JSON that scripts depend on (runtime/describe.h has the words for people). Fields that a
// method does not have (alpha, cap, … of --kv full) are null. With the pool on the compute device nothing is fetched
// that could hit or miss: hit_ratio is null, and fetched_bytes counts what attention read from the pool. `kv.select`
// says what the run does: "all" also under infinigen, where the context is too short for anything to be left out.
#pragma once

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
  // One decode step of `tokens` sequences.
  void AddStep(double seconds, int64_t tokens) {
    decode_s += seconds;
    decode_tokens += tokens;
    step_ms.push_back(static_cast<float>(seconds * 1e3));
  }
  // What came after `before`, an earlier state of this.
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
  uint64_t bytes = 0;  // at the end of the run, before sequences gave theirs back
  uint64_t peak_bytes = 0;
};

double Mean(const std::vector<float>& values);                 // 0 when empty
double Percentile(std::vector<float> values, double percent);  // nearest rank; 0 when empty
std::string CsvField(std::string text);                        // in quotes where it needs them

nlohmann::ordered_json ModelJson(const Model& model);
nlohmann::ordered_json DeviceJson(Executor& executor);
nlohmann::ordered_json KvJson(const ExecutorOptions& options);
nlohmann::ordered_json TimingJson(const Timing& timing);
// What was asked for beside the usual: an entry for every layer, the share of true attention inside the selection.
struct StatsDetail {
  bool per_layer = false;
  bool mass_recall = false;
};
nlohmann::ordered_json KvStatsJson(const PoolUse& pool, const KvStats& stats, const StatsDetail& detail = {});
nlohmann::ordered_json MemoryJson(const DeviceUse& device = {});
nlohmann::ordered_json PlanJson(const RunPlan& plan);

// The object on one line. Text that is no UTF-8 (file names) is replaced, never an exception.
std::string Dump(const nlohmann::ordered_json& json);

// "cpu", "reference".
std::string BackendName(Device device);

}  // namespace infinigen
