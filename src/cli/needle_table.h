// Planted facts, many cases at a time: for every length and number of facts, how many of n were found. Shared by the
// evaluations that plant facts.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "cli/eval.h"
#include "cli/needle_case.h"
#include "cli/needle_run.h"
#include "cli/report.h"

namespace infinigen {

struct NeedlePlan {
  std::vector<int64_t> lengths = {1024, 4096};  // tokens of text, question and answer together
  std::vector<int64_t> facts = {1};             // in the text; one is asked for
  int64_t n = 20;                               // cases of each length and number of facts
  NeedleForm form = NeedleForm::kPlain;
};

// One line of the table: every case of one length and one number of facts.
struct NeedleCell {
  struct Count {
    int64_t n = 0, found = 0;

    double share() const { return static_cast<double>(found) / static_cast<double>(n); }
  };
  int64_t length = 0, facts = 0;
  Count all;
  std::array<Count, 5> by_depth;  // fifths of the context

  void Add(double depth, bool found);
};

struct NeedleResult {
  std::vector<NeedleCell> cells;
  NeedleCell::Count all;
  Timing timing;
  PoolUse pool;
  bool complete = true;  // false: Ctrl-C
};

class NeedleTable {
 public:
  // All outlive it. `label` opens the line that a person watches.
  NeedleTable(const NeedlePlan& plan, const EvalSession& session, const NeedleMaker& maker, std::string label = "");

  // Every case that was not run yet. After Ctrl-C with what is finished, spread evenly over the depths.
  Result<NeedleResult> Run();

  // The case that a cell runs as its `turn`-th.
  Result<NeedleCase> Make(const NeedleCell& cell, int64_t turn) const;
  // For a caller who runs the first case of the first cell himself; before Run, which then goes on with the second.
  NeedleCell& first_cell() { return result_.cells[0]; }
  NeedleRunner& runner() { return runner_; }
  void SkipFirst() { skip_ = 1; }

 private:
  Status RunCell(NeedleCell& cell, int64_t next);

  const NeedlePlan& plan_;
  const EvalSession& session_;
  const NeedleMaker& maker_;
  const std::string label_;
  const std::vector<int64_t> order_;  // [n], case of each turn
  NeedleRunner runner_;
  StatusLine line_;
  NeedleResult result_;
  int64_t skip_ = 0;  // cases of the first cell that the caller runs
};

// Found / n; null when there is none.
nlohmann::ordered_json ShareJson(const NeedleCell::Count& count);
nlohmann::ordered_json CellsJson(const std::vector<NeedleCell>& cells);

}  // namespace infinigen
