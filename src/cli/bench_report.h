// What `bench` measured, and how it says so: Markdown for people, CSV with a column for everything, JSON.
//
// A line is one way of keeping the cache at one depth. Repetitions are pooled: a step's mean, deviation and percentiles
// are over the steps of all of them, tokens/s over their sums; what differs from one repetition to the next is told by
// the deviation of their tokens/s. Deviations are those of a sample (n - 1). The ratio is that of decode tokens/s to
// the first method's at the same depth.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "model/cuda_executor.h"
#include "model/executor.h"
#include "runtime/model.h"
#include "runtime/report.h"

namespace infinigen {

// Nothing for fewer than two values.
std::optional<double> Deviation(const std::vector<double>& values);

struct Measurement {
  ExecutorOptions options;
  int64_t depth = 0;
  Timing timing;
  std::vector<double> prefill_rates, decode_rates;  // tokens/s of each repetition, where it has any
  PoolUse pool;
  KvStats stats;            // of the steps measured; of the first repetition
  uint64_t step_bytes = 0;  // read by one decode step: weights, entries and sketches, mean over the steps
  DeviceUse device;
  std::vector<ZoneTime> zones;                // of one step, by kind of work, where the backend can tell
  double no_fetch_ms = 0, no_compute_ms = 0;  // a step without fetching, and without computing; 0: not measured
  bool complete = false;                      // false: interrupted

  // Takes a repetition in; the first one whole.
  void Add(Measurement run);

  double prefill_rate() const;  // the mean of the repetitions; 0 when there is none
  double decode_rate() const;
  std::optional<double> step_deviation() const;
  double gigabytes_per_s() const;
  // Of the time that fetching takes, the share that is not seen: a step takes longer than without by the rest.
  double hidden_share() const;
  // Entries over the link to a GPU, where they live on the host.
  double link_gigabytes_per_s() const;
};

struct BenchReport {
  const Model& model;
  nlohmann::ordered_json device;
  int64_t batch = 1, prompt = 0, gen = 0, repeat = 1;
  std::string fill;
  StatsDetail detail;
  std::vector<Measurement> measurements;
  std::optional<GpuCeilings> ceilings;  // on a GPU
  bool complete = false;

  // How many times as fast as the first method at the same depth; nothing where either took no step.
  std::optional<double> SpeedupToFirst(const Measurement& of) const;
};

std::string BenchMarkdown(const BenchReport& report);
std::string BenchCsv(const BenchReport& report);
nlohmann::ordered_json BenchJson(const BenchReport& report);

}  // namespace infinigen
