// Answers multiple-choice questions by the likelihood of each choice under a KV method. Call PrepareChoice, start the
// session with the rows it returns, call AskQuestions, and report. One thread.
//
// The context without its last token is prefilled like a prompt. Its last token and the tokens of the ending are decode
// steps, so every scored prediction is made by the KV method, even if an ending is a single token. kStep runs them one
// by one, all choices of a question at once. kBatched runs all tokens of a choice in one prefill of kind kSteps, one
// choice after another. On the CPU both give the same bits.
//
// With kBatched, the common beginning of all choices is prefilled once, and the rows after it are rewritten for each
// choice. Some methods cannot rewrite rows: those that evict, and those whose index depends on more than the rows (page
// bounds that only widen, the previous step's query, columns chosen by a prompt). They prefill the whole context for
// each choice.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "eval/choice_task.h"
#include "eval/session.h"
#include "runtime/kv_request.h"
#include "runtime/report.h"

namespace infinigen {

enum class ChoiceMode { kBatched, kStep };

// Computes the log-likelihoods of a question's choices.
class ChoiceRunner {
 public:
  // `executor` outlives it.
  ChoiceRunner(Executor& executor, ChoiceMode mode, Callbacks callbacks = {})
      : executor_(executor), mode_(mode), callbacks_(std::move(callbacks)) {}

  // ln p of each choice's ending. nullopt: cancelled.
  Result<std::optional<std::vector<double>>> Score(const ChoiceQuestion& question);

  // Sums over all runs so far, without cancelled prefills.
  const Timing& timing() const { return timing_; }
  PoolUse pool() const { return {pool_bytes_, executor_.instruments().pool_peak_bytes()}; }

 private:
  struct Live;

  // These fill `scores`. False: cancelled.
  Result<bool> ScoreWhole(const ChoiceQuestion& question, std::vector<double>& scores);
  Result<bool> ScoreSharing(const ChoiceQuestion& question, std::vector<double>& scores);
  Result<bool> ScoreBySteps(const ChoiceQuestion& question, size_t first, std::span<double> scores);
  // Writes `tokens` to the sequence's rows from `first_row` on. False: cancelled.
  Result<bool> Feed(Sequence& sequence, int64_t first_row, std::span<const int32_t> tokens, PrefillKind kind);
  // The score of one choice. Precondition: its context without the last token is prefilled. nullopt: cancelled.
  Result<std::optional<double>> FeedScored(Sequence& sequence, const ChoiceRequest& choice);

  Executor& executor_;
  const ChoiceMode mode_;
  const Callbacks callbacks_;
  Timing timing_;
  uint64_t pool_bytes_ = 0;
  std::vector<float> logits_;  // [rows per request][vocab]
};

// ---- the evaluation ----

struct ChoiceOptions {
  int64_t shots = 0;  // examples before each question
  int64_t limit = 0;  // number of questions to ask; 0: all
  int64_t seed = 1;   // for drawing the examples
  ChoiceMode mode = ChoiceMode::kBatched;
};

struct ChoiceInput {
  ChoiceTask task;
  ChoiceOptions options;
  std::vector<ChoiceQuestion> questions;
  int64_t rows = 0;          // of the longest question
  int64_t most_choices = 0;  // of any question

  // Sequences that run at once, at most.
  int64_t useful_batch() const { return options.mode == ChoiceMode::kStep ? most_choices : 1; }
};
// Refuses questions that are longer than the context; the error names the line.
Result<ChoiceInput> PrepareChoice(const EvalSession& session, const KvRequest& kv, ChoiceTask task,
                                  const ChoiceOptions& options);

// The answer to one question.
struct ChoiceAnswer {
  std::vector<double> scores;  // ln p of each choice
  size_t choice = 0;           // the choice with the largest score; the first of equals
  size_t choice_norm = 0;      // the choice with the largest score per character
};

struct ChoiceResult {
  std::vector<ChoiceAnswer> answers;        // to the first n() questions
  std::vector<ChoiceAnswer> other_answers;  // answers of --kv full to the same questions; empty: no comparison
  int64_t right = 0, right_norm = 0;        // right answers by `choice`, and by `choice_norm`
  int64_t same = 0;                         // answers with the same choice as full
  int64_t wanted = 0;                       // questions to ask; more than n() if cancelled
  Timing timing;
  PoolUse pool;

  int64_t n() const { return std::ssize(answers); }
  bool complete() const { return n() == wanted; }
  // Share of the answers; NaN (null in JSON) without answers.
  double share(int64_t count) const;
  double accuracy() const { return share(right); }
  // Standard error of the accuracy as in lm-evaluation-harness: sample deviation over sqrt(n).
  double accuracy_stderr() const;
};
// Precondition: the session was started for input.rows, with a comparison.
Result<ChoiceResult> AskQuestions(const EvalSession& session, const ChoiceInput& input);

nlohmann::ordered_json ChoiceJson(const EvalSession& session, const ChoiceInput& input, const ChoiceResult& result);
// A table with one line, as Markdown or CSV.
std::string ChoiceTable(const EvalSession& session, const ChoiceInput& input, const ChoiceResult& result, bool csv);
// Speed, memory and attended share, as lines for people.
std::string ChoiceStatistics(const EvalSession& session, const ChoiceResult& result);

}  // namespace infinigen
