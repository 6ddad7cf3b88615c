#include "cli/choice_run.h"

#include <algorithm>

#include "cli/eval_perplexity.h"
#include "cli/interrupt.h"
#include "runtime/clock.h"

namespace infinigen {
namespace {

// Rows of logits that are asked for at once: 16 MiB at a vocabulary of 128K.
constexpr int64_t kLogitRows = 32;

bool CanGoBack(const KvMethod& method) {
  if (method.evicts() || method.prompt_columns) return false;
  return !method.selects() || (method.select->rewrites_rows && method.from != GuessSource::kPrevStep);
}

std::span<const int32_t> Prompt(const ChoiceRequest& choice) {
  return std::span(choice.context).first(choice.context.size() - 1);
}

// Tokens that all choices begin with.
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

// Ends a sequence's stay, whatever happens.
class Stay {
 public:
  Stay(Executor& executor, SeqSlot slot) : executor_(executor), slot_(slot) {}
  ~Stay() { executor_.Release(slot_); }
  Stay(const Stay&) = delete;
  Stay& operator=(const Stay&) = delete;

 private:
  Executor& executor_;
  const SeqSlot slot_;
};

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
  } else if (CanGoBack(executor_.options().method)) {
    ASSIGN_OR_RETURN(done, ScoreGoingBack(question, scores));
  } else {
    ASSIGN_OR_RETURN(done, ScoreInBulk(question, scores));
  }
  if (!done) return std::optional<std::vector<double>>();
  return std::optional(std::move(scores));
}

Result<bool> ChoiceRunner::Feed(SeqSlot slot, int64_t first_row, std::span<const int32_t> tokens, PrefillKind kind) {
  if (tokens.empty()) return true;
  const Clock::time_point start = Clock::now();
  executor_.EndPrefill(slot);
  RETURN_IF_ERROR(executor_.BeginPrefill(slot, first_row, tokens, kind));
  bool whole = false;
  while (!whole && !Interrupted()) whole = executor_.RunPrefillUnit(slot);
  if (!whole) return false;
  timing_.prefill_s += Seconds(start);
  timing_.prefill_tokens += static_cast<int64_t>(tokens.size());
  return true;
}

Result<std::optional<double>> ChoiceRunner::FeedScored(SeqSlot slot, const ChoiceRequest& choice) {
  const KvMethod& method = executor_.options().method;
  const bool dense = !method.selects() && !method.evicts();
  std::vector<int32_t> fed = {choice.context.back()};
  fed.insert(fed.end(), choice.ending.begin(), choice.ending.end() - 1);
  const int64_t first_row = static_cast<int64_t>(choice.context.size()) - 1;
  ASSIGN_OR_RETURN(const bool done, Feed(slot, first_row, fed, dense ? PrefillKind::kDense : PrefillKind::kSteps));
  if (!done) return std::optional<double>();
  const Clock::time_point start = Clock::now();
  const size_t vocab = static_cast<size_t>(executor_.config().vocab);
  const int64_t scored = static_cast<int64_t>(choice.ending.size());
  double sum = 0;
  for (int64_t row = 0; row < scored; row += kLogitRows) {
    const int64_t count = std::min(kLogitRows, scored - row);
    logits_.resize(static_cast<size_t>(count) * vocab);
    executor_.PrefillLogits(slot, row, count, logits_);
    for (int64_t i = 0; i < count; ++i)
      sum -= NegativeLogLikelihood(std::span(logits_).subspan(static_cast<size_t>(i) * vocab, vocab),
                                   choice.ending[static_cast<size_t>(row + i)]);
  }
  timing_.prefill_s += Seconds(start);
  pool_bytes_ = executor_.instruments().pool_bytes();
  return std::optional(sum);
}

Result<bool> ChoiceRunner::ScoreGoingBack(const ChoiceQuestion& question, std::vector<double>& scores) {
  const size_t common = CommonPrompt(question);
  ASSIGN_OR_RETURN(const SeqSlot slot, executor_.Admit(question.rows()));
  const Stay stay(executor_, slot);
  ASSIGN_OR_RETURN(bool done, Feed(slot, 0, Prompt(question.choices[0]).first(common), PrefillKind::kDense));
  for (size_t i = 0; i < scores.size() && done; ++i) {
    const ChoiceRequest& choice = question.choices[i];
    ASSIGN_OR_RETURN(done,
                     Feed(slot, static_cast<int64_t>(common), Prompt(choice).subspan(common), PrefillKind::kDense));
    if (!done) break;
    ASSIGN_OR_RETURN(const std::optional<double> score, FeedScored(slot, choice));
    done = score.has_value();
    if (done) scores[i] = *score;
  }
  return done;
}

Result<bool> ChoiceRunner::ScoreInBulk(const ChoiceQuestion& question, std::vector<double>& scores) {
  for (size_t i = 0; i < scores.size(); ++i) {
    // The same room for each: what a share of the rows comes to does not depend on the choice.
    ASSIGN_OR_RETURN(const SeqSlot slot, executor_.Admit(question.rows()));
    const Stay stay(executor_, slot);
    ASSIGN_OR_RETURN(const bool read, Feed(slot, 0, Prompt(question.choices[i]), PrefillKind::kDense));
    if (!read) return false;
    ASSIGN_OR_RETURN(const std::optional<double> score, FeedScored(slot, question.choices[i]));
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
  std::vector<std::unique_ptr<Stay>> stays;
  for (size_t i = 0; i < scores.size(); ++i) {
    const ChoiceRequest& choice = question.choices[first + i];
    ASSIGN_OR_RETURN(const SeqSlot slot, executor_.Admit(question.rows()));
    stays.push_back(std::make_unique<Stay>(executor_, slot));
    ASSIGN_OR_RETURN(const bool read, Feed(slot, 0, Prompt(choice), PrefillKind::kDense));
    if (!read) return false;
    executor_.EndPrefill(slot);
    live.push_back({.choice = &choice,
                    .score = &scores[i],
                    .item = {slot, choice.context.back(), static_cast<int64_t>(choice.context.size()) - 1}});
  }
  const size_t vocab = static_cast<size_t>(executor_.config().vocab);
  logits_.resize(live.size() * vocab);
  std::vector<StepItem> items;
  while (!live.empty() && !Interrupted()) {
    items.clear();
    for (const Live& one : live) items.push_back(one.item);
    const Clock::time_point start = Clock::now();
    executor_.Step(items, std::span(logits_).first(items.size() * vocab));
    const double elapsed = Seconds(start);
    timing_.decode_s += elapsed;
    timing_.step_ms.push_back(static_cast<float>(elapsed * 1e3));
    timing_.decode_tokens += static_cast<int64_t>(items.size());
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

}  // namespace infinigen
