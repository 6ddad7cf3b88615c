// Log-likelihoods of a question's choices under one executor's method.
//
// The context less its last token is prefilled, as a prompt is. Its last token and those of the ending are decode
// steps: so every prediction that is scored is one of the method, also where an ending is a single token. By default
// they are taken through the layers in bulk (PrefillKind::kSteps), one choice after another; or really step by step,
// all choices of a question at once. On the CPU both give the same bits.
//
// In bulk, what the choices' contexts have in common is prefilled once where a sequence can go back: rows beyond it are
// written anew for each choice. A method that evicted cannot; nor one whose books hold more than rows (page bounds that
// only widen, the last step's query, columns that a prompt chose). Those read the context for each choice.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/result.h"
#include "cli/choice_prompt.h"
#include "model/executor.h"
#include "runtime/report.h"

namespace infinigen {

enum class ChoiceMode { kBatched, kStep };

class ChoiceRunner {
 public:
  // `executor` outlives it.
  ChoiceRunner(Executor& executor, ChoiceMode mode) : executor_(executor), mode_(mode) {}

  // ln p of each choice's ending. nullopt: Ctrl-C.
  Result<std::optional<std::vector<double>>> Score(const ChoiceQuestion& question);

  // Of everything run so far; a prefill that Ctrl-C ended is not in it.
  const Timing& timing() const { return timing_; }
  PoolUse pool() const { return {pool_bytes_, executor_.instruments().pool_peak_bytes()}; }

 private:
  struct Live;

  Result<bool> ScoreInBulk(const ChoiceQuestion& question, std::vector<double>& scores);
  Result<bool> ScoreGoingBack(const ChoiceQuestion& question, std::vector<double>& scores);
  Result<bool> ScoreBySteps(const ChoiceQuestion& question, size_t first, std::span<double> scores);
  // The sequence's rows from `first_row` on become `tokens`; nothing to do for none. False: Ctrl-C.
  Result<bool> Feed(SeqSlot slot, int64_t first_row, std::span<const int32_t> tokens, PrefillKind kind);
  // The scored part of one choice, after its context less one token. nullopt: Ctrl-C.
  Result<std::optional<double>> FeedScored(SeqSlot slot, const ChoiceRequest& choice);

  Executor& executor_;
  const ChoiceMode mode_;
  Timing timing_;
  uint64_t pool_bytes_ = 0;
  std::vector<float> logits_;
};

}  // namespace infinigen
