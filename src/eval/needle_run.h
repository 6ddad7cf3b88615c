// Runs needle cases under a KV method. NeedleRunner runs one group of cases: every context is prefilled, then the
// questions of the group are fed as decode steps together, and the answers are decoded greedily. It drives the executor
// itself because an engine's requests sample from their first decode step on, and here given tokens come before that.
// NeedleTable runs all cases of a plan and counts them. One thread.
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

  // One group of at most max_batch cases; answers in their order. Cancelled: the unfinished answers are not done.
  Result<std::vector<NeedleAnswer>> Run(std::span<const NeedleCase> cases, const NeedleWatch& watch);

  // All runs so far; a prefill that was cancelled is left out.
  const Timing& timing() const { return timing_; }
  PoolUse pool() const { return {pool_bytes_, executor_.instruments().pool_peak_bytes()}; }

 private:
  struct Live;

  // False: cancelled.
  Result<bool> Prefill(Live& live, const NeedleWatch& watch);
  void Decode(std::vector<Live>& live, const NeedleWatch& watch);
  // Takes a step's logits: feeds the next token of the question, or adds one to the answer.
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
  // All outlive it; the session is started for the plan's longest text. `label` begins the status line.
  NeedleTable(const NeedlePlan& plan, const EvalSession& session, const NeedleMaker& maker, std::string label = "");

  // Every case that was not run yet. Cancelled: the result has the finished cases, spread evenly over the depths.
  Result<NeedleResult> Run();

  // The case that a cell runs as its `turn`-th.
  Result<NeedleCase> Make(const NeedleCell& cell, int64_t turn) const;
  // A caller may run first cases itself, before Run: it adds them to their cells and sets `skip`.
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
