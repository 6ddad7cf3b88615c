// What a run is and did, in words for people: several lines each, with line ends. The numbers are those of
// runtime/report.h.
#pragma once

#include <cstdint>
#include <string>

#include "kv/stats.h"
#include "model/executor.h"
#include "runtime/plan.h"
#include "runtime/report.h"

namespace infinigen {

// The memory plan, part by part.
std::string DescribePlan(const ModelConfig& config, const RunPlan& plan);

// "--kv infinigen, bf16".
std::string KvWords(const ExecutorOptions& options);
// What the method retains, where, and what a step attends to: one sentence without a line end.
std::string DescribeMethod(const ExecutorOptions& options);

// Speed, memory and attended share. `generated` tokens were made, the first of each sequence by its prefill.
std::string StatisticsLines(const Timing& timing, int64_t generated, const PoolUse& pool, const KvStats& stats,
                            const ExecutorOptions& options);
// What was attended to; empty before the first step that selected.
std::string AttendedWords(const KvStats& stats, const ExecutorOptions& options);
// One line per layer.
std::string LayerTable(const KvStats& stats);

}  // namespace infinigen
