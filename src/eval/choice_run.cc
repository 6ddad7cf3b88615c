#include "eval/choice_run.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "eval/perplexity.h"
#include "runtime/report.h"

namespace infinigen {
namespace {

// Rows of logits computed at once: 16 MiB with a vocabulary of 128K.
constexpr int64_t kLogitRows = 32;

bool CanRewriteRows(const Executor& executor) {
  const KvMethod& method = executor.options().method;
  if (method.evicts() || method.prompt_columns || executor.config().window() > 0) return false;
  return !method.selects() || (method.select->rewrites_rows && method.from != GuessSource::kPrevStep);
}

// The part of a context that is prefilled.
std::span<const int32_t> Prompt(const ChoiceRequest& choice) {
  return std::span(choice.context).first(choice.context.size() - 1);
}

// Length of the common prefix of all choices' prompts, in tokens.
size_t CommonPrompt(const ChoiceQuestion& question) {
  const std::span<const int32_t> first = Prompt(question.choices[0]);
  size_t common = first.size();
  for (const ChoiceRequest& choice : question.choices) {
    const std::span<const int32_t> other = Prompt(choice);
    const size_t both = std::min(common, other.size());
    common = static_cast<size_t>(
        std::mismatch(first.begin(), first.begin() + static_cast<ptrdiff_t>(both), other.begin()).first -
        first.begin());
  }
  return common;
}

ChoiceAnswer Choose(const ChoiceQuestion& question, std::vector<double> scores) {
  std::vector<double> norms;
  for (size_t i = 0; i < scores.size(); ++i)
    norms.push_back(scores[i] / static_cast<double>(question.choices[i].characters));
  const auto best = [](const std::vector<double>& of) {
    return static_cast<size_t>(std::max_element(of.begin(), of.end()) - of.begin());
  };
  const size_t choice = best(scores);
  return {std::move(scores), choice, best(norms)};
}

}  // namespace

Result<std::optional<std::vector<double>>> ChoiceRunner::Score(const ChoiceQuestion& question) {
  std::vector<double> scores(question.choices.size());
  bool done = true;
  if (mode_ == ChoiceMode::kStep) {
    const size_t batch = static_cast<size_t>(executor_.options().max_batch);
    for (size_t first = 0; first < scores.size() && done; first += batch) {
      ASSIGN_OR_RETURN(done, ScoreBySteps(question, first,
                                          std::span(scores).subspan(first, std::min(batch, scores.size() - first))));
    }
  } else if (CanRewriteRows(executor_)) {
    ASSIGN_OR_RETURN(done, ScoreSharing(question, scores));
  } else {
    ASSIGN_OR_RETURN(done, ScoreWhole(question, scores));
  }
  if (!done) return std::optional<std::vector<double>>();
  return std::optional(std::move(scores));
}

Result<bool> ChoiceRunner::Feed(Sequence& sequence, int64_t first_row, std::span<const int32_t> tokens,
                                PrefillKind kind) {
  if (tokens.empty()) return true;
  const Clock::time_point start = Clock::now();
  const auto goes_on = [this](int64_t, int64_t) { return !callbacks_.Cancelled(); };
  ASSIGN_OR_RETURN(const bool whole, sequence.Prefill(tokens, kind, goes_on, first_row));
  if (whole) timing_.AddPrefill(Seconds(start), std::ssize(tokens));
  return whole;
}

Result<std::optional<double>> ChoiceRunner::FeedScored(Sequence& sequence, const ChoiceRequest& choice) {
  std::vector<int32_t> fed = {choice.context.back()};
  fed.insert(fed.end(), choice.ending.begin(), choice.ending.end() - 1);
  const int64_t first_row = std::ssize(choice.context) - 1;
  ASSIGN_OR_RETURN(const bool done, Feed(sequence, first_row, fed, KindOfSteps(executor_)));
  if (!done) return std::optional<double>();
  const Clock::time_point start = Clock::now();
  const size_t vocab = static_cast<size_t>(executor_.config().vocab);
  const int64_t scored = std::ssize(choice.ending);
  double sum = 0;
  for (int64_t row = 0; row < scored; row += kLogitRows) {
    const int64_t count = std::min(kLogitRows, scored - row);
    logits_.resize(static_cast<size_t>(count) * vocab);
    sequence.Logits(row, count, logits_);
    for (int64_t i = 0; i < count; ++i)
      sum -= NegativeLogLikelihood(std::span(logits_).subspan(static_cast<size_t>(i) * vocab, vocab),
                                   choice.ending[static_cast<size_t>(row + i)]);
  }
  timing_.AddPrefill(Seconds(start), 0);
  pool_bytes_ = executor_.instruments().pool_bytes();
  return std::optional(sum);
}

Result<bool> ChoiceRunner::ScoreSharing(const ChoiceQuestion& question, std::vector<double>& scores) {
  const size_t common = CommonPrompt(question);
  ASSIGN_OR_RETURN(Sequence sequence, Sequence::Admit(executor_, question.rows()));
  ASSIGN_OR_RETURN(bool done, Feed(sequence, 0, Prompt(question.choices[0]).first(common), PrefillKind::kDense));
  for (size_t i = 0; i < scores.size() && done; ++i) {
    const ChoiceRequest& choice = question.choices[i];
    ASSIGN_OR_RETURN(done,
                     Feed(sequence, static_cast<int64_t>(common), Prompt(choice).subspan(common), PrefillKind::kDense));
    if (!done) break;
    ASSIGN_OR_RETURN(const std::optional<double> score, FeedScored(sequence, choice));
    done = score.has_value();
    if (done) scores[i] = *score;
  }
  return done;
}

Result<bool> ChoiceRunner::ScoreWhole(const ChoiceQuestion& question, std::vector<double>& scores) {
  for (size_t i = 0; i < scores.size(); ++i) {
    // Admit every choice with the same number of rows, so that a limit given as a share is the same for all.
    ASSIGN_OR_RETURN(Sequence sequence, Sequence::Admit(executor_, question.rows()));
    ASSIGN_OR_RETURN(const bool read, Feed(sequence, 0, Prompt(question.choices[i]), PrefillKind::kDense));
    if (!read) return false;
    ASSIGN_OR_RETURN(const std::optional<double> score, FeedScored(sequence, question.choices[i]));
    if (!score) return false;
    scores[i] = *score;
  }
  return true;
}

struct ChoiceRunner::Live {
  const ChoiceRequest* choice;
  double* score;
  size_t scored = 0;  // tokens of the ending
  StepItem item;
};

Result<bool> ChoiceRunner::ScoreBySteps(const ChoiceQuestion& question, size_t first, std::span<double> scores) {
  std::vector<Live> live;
  std::vector<Sequence> sequences;  // released together at the end
  for (size_t i = 0; i < scores.size(); ++i) {
    const ChoiceRequest& choice = question.choices[first + i];
    ASSIGN_OR_RETURN(Sequence sequence, Sequence::Admit(executor_, question.rows()));
    ASSIGN_OR_RETURN(const bool read, Feed(sequence, 0, Prompt(choice), PrefillKind::kDense));
    if (!read) return false;
    sequence.EndPrefill();
    live.push_back({.choice = &choice,
                    .score = &scores[i],
                    .item = {sequence.slot(), choice.context.back(), std::ssize(choice.context) - 1}});
    sequences.push_back(std::move(sequence));
  }
  const size_t vocab = static_cast<size_t>(executor_.config().vocab);
  logits_.resize(live.size() * vocab);
  std::vector<StepItem> items;
  while (!live.empty() && !callbacks_.Cancelled()) {
    items.clear();
    for (const Live& one : live) items.push_back(one.item);
    const Clock::time_point start = Clock::now();
    executor_.Step(items, std::span(logits_).first(items.size() * vocab));
    timing_.AddStep(Seconds(start), std::ssize(items));
    pool_bytes_ = executor_.instruments().pool_bytes();
    for (size_t i = 0; i < live.size(); ++i) {
      Live& one = live[i];
      const int32_t token = one.choice->ending[one.scored++];
      *one.score -= NegativeLogLikelihood(std::span(logits_).subspan(i * vocab, vocab), token);
      one.item = {one.item.slot, token, one.item.row + 1};
    }
    std::erase_if(live, [](const Live& one) { return one.scored == one.choice->ending.size(); });
  }
  return live.empty();
}

// ---- the evaluation ----

Result<ChoiceInput> PrepareChoice(const EvalSession& session, const KvRequest& kv, ChoiceTask task,
                                  const ChoiceOptions& options) {
  ChoiceInput input{.task = std::move(task), .options = options};
  const ModelConfig& config = session.model().config;
  ASSIGN_OR_RETURN(const ChoiceMaker maker, ChoiceMaker::Make(input.task, session.tokenizer(), options.shots,
                                                              static_cast<uint64_t>(options.seed)));
  const size_t count = input.task.items.size();
  const size_t asked = options.limit > 0 ? std::min(static_cast<size_t>(options.limit), count) : count;
  for (size_t i = 0; i < asked; ++i) {
    if (session.callbacks().Cancelled()) return Invalid("cancelled");
    ASSIGN_OR_RETURN(ChoiceQuestion question, maker.Question(i));
    for (const ChoiceRequest& choice : question.choices) {
      if (kv.prompt_columns && kv.selection().uses_basis && choice.context.size() < 2)
        return Unsupported("{}:{}: --kv-columns prompt: needs a prompt, and this context is a single token",
                           input.task.path, question.line);
      RETURN_IF_ERROR(CheckIds(config, choice.context));
      RETURN_IF_ERROR(CheckIds(config, choice.ending));
    }
    if (!ChooseContext(config, question.rows()).ok())
      return Invalid("{}:{}: {} tokens, but {} has positions for {}; lower --shots", input.task.path, question.line,
                     question.rows(), config.name, config.max_positions);
    input.rows = std::max(input.rows, question.rows());
    input.most_choices = std::max(input.most_choices, std::ssize(question.choices));
    input.questions.push_back(std::move(question));
  }
  return input;
}

double ChoiceResult::share(int64_t count) const {
  return n() > 0 ? static_cast<double>(count) / static_cast<double>(n()) : std::numeric_limits<double>::quiet_NaN();
}

double ChoiceResult::accuracy_stderr() const {
  return n() > 1 ? std::sqrt(accuracy() * (1 - accuracy()) / static_cast<double>(n() - 1))
                 : std::numeric_limits<double>::quiet_NaN();
}

Result<ChoiceResult> AskQuestions(const EvalSession& session, const ChoiceInput& input) {
  ChoiceResult result;
  result.wanted = std::ssize(input.questions);
  const ChoiceMode mode = input.options.mode;
  ChoiceRunner runner(session.executor(), mode, session.callbacks());
  std::optional<ChoiceRunner> other;
  if (session.other() != nullptr) other.emplace(*session.other(), mode, session.callbacks());
  const bool is_full = session.executor().options().is_full();
  for (const ChoiceQuestion& question : input.questions) {
    ASSIGN_OR_RETURN(std::optional<std::vector<double>> scores, runner.Score(question));
    if (!scores) break;
    const ChoiceAnswer answer = Choose(question, std::move(*scores));
    if (other) {
      ASSIGN_OR_RETURN(std::optional<std::vector<double>> other_scores, other->Score(question));
      if (!other_scores) break;
      result.other_answers.push_back(Choose(question, std::move(*other_scores)));
      result.same += result.other_answers.back().choice == answer.choice ? 1 : 0;
    }
    result.same += is_full && !other ? 1 : 0;
    result.right += answer.choice == question.answer ? 1 : 0;
    result.right_norm += answer.choice_norm == question.answer ? 1 : 0;
    result.answers.push_back(answer);
    session.callbacks().Status(
        fmt::format("{}: question {} of {}, {} right", input.task.name, result.n(), result.wanted, result.right));
  }
  session.callbacks().Status("");
  result.timing = runner.timing();
  result.pool = runner.pool();
  return result;
}

}  // namespace infinigen
