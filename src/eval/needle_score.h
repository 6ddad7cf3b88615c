// What came of needle cases: answers, counts for every family, length and number of facts, how far two runs agree, and
// the JSON, tables and statistics that report them. Plain values; any thread.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "eval/needle_case.h"
#include "eval/session.h"
#include "runtime/launch.h"
#include "runtime/report.h"

namespace infinigen {

// Which cases are run.
struct NeedlePlan {
  std::vector<int64_t> lengths = {1024, 4096};  // tokens of text, question and answer together
  std::vector<int64_t> facts = {1};             // in the text; empty: each family's own number
  int64_t n = 20;                               // cases for each family, length and number of facts
  NeedleForm form = NeedleForm::kPlain;
  std::vector<NeedleFamily> families = {NeedleFamily::kSingle};

  std::vector<int64_t> FactsOf(NeedleFamily family) const {
    return facts.empty() ? std::vector<int64_t>{DefaultFacts(family)} : facts;
  }
  int64_t cases() const;  // in all
};

struct NeedleAnswer {
  bool done = false;       // false: cancelled before
  bool found = false;      // every sought string
  std::vector<bool> hits;  // [sought], once done
  std::vector<int32_t> tokens;
  std::string text;

  double share() const {
    return hits.empty()
               ? 0
               : static_cast<double>(std::count(hits.begin(), hits.end(), true)) / static_cast<double>(hits.size());
  }
};

// The cases of one family, one length and one number of facts: a line of the table.
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
    Count all;          // cases; found: those with every sought string
    double shares = 0;  // Σ over cases of the share of their strings that was found

    double accuracy() const { return shares / static_cast<double>(all.n); }
    Score& operator+=(const Score& other);
  };

  NeedleFamily family = NeedleFamily::kSingle;
  int64_t length = 0, facts = 0;
  Score score;
  std::array<Count, 5> by_depth;  // strings, by the fifth of the context where their sentence lies
  std::vector<Count> bins;        // strings, by the depth that was drawn for them; one bin where none was drawn
  std::vector<Outcome> outcomes;  // [n], by the case's index
  int64_t skip = 0;               // first cases that NeedleTable leaves to its caller

  void Add(const NeedleCase& planted, const NeedleAnswer& answer);
};
using NeedleScore = NeedleCell::Score;

struct NeedleResult {
  std::vector<NeedleCell> cells;  // ordered by family, length, facts
  NeedleScore score;
  Timing timing;
  PoolUse pool;
  bool complete = true;  // false: cancelled
};

// How many of the cases that two runs finished they answered alike.
struct NeedleAgreement {
  int64_t n = 0;            // cases that both finished
  int64_t same_answer = 0;  // token for token
  int64_t same_found = 0;   // the same strings found

  NeedleAgreement& operator+=(const NeedleAgreement& other);
};
NeedleAgreement Agree(const NeedleCell& one, const NeedleCell& other);

// ---- reports ----

// Shares; null when there is no case.
nlohmann::ordered_json AccuracyJson(const NeedleScore& score);
nlohmann::ordered_json CellsJson(const std::vector<NeedleCell>& cells);
// The numbers of a heat map: one entry for every cell and depth.
nlohmann::ordered_json BinsJson(const std::vector<NeedleCell>& cells);

// What the cases were made from.
struct NeedleOrigin {
  std::string file;  // that facts are planted in; empty: generated text
  int64_t seed = 1;

  bool generated() const { return file.empty(); }
};

// The run of one KV method; all runs of a report have the same cases.
struct NeedleKvRun {
  std::string kv;  // the preset
  ExecutorOptions options;
  NeedleResult result;
  KvStats stats;
  nlohmann::ordered_json json;  // NeedleRunJson

  bool full() const { return kv == "full" && options.is_full(); }
};

// The report of one run. Precondition: the session's executor made it.
nlohmann::ordered_json NeedleRunJson(const EvalSession& session, const NeedlePlan& plan, const NeedleOrigin& origin,
                                     const NeedleResult& result);
// With several runs, the fields are those of the first and "results" has all. Runs beside one of full report how far
// they agree with it.
nlohmann::ordered_json NeedleJson(std::vector<NeedleKvRun> runs, bool complete);
std::string NeedleMarkdown(const NeedlePlan& plan, const std::vector<NeedleKvRun>& runs);
// Speed, memory, what was attended to.
std::string NeedleStatistics(const NeedleKvRun& run, bool per_layer);

}  // namespace infinigen
