// Every KV method measured on the same text, the same planted facts and the same decode steps, each compared with
// `full`. Perplexity and facts are those of `eval ppl` and `eval needle` alone, to the last bit. One thread.
//
// Speed comes first, all methods one after another, so that their ratios are of the same minutes. Then the facts, then
// the perplexity: full reads the text once and keeps the windows that it read, as far as half of the memory goes
// (eval/windows.h). A method that fails keeps its reason and what was measured before, and the others go on. A part
// that was cancelled is left out, since half a text cannot be compared with a whole one.
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

// How fast a method decodes at a depth. Unlike in `bench`, the tokens are those of a text, so a method selects, and a
// step costs, what the text asks for.
struct DecodeSpeed {
  int64_t depth = 0;  // tokens before the first step
  Timing timing;
  PoolUse pool;
  KvStats stats;
  bool complete = false;  // false: cancelled

  // By the median step, which a busy machine moves least.
  double step_ms() const { return Percentile(timing.step_ms, 50); }
  double tokens_per_s() const { return 1e3 / step_ms(); }
};
// Prefills `tokens` but the last `steps`, which become timed decode steps. Precondition: 0 < steps < tokens; the
// executor runs nothing else.
Result<DecodeSpeed> MeasureDecode(Executor& executor, std::span<const int32_t> tokens, int64_t steps,
                                  const Callbacks& callbacks,
                                  const std::function<void(int64_t unit, int64_t units)>& on_prefill);

struct CompareTask {
  std::vector<const KvPreset*> presets;  // the rows, in order
  KvRequest kv;                          // options that hold for each of them
  PplTask text;                          // its first window is what is decoded, too
  bool perplexity = true;
  NeedlePlan facts;    // of one length; n = 0: none
  int64_t steps = 64;  // decode steps that are timed; 0: none
};

struct CompareRow {
  std::string preset;
  std::optional<KvRequest> kv;  // nullopt: refused
  bool full = false;            // what the others are compared with
  std::string error;            // why something was not measured

  std::optional<ExecutorOptions> options;  // of the runs, once there was one
  std::optional<DecodeSpeed> speed;
  std::optional<NeedleResult> facts;
  KvStats facts_stats;
  std::optional<PplResult> ppl;
  KvStats ppl_stats;

  bool measured() const { return speed || facts || ppl; }
};

struct CompareResult {
  std::vector<CompareRow> rows;
  CompareRow full;        // measured also where it is none of the rows; without facts
  bool compared = false;  // with full's predictions; false: it had no room
  nlohmann::ordered_json device;
  bool complete = false;  // false: cancelled
};

class Comparison {
 public:
  // All outlive it; `session` is not started. `maker`: null where no facts are planted.
  Comparison(const CompareTask& task, const NeedleMaker* maker, EvalSession* session)
      : task_(task), maker_(maker), session_(*session) {}

  // An error: options that all methods share are refused.
  Result<CompareResult> Run();

 private:
  Status Resolve();
  // Each fills a part of the row.
  Status MeasureSpeed(CompareRow& row);
  Status PlantFacts(CompareRow& row);
  Status ReadText(CompareRow& row);
  // For every row without an error.
  void ForEach(Status (Comparison::*part)(CompareRow&));
  void MeasureSpeeds();
  void ReadTexts();

  bool Cancelled() const { return session_.callbacks().Cancelled(); }
  // Whether a row without an error is left, and the run was not cancelled.
  bool GoesOn() const;

  // Starts the session for the row's method.
  Status Start(CompareRow& row, int64_t rows, int64_t useful);
  // Full's executor and reader, and its score of the text.
  Status StartFull();
  Result<PplResult> Score(const CompareRow& row, const PplRunners& runners, PplMode mode) const;

  const CompareTask& task_;
  const NeedleMaker* maker_;
  EvalSession& session_;
  CompareResult result_;
  std::unique_ptr<Executor> full_;
  std::unique_ptr<WindowReader> reader_;  // after full_, whose sequences it holds
};

// ---- reports: one line a method; what was not measured is an empty cell, or null in JSON ----

// Columns of a part that was not asked for are left out. Markdown is for people, with units and percent; CSV has every
// number as it is.
std::string CompareTable(const CompareTask& task, const CompareResult& result, bool csv);
// {"full": {...}, "results": [...]}, with the field names of eval ppl, eval needle and bench.
nlohmann::ordered_json CompareJson(const CompareResult& result, const StatsDetail& detail);
// What the numbers of the table are of, one line for people.
std::string CompareCaption(const CompareTask& task, const CompareResult& result);

}  // namespace infinigen
