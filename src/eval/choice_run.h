// Multiple-choice questions, answered by the likelihood of each choice under a KV method. Prepare with PrepareChoice,
// start the session for the rows it names, run AskQuestions, report. One thread.
//
// The context less its last token is prefilled, as a prompt is. Its last token and those of the ending are decode
// steps, so every scored prediction is one of the method, also where an ending is a single token. kBatched takes them
// through the layers in bulk (PrefillKind::kSteps), one choice after another; kStep runs them step by step, all choices
// of a question at once. On the CPU both give the same bits.
//
// In bulk, the beginning that the contexts of all choices share is prefilled once, and the rows after it are written
// anew for each choice. A method that evicted cannot rewrite rows, nor one whose index depends on more than the rows
// (page bounds that only widen, the last step's query, columns that a prompt chose): these read the whole context for
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

// Log-likelihoods of the choices of single questions.
class ChoiceRunner {
 public:
  // `executor` outlives it.
  ChoiceRunner(Executor& executor, ChoiceMode mode, Callbacks callbacks = {})
      : executor_(executor), mode_(mode), callbacks_(std::move(callbacks)) {}

  // ln p of each choice's ending. nullopt: cancelled.
  Result<std::optional<std::vector<double>>> Score(const ChoiceQuestion& question);

  // All runs so far; a prefill that was cancelled is left out.
  const Timing& timing() const { return timing_; }
  PoolUse pool() const { return {pool_bytes_, executor_.instruments().pool_peak_bytes()}; }

 private:
  struct Live;

  // Each fills `scores`. False: cancelled.
  Result<bool> ScoreWhole(const ChoiceQuestion& question, std::vector<double>& scores);
  Result<bool> ScoreSharing(const ChoiceQuestion& question, std::vector<double>& scores);
  Result<bool> ScoreBySteps(const ChoiceQuestion& question, size_t first, std::span<double> scores);
  // The sequence's rows from `first_row` on become `tokens`; without effect for no tokens. False: cancelled.
  Result<bool> Feed(Sequence& sequence, int64_t first_row, std::span<const int32_t> tokens, PrefillKind kind);
  // The score of one choice, whose context less one token was read. nullopt: cancelled.
  Result<std::optional<double>> FeedScored(Sequence& sequence, const ChoiceRequest& choice);

  Executor& executor_;
  const ChoiceMode mode_;
  const Callbacks callbacks_;
  Timing timing_;
  uint64_t pool_bytes_ = 0;
  std::vector<float> logits_;  // [rows asked for at once][vocab]
};

// ---- the evaluation ----

struct ChoiceOptions {
  int64_t shots = 0;  // examples before each question
  int64_t limit = 0;  // only the first so many questions; 0: all
  int64_t seed = 1;   // of the examples
  ChoiceMode mode = ChoiceMode::kBatched;
};

struct ChoiceInput {
  ChoiceTask task;
  ChoiceOptions options;
  std::vector<ChoiceQuestion> questions;
  int64_t rows = 0, most_choices = 0;  // of the longest question, and of the one with most choices

  // Sequences that can be of use at once.
  int64_t useful_batch() const { return options.mode == ChoiceMode::kStep ? most_choices : 1; }
};
// Refuses questions that the model cannot hold, with their place in the file.
Result<ChoiceInput> PrepareChoice(const EvalSession& session, const KvRequest& kv, ChoiceTask task,
                                  const ChoiceOptions& options);

// How one question was answered.
struct ChoiceAnswer {
  std::vector<double> scores;  // ln p of each choice
  size_t choice = 0;           // with the largest score; the first of equals
  size_t choice_norm = 0;      // with the largest score for each of its characters
};

struct ChoiceResult {
  std::vector<ChoiceAnswer> answers;        // to the first so many questions
  std::vector<ChoiceAnswer> other_answers;  // of --kv full to the same questions; empty: nothing was compared
  int64_t right = 0, right_norm = 0;        // answers that are right by either choice
  int64_t same = 0;                         // answers with the same choice as full
  int64_t wanted = 0;                       // questions to be asked; more than n(): cancelled
  Timing timing;
  PoolUse pool;

  int64_t n() const { return std::ssize(answers); }
  bool complete() const { return n() == wanted; }
  // Shares of the answers; NaN, which becomes null, where there is none.
  double share(int64_t count) const;
  double accuracy() const { return share(right); }
  // Standard error of the accuracy as lm-evaluation-harness has it: the sample's deviation over sqrt(n).
  double accuracy_stderr() const;
};
// Precondition: the session was started for input.rows, with a comparison.
Result<ChoiceResult> AskQuestions(const EvalSession& session, const ChoiceInput& input);

nlohmann::ordered_json ChoiceJson(const EvalSession& session, const ChoiceInput& input, const ChoiceResult& result);
// One line under a head, as Markdown or CSV.
std::string ChoiceTable(const EvalSession& session, const ChoiceInput& input, const ChoiceResult& result, bool csv);
// Speed, memory, what was attended to.
std::string ChoiceStatistics(const EvalSession& session, const ChoiceResult& result);

}  // namespace infinigen
