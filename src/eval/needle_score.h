// Results of needle cases: answers, counts for every family, length and number of facts, agreement between two runs,
// and their reports as JSON, tables and lines for people. Plain values; any thread.
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

// The cases to run.
struct NeedlePlan {
  std::vector<int64_t> lengths = {1024, 4096};  // tokens of text, question and answer together
  std::vector<int64_t> facts = {1};             // numbers of facts in the text; empty: each family's default
  int64_t n = 20;                               // cases for each family, length and number of facts
  NeedleForm form = NeedleForm::kPlain;
  std::vector<NeedleFamily> families = {NeedleFamily::kSingle};

  std::vector<int64_t> FactsOf(NeedleFamily family) const {
    return facts.empty() ? std::vector<int64_t>{DefaultFacts(family)} : facts;
  }
  int64_t cases() const;  // total
};

struct NeedleAnswer {
  bool done = false;       // false: cancelled before the end
  bool found = false;      // all sought strings
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
    Count all;          // cases; found: all sought strings
    double shares = 0;  // Σ over cases of the share of their strings that was found

    double accuracy() const { return shares / static_cast<double>(all.n); }
    Score& operator+=(const Score& other);
  };

  NeedleFamily family = NeedleFamily::kSingle;
  int64_t length = 0, facts = 0;
  Score score;
  std::array<Count, 5> by_depth;  // sought strings, by the fifth of the context that has their sentence
  std::vector<Count> bins;        // sought strings, by the depth drawn for them; one bin if none was drawn
  std::vector<Outcome> outcomes;  // [n], by the case's index
  int64_t skip = 0;               // first cases that NeedleTable does not run, because its caller did

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

// Agreement between two runs.
struct NeedleAgreement {
  int64_t n = 0;            // cases that both finished
  int64_t same_answer = 0;  // answers with the same tokens
  int64_t same_found = 0;   // answers with the same strings found

  NeedleAgreement& operator+=(const NeedleAgreement& other);
};
NeedleAgreement Agree(const NeedleCell& one, const NeedleCell& other);

// ---- reports ----

// Accuracy as shares; null without cases.
nlohmann::ordered_json AccuracyJson(const NeedleScore& score);
nlohmann::ordered_json CellsJson(const std::vector<NeedleCell>& cells);
// The numbers of a heat map: one entry for every cell and depth.
nlohmann::ordered_json BinsJson(const std::vector<NeedleCell>& cells);

// The source of the cases.
struct NeedleOrigin {
  std::string file;  // text that facts are planted in; empty: generated text
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

// The report of one run. Precondition: the session's executor ran it.
nlohmann::ordered_json NeedleRunJson(const EvalSession& session, const NeedlePlan& plan, const NeedleOrigin& origin,
                                     const NeedleResult& result);
// With several runs, the top-level fields are those of the first, and "results" has all. If one run is --kv full, the
// others report their agreement with it.
nlohmann::ordered_json NeedleJson(std::vector<NeedleKvRun> runs, bool complete);
std::string NeedleMarkdown(const NeedlePlan& plan, const std::vector<NeedleKvRun>& runs);
// Speed, memory and attended share, as lines for people.
std::string NeedleStatistics(const NeedleKvRun& run, bool per_layer);

}  // namespace infinigen
