// Multiple-choice questions made ready for a model: the files of a task are found and read, examples are drawn, and
// each question becomes tokens, a context and a scored ending for every choice. Prompts and their cut into tokens are
// those of lm-evaluation-harness (docs/evaluation-choice.md). One thread.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "eval/choice_lines.h"
#include "runtime/text.h"

namespace infinigen {

struct ChoiceTask {
  std::string name;  // "copa"
  std::string path;  // the file of the questions
  std::vector<ChoiceItem> items;
  std::string examples_path;         // empty: examples are other questions of the same file
  std::vector<ChoiceItem> examples;  // of the training split

  const std::vector<ChoiceItem>& pool() const { return examples_path.empty() ? items : examples; }
};

// Returns the whole of a file as bytes. The caller decides what names like "-" mean.
using TextReader = std::function<Result<std::string>(const std::string& path)>;

// `path`: a directory, or one file; "-" is called standard input in messages. `examples`: whether any will be drawn.
//
// In a directory the files *.jsonl and *.tsv are questions, *.lst are answers; a name tells its split (train, test, val
// or dev). The questions are those that lm-evaluation-harness asks: OpenBookQA's test split, else the validation split.
// Examples come from the training split; without one, and for a single file, from the other questions.
Result<ChoiceTask> LoadChoiceTask(const std::string& path, bool examples, const TextReader& read);

// One choice, as tokens.
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
  int64_t line = 0;  // in the file, from 1

  int64_t rows() const;  // of the longest choice
};

// The examples of question `index`, as indices in a pool of `pool` questions: `count` different ones, the same for the
// same seed and index. `from_itself`: the pool holds the questions that are asked, and this one is left out.
// Precondition: there are enough.
std::vector<size_t> DrawExamples(uint64_t seed, size_t index, size_t pool, size_t count, bool from_itself);

class ChoiceMaker {
 public:
  // Both outlive it. Refuses more examples than there are.
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
  std::vector<int32_t> opening_;  // tokens before every text
};

}  // namespace infinigen
