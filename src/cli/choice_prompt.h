// What a multiple-choice question comes to for a model: for each choice the tokens of its context, examples included,
// and those that are scored after it. Cut as lm-evaluation-harness cuts them: white space at the end of a context
// belongs to what follows; both are encoded together, and what lies beyond the tokens of the context alone is scored.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "cli/choice_task.h"
#include "text/tokenizer.h"

namespace infinigen {

struct ChoiceRequest {
  std::vector<int32_t> context;  // at least one token, special ones that open a text included
  std::vector<int32_t> ending;   // at least one
  int64_t characters = 0;        // of the choice's text, without the space before it

  // The last token of the ending is scored, never fed.
  int64_t rows() const { return static_cast<int64_t>(context.size() + ending.size()) - 1; }
};

struct ChoiceQuestion {
  std::vector<ChoiceRequest> choices;
  size_t answer = 0;
  int64_t line = 0;

  int64_t rows() const;
};

// Which of `pool` questions are the examples of question `index`: `count` different ones, the same for the same seed
// and index. `from_itself`: the pool is the questions' own, and the asked one is left out. Precondition: there are
// enough.
std::vector<size_t> DrawExamples(uint64_t seed, size_t index, size_t pool, size_t count, bool from_itself);

class ChoiceMaker {
 public:
  // Both outlive it. Refused: more examples than there are.
  static Result<ChoiceMaker> Make(const ChoiceTask& task, const Tokenizer& tokenizer, int64_t examples, uint64_t seed);

  Result<ChoiceQuestion> Question(size_t index) const;
  // The examples before question `index`, each with its right answer and an empty line after it.
  std::string Examples(size_t index) const;

 private:
  ChoiceMaker(const ChoiceTask& task, const Tokenizer& tokenizer, int64_t examples, uint64_t seed)
      : task_(&task), tokenizer_(&tokenizer), examples_(static_cast<size_t>(examples)), seed_(seed) {}

  // `before`: the tokens of the context alone.
  Result<ChoiceRequest> Encode(std::string_view context, const std::vector<int32_t>& before,
                               std::string_view ending) const;

  const ChoiceTask* task_;
  const Tokenizer* tokenizer_;
  size_t examples_;
  uint64_t seed_;
  std::vector<int32_t> opening_;  // before every text
};

}  // namespace infinigen
