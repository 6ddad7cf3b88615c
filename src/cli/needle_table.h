// Planted facts, many cases at a time: for every family, length and number of facts, how many of n were found. Shared
// by the evaluations that plant facts.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "cli/eval.h"
#include "cli/needle_case.h"
#include "cli/needle_run.h"
#include "runtime/report.h"

namespace infinigen {

struct NeedlePlan {
  std::vector<int64_t> lengths = {1024, 4096};  // tokens of text, question and answer together
  std::vector<int64_t> facts = {1};             // in the text; empty: each family's own number
  int64_t n = 20;                               // cases of each family, length and number of facts
  NeedleForm form = NeedleForm::kPlain;
  std::vector<NeedleFamily> families = {NeedleFamily::kSingle};

  std::vector<int64_t> FactsOf(NeedleFamily family) const {
    return facts.empty() ? std::vector<int64_t>{DefaultFacts(family)} : facts;
  }
  int64_t cases() const;  // in all
};

// One line of the table: every case of one family, one length and one number of facts.
struct NeedleCell {
  struct Count {
    int64_t n = 0, found = 0;

    double share() const { return static_cast<double>(found) / static_cast<double>(n); }
    void Add(bool hit) { ++n, found += hit ? 1 : 0; }
  };
  struct Outcome {
    bool done = false;
    std::vector<int32_t> tokens;
    std::vector<bool> hits;
  };
  struct Score {
    Count all;          // cases; found: those with everything that was sought
    double shares = 0;  // Σ over cases of the share of their strings that was found

    double accuracy() const { return shares / static_cast<double>(all.n); }
    Score& operator+=(const Score& other);
  };

  NeedleFamily family = NeedleFamily::kSingle;
  int64_t length = 0, facts = 0;
  Score score;
  std::array<Count, 5> by_depth;  // strings, by the fifth of the context where their sentence lies
  std::vector<Count> bins;        // strings, by the depth that was drawn for them; of those without one, one bin
  std::vector<Outcome> outcomes;  // [n], by the case's index
  int64_t skip = 0;               // cases that the caller runs

  void Add(const NeedleCase& planted, const NeedleAnswer& answer);
};
using NeedleScore = NeedleCell::Score;

struct NeedleResult {
  std::vector<NeedleCell> cells;
  NeedleScore score;
  Timing timing;
  PoolUse pool;
  bool complete = true;  // false: Ctrl-C
};

// How many cases two runs answered alike: those that both finished.
struct NeedleAgreement {
  int64_t n = 0, same_answer = 0, same_found = 0;  // token for token; the same strings found

  NeedleAgreement& operator+=(const NeedleAgreement& other);
};
NeedleAgreement Agree(const NeedleCell& one, const NeedleCell& other);

class NeedleTable {
 public:
  // All outlive it. `label` opens the line that a person watches.
  NeedleTable(const NeedlePlan& plan, const EvalSession& session, const NeedleMaker& maker, std::string label = "");

  // Every case that was not run yet. After Ctrl-C with what is finished, spread evenly over the depths.
  Result<NeedleResult> Run();

  // The case that a cell runs as its `turn`-th.
  Result<NeedleCase> Make(const NeedleCell& cell, int64_t turn) const;
  // For a caller who runs first cases himself; before Run, which then goes on with `skip` of each.
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
  StatusLine line_;
  NeedleResult result_;
};

// Shares; null when there is no case.
nlohmann::ordered_json ShareJson(const NeedleCell::Count& count);
nlohmann::ordered_json AccuracyJson(const NeedleScore& score);
nlohmann::ordered_json CellsJson(const std::vector<NeedleCell>& cells);
// The numbers of a heat map: one entry for every cell and depth.
nlohmann::ordered_json BinsJson(const std::vector<NeedleCell>& cells);

}  // namespace infinigen
