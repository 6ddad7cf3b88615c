// Every way of keeping the cache, measured on the same text, the same planted facts and the same decode steps, each
// compared with `full`. What is measured is what `eval ppl` and `eval needle` measure alone, to the last bit.
//
// Speed comes first, all methods one after another: their ratios are of the same minutes. Then the facts, then the
// perplexity, where full reads the text once and keeps what it read, as far as half of the memory goes
// (cli/window_reader.h). A method that fails keeps its reason and what was measured before, and the others go on; what
// Ctrl-C cut short is left out, since half a text cannot be compared with a whole one.
#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "cli/decode_speed.h"
#include "cli/eval.h"
#include "cli/needle_table.h"
#include "cli/ppl_task.h"
#include "cli/window_reader.h"

namespace infinigen {

struct CompareTask {
  PplTask text;  // its first window is what is decoded, too
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
  CompareRow full;        // without facts; measured whether it is among the rows or not
  bool compared = false;  // with full's predictions; else it had no room
  nlohmann::ordered_json device;
  bool complete = false;  // false: Ctrl-C
};

class Comparison {
 public:
  // All outlive it; `session` without executors. `maker`: null where no facts are planted.
  Comparison(const EvalFlags& flags, const CompareTask& task, const NeedleMaker* maker, EvalSession* session)
      : flags_(flags), task_(task), maker_(maker), session_(*session) {}

  // The presets of flags.kv, in order. An error: what they all have in common is refused.
  Result<CompareResult> Run();

 private:
  Status Resolve();
  // Each fills a part of the row.
  Status MeasureSpeed(CompareRow& row);
  Status PlantFacts(CompareRow& row);
  Status ReadText(CompareRow& row);
  // For every row that nothing is wrong with.
  void ForEach(Status (Comparison::*part)(CompareRow&));

  // Whether there is such a row, and nobody pressed Ctrl-C.
  bool GoesOn() const;

  // An executor for the row's method, in the session.
  Status Start(CompareRow& row, int64_t rows, int64_t batch);
  // Full's reader, and its score of the text. Without one, nothing is compared.
  Status StartFull();
  Result<PplResult> Score(const CompareRow& row, const PplRunners& runners, PplMode mode) const;

  const EvalFlags& flags_;
  const CompareTask& task_;
  const NeedleMaker* maker_;
  EvalSession& session_;
  CompareResult result_;
  std::unique_ptr<Executor> full_;
  std::unique_ptr<WindowReader> reader_;  // after full_, to which it gives back
};

}  // namespace infinigen
