// Prepares multiple-choice questions for a model: finds and reads the files of a task, draws examples, and turns each
// question into tokens: a context and a scored ending for every choice. Prompts and tokenization are those of
// lm-evaluation-harness (docs/evaluation-choice.md). One thread.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "eval/choice_lines.h"
#include "runtime/requests.h"

namespace infinigen {

struct ChoiceTask {
  std::string name;  // "copa"
  std::string path;  // the question file
  std::vector<ChoiceItem> items;
  std::string examples_path;         // empty: examples are other questions of the same file
  std::vector<ChoiceItem> examples;  // the training split

  const std::vector<ChoiceItem>& pool() const { return examples_path.empty() ? items : examples; }
};

// Returns a whole file as bytes. The caller decides what names like "-" mean.
using TextReader = std::function<Result<std::string>(const std::string& path)>;

// `path`: a directory or one file; messages call "-" standard input. `examples`: whether examples will be drawn.
//
// In a directory, *.jsonl and *.tsv are question files and *.lst are answer files; the name tells the split (train,
// test, val or dev). As in lm-evaluation-harness, the questions are OpenBookQA's test split, and the validation split
// of other tasks. Examples come from the training split; without one, and for a single file, from the other questions.
Result<ChoiceTask> LoadChoiceTask(const std::string& path, bool examples, const TextReader& read);

// One choice, as tokens.
struct ChoiceRequest {
  std::vector<int32_t> context;  // at least one token, including special tokens that open a text
  std::vector<int32_t> ending;   // at least one token
  int64_t characters = 0;        // length of the choice's text, without the space before it

  // The last token of the ending is scored but never fed.
  int64_t rows() const { return static_cast<int64_t>(context.size() + ending.size()) - 1; }
};

struct ChoiceQuestion {
  std::vector<ChoiceRequest> choices;
  size_t answer = 0;
  int64_t line = 0;  // in the file, from 1

  int64_t rows() const;  // of the longest choice
};

// Draws `count` different examples for question `index`, as indices in a pool of `pool` questions. Depends only on the
// arguments. `from_itself`: the pool holds the questions themselves, and question `index` is left out. Precondition:
// the pool is large enough.
std::vector<size_t> DrawExamples(uint64_t seed, size_t index, size_t pool, size_t count, bool from_itself);

class ChoiceMaker {
 public:
  // `task` and `tokenizer` outlive it. Refuses more examples than the pool has.
  static Result<ChoiceMaker> Make(const ChoiceTask& task, const Tokenizer& tokenizer, int64_t examples, uint64_t seed);

  Result<ChoiceQuestion> Question(size_t index) const;
  // The text of the examples before question `index`, each with its right answer and followed by an empty line.
  std::string Examples(size_t index) const;

 private:
  ChoiceMaker(const ChoiceTask& task, const Tokenizer& tokenizer, int64_t examples, uint64_t seed)
      : task_(&task), tokenizer_(&tokenizer), examples_(static_cast<size_t>(examples)), seed_(seed) {}

  // `before`: the tokens of `context`.
  Result<ChoiceRequest> Encode(std::string_view context, const std::vector<int32_t>& before,
                               std::string_view ending) const;

  const ChoiceTask* task_;
  const Tokenizer* tokenizer_;
  size_t examples_;
  uint64_t seed_;
  std::vector<int32_t> opening_;  // tokens before every text
};

}  // namespace infinigen
