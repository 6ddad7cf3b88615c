// What `bench` measured, and its reports: Markdown for people, CSV with a column for everything, JSON. Plain values.
//
// A line is one KV method at one depth. Mean, deviation and percentiles of a step are over the steps of all
// repetitions; tokens/s are the mean of the repetitions, with their deviation. Deviations are those of a sample (n -
// 1). The ratio compares the median step with that of the first method at the same depth.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "runtime/device.h"
#include "runtime/launch.h"
#include "runtime/model.h"
#include "runtime/report.h"

namespace infinigen {

// nullopt for fewer than two values.
std::optional<double> Deviation(const std::vector<double>& values);

struct Measurement {
  ExecutorOptions options;
  int64_t depth = 0;
  Timing timing;
  std::vector<double> prefill_rates, decode_rates;  // tokens/s of each repetition that prefilled, or decoded
  PoolUse pool;
  KvStats stats;            // of the first repetition's steps
  uint64_t step_bytes = 0;  // that a decode step reads: weights, entries and sketches; mean over the steps
  DeviceUse device;
  std::vector<ZoneTime> zones;                // of one step, by kind of work; empty where the backend cannot tell
  double no_fetch_ms = 0, no_compute_ms = 0;  // a step without fetching, or without computing; 0: not measured
  bool complete = false;                      // false: interrupted

  // Adds a repetition.
  void Add(Measurement run);

  double prefill_rate() const;  // the mean of the repetitions; 0 when there is none
  double decode_rate() const;
  std::optional<double> step_deviation() const;
  double gigabytes_per_s() const;
  // Share of the fetching time that computing hides; a step is longer than one without fetching by the rest.
  double hidden_share() const;
  // Entries over the link to a GPU; 0 where they do not live on the host.
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

  // How many times as fast as the first method at the same depth; nullopt where either took no step.
  std::optional<double> SpeedupToFirst(const Measurement& of) const;
};

std::string BenchMarkdown(const BenchReport& report);
std::string BenchCsv(const BenchReport& report);
nlohmann::ordered_json BenchJson(const BenchReport& report);

}  // namespace infinigen
