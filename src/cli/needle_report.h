// What `eval needle` says of its runs: a table for people, JSON for scripts, a picture. One run for each way of keeping
// the cache, all of the same cases.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "cli/needle_table.h"
#include "kv/stats.h"
#include "model/executor.h"

namespace infinigen {

struct NeedleKvRun {
  std::string kv;  // the preset
  ExecutorOptions options;
  NeedleResult result;
  KvStats stats;
  nlohmann::ordered_json json;  // as of a run alone

  bool full() const { return kv == "full" && options.is_full(); }
};

// With several runs: the fields are those of the first, and "results" has them all. Runs beside one of full say how far
// they agree with it.
nlohmann::ordered_json NeedleJson(std::vector<NeedleKvRun> runs, bool complete);

std::string NeedleMarkdown(const NeedlePlan& plan, const std::vector<NeedleKvRun>& runs);

std::string NeedleStatistics(const NeedleKvRun& run, bool per_layer);

struct HeatmapWords {
  std::string model, source;  // what was read
  int64_t seed = 0;
};
Status WriteHeatmap(const std::string& path, const NeedlePlan& plan, const std::vector<NeedleKvRun>& runs,
                    const HeatmapWords& words);
// Whether such a file can be made, before a long run.
Status CheckWritable(const std::string& path);

}  // namespace infinigen
