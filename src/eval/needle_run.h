// Runs needle cases under a KV method. NeedleRunner runs one group of cases: it prefills every context, then feeds the
// questions of the group together as decode steps, and decodes the answers greedily. It uses the executor directly,
// because an engine samples from the first decode step on, and here the question's tokens come first. NeedleTable runs
// all cases of a plan and counts the results. One thread.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "eval/needle_case.h"
#include "eval/needle_score.h"
#include "eval/session.h"
#include "runtime/callbacks.h"
#include "runtime/report.h"

namespace infinigen {

// Both may be null.
struct NeedleWatch {
  std::function<void(int64_t units_done, int64_t units, int64_t tokens)> on_prefill;  // of one case
  std::function<void(size_t index, std::string_view text)> on_text;                   // of an answer
};

class NeedleRunner {
 public:
  // Both outlive it.
  NeedleRunner(Executor& executor, const Tokenizer& tokenizer, NeedleForm form, Callbacks callbacks = {})
      : executor_(executor), tokenizer_(tokenizer), form_(form), callbacks_(std::move(callbacks)) {}

  // Runs one group of at most max_batch cases; the answers have the same order. If cancelled, unfinished answers have
  // done == false.
  Result<std::vector<NeedleAnswer>> Run(std::span<const NeedleCase> cases, const NeedleWatch& watch);

  // Sums over all runs so far, without cancelled prefills.
  const Timing& timing() const { return timing_; }
  PoolUse pool() const { return {pool_bytes_, executor_.instruments().pool_peak_bytes()}; }

 private:
  struct Live;

  // False: cancelled.
  Result<bool> Prefill(Live& live, const NeedleWatch& watch);
  void Decode(std::vector<Live>& live, const NeedleWatch& watch);
  // Processes a step's logits: sets the next token of the question, or adds a token to the answer.
  void Accept(Live& live, std::span<const float> logits, const NeedleWatch& watch);
  void JudgeAnswer(Live& live, bool ended) const;

  Executor& executor_;
  const Tokenizer& tokenizer_;
  const NeedleForm form_;
  const Callbacks callbacks_;
  Timing timing_;
  uint64_t pool_bytes_ = 0;  // after the last group was decoded
};

class NeedleTable {
 public:
  // All arguments outlive it; the session is started for the plan's longest text. `label` begins the status line.
  NeedleTable(const NeedlePlan& plan, const EvalSession& session, const NeedleMaker& maker, std::string label = "");

  // Runs every case that was not run yet. If cancelled, the result has the finished cases, spread evenly over the
  // depths.
  Result<NeedleResult> Run();

  // The case that a cell runs in turn `turn`.
  Result<NeedleCase> Make(const NeedleCell& cell, int64_t turn) const;
  // Before Run, the caller may run the first cases itself: it adds them to their cells and sets `skip`.
  std::vector<NeedleCell>& cells() { return result_.cells; }
  NeedleRunner& runner() { return runner_; }

 private:
  Status RunCell(NeedleCell& cell);

  const NeedlePlan& plan_;
  const EvalSession& session_;
  const NeedleMaker& maker_;
  const std::string label_;
  const std::vector<int64_t> order_;  // [n], case of each turn
  NeedleRunner runner_;
  NeedleResult result_;
};

}  // namespace infinigen
