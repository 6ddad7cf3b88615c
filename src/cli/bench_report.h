// The measurements of `bench` and their reports: Markdown for people, CSV with all numbers, JSON. Plain values.
//
// A line is one KV method at one depth. Mean, deviation and percentiles of a step are taken over the steps of all
// repetitions; tokens/s is the mean over the repetitions, with its deviation. Deviations are sample deviations (n - 1).
// The speedup compares the median step with that of the first method at the same depth.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "runtime/launch.h"
#include "runtime/model.h"
#include "runtime/report.h"
#include "runtime/run_options.h"

namespace infinigen {

// Sample standard deviation; nullopt for fewer than two values.
std::optional<double> Deviation(const std::vector<double>& values);

struct Measurement {
  ExecutorOptions options;
  int64_t depth = 0;
  Timing timing;
  std::vector<double> prefill_rates, decode_rates;  // tokens/s of each repetition that prefilled, or decoded
  PoolUse pool;
  KvStats stats;            // of the first repetition
  uint64_t step_bytes = 0;  // bytes that a decode step reads (weights, entries, sketches); mean over the steps
  DeviceUse device;
  std::vector<ZoneTime> zones;                // times within one step; empty if the backend cannot measure them
  double no_fetch_ms = 0, no_compute_ms = 0;  // a step without fetching, or without computing; 0: not measured
  bool complete = false;                      // false: interrupted

  // Adds a repetition.
  void Add(Measurement run);

  double prefill_rate() const;  // mean over the repetitions; 0 if there is none
  double decode_rate() const;
  std::optional<double> step_deviation() const;
  double gigabytes_per_s() const;
  // Share of the fetching time that overlaps with computing. The rest makes a step longer than one without fetching.
  double hidden_share() const;
  // Speed of fetching over the link to the GPU; 0 if the pool is not in the memory of a GPU's host.
  double link_gigabytes_per_s() const;
};

struct BenchReport {
  const Model& model;
  nlohmann::ordered_json device;
  int64_t batch = 1, prompt = 0, gen = 0, repeat = 1;
  std::string fill;
  StatsDetail detail;
  std::vector<Measurement> measurements;
  std::optional<GpuCeilings> ceilings;  // set on a GPU
  bool complete = false;

  // Speed relative to the first method at the same depth; nullopt if either took no step.
  std::optional<double> SpeedupToFirst(const Measurement& of) const;
};

std::string BenchMarkdown(const BenchReport& report);
std::string BenchCsv(const BenchReport& report);
nlohmann::ordered_json BenchJson(const BenchReport& report);

}  // namespace infinigen
