// Measures several KV methods on the same text, planted facts and decode steps, and compares each with `full`.
// Perplexity and facts are bit for bit those of `eval ppl` and `eval needle`. One thread.
//
// The speeds of all methods are measured first, in direct succession, so that they are comparable. Then the facts, then
// the perplexity: full reads the text once and keeps its windows in at most half of the memory (eval/windows.h). If a
// method fails, its row keeps the reason and what was measured before, and the other methods continue. A part that was
// cancelled is left out, because half a text cannot be compared with a whole one.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "eval/needle_run.h"
#include "eval/needle_score.h"
#include "eval/perplexity.h"
#include "eval/session.h"
#include "eval/windows.h"

namespace infinigen {

// Decode speed of a method at a depth. Unlike in `bench`, the tokens are real text, so the number of selected entries,
// and with it the cost of a step, is realistic.
struct DecodeSpeed {
  int64_t depth = 0;  // tokens before the first step
  Timing timing;
  PoolUse pool;
  KvStats stats;
  bool complete = false;  // false: cancelled

  // The median, which is least affected by other load on the machine.
  double step_ms() const { return Percentile(timing.step_ms, 50); }
  double tokens_per_s() const { return 1e3 / step_ms(); }
};
// Prefills `tokens` without the last `steps`, then times these as decode steps. Precondition: 0 < steps <
// tokens.size(); the executor runs nothing else.
Result<DecodeSpeed> MeasureDecode(Executor& executor, std::span<const int32_t> tokens, int64_t steps,
                                  const Callbacks& callbacks,
                                  const std::function<void(int64_t unit, int64_t units)>& on_prefill);

struct CompareTask {
  std::vector<const KvPreset*> presets;  // one row each, in order
  KvRequest kv;                          // options that all presets share
  PplTask text;                          // its first window is also used to time decode steps
  bool perplexity = true;
  NeedlePlan facts;    // one length only; n = 0: no facts
  int64_t steps = 64;  // decode steps to time; 0: none
};

struct CompareRow {
  std::string preset;
  std::optional<KvRequest> kv;  // nullopt: refused
  bool full = false;            // the row that the others are compared with
  std::string error;            // why a part was not measured

  std::optional<ExecutorOptions> options;  // set by the first run
  std::optional<DecodeSpeed> speed;
  std::optional<NeedleResult> facts;
  KvStats facts_stats;
  std::optional<PplResult> ppl;
  KvStats ppl_stats;

  bool measured() const { return speed || facts || ppl; }
};

struct CompareResult {
  std::vector<CompareRow> rows;
  CompareRow full;        // measured even if `full` is not among the rows; without facts
  bool compared = false;  // predictions were compared with full's; false: memory was short
  nlohmann::ordered_json device;
  bool complete = false;  // false: cancelled
};

class Comparison {
 public:
  // All arguments outlive it; `session` is not started. `maker` is null if no facts are planted.
  Comparison(const CompareTask& task, const NeedleMaker* maker, EvalSession* session)
      : task_(task), maker_(maker), session_(*session) {}

  // Returns an error only for options that all methods share.
  Result<CompareResult> Run();

 private:
  Status Resolve();
  // These fill one part of the row each.
  Status MeasureSpeed(CompareRow& row);
  Status PlantFacts(CompareRow& row);
  Status ReadText(CompareRow& row);
  // Runs `part` for every row without an error.
  void ForEach(Status (Comparison::*part)(CompareRow&));
  void MeasureSpeeds();
  void ReadTexts();

  bool Cancelled() const { return session_.callbacks().Cancelled(); }
  // Whether any row has no error and the run is not cancelled.
  bool GoesOn() const;

  // Starts the session for the row's method.
  Status Start(CompareRow& row, int64_t rows, int64_t useful);
  // Creates full's executor and reader, and scores the text with it.
  Status StartFull();
  Result<PplResult> Score(const CompareRow& row, const PplRunners& runners, PplMode mode) const;

  const CompareTask& task_;
  const NeedleMaker* maker_;
  EvalSession& session_;
  CompareResult result_;
  std::unique_ptr<Executor> full_;
  std::unique_ptr<WindowReader> reader_;  // after full_, because it holds its sequences
};

// ---- reports: one line per method; an unmeasured value is an empty cell, or null in JSON ----

// Columns of parts that were not requested are left out. Markdown has units and percentages; CSV has plain numbers.
std::string CompareTable(const CompareTask& task, const CompareResult& result, bool csv);
// {"full": {...}, "results": [...]}, with the field names of eval ppl, eval needle and bench.
nlohmann::ordered_json CompareJson(const CompareResult& result, const StatsDetail& detail);
// One line that explains the numbers of the table.
std::string CompareCaption(const CompareTask& task, const CompareResult& result);

}  // namespace infinigen
