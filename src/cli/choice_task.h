// A multiple-choice task on disk: the questions that are asked, and those that examples are drawn from.
//
// A directory is looked at as data sets come: files *.jsonl and *.tsv, of the split that their name tells (train, test,
// val or dev), and *.lst with the answers of a split. Asked is the split that lm-evaluation-harness asks: OpenBookQA's
// test, else the validation. Examples come from the training split; without one, and for a single file, from the
// questions themselves, the asked one excepted.
#pragma once

#include <string>
#include <vector>

#include "base/result.h"
#include "cli/choice_lines.h"

namespace infinigen {

struct ChoiceTask {
  std::string name;  // "copa"
  std::string path;  // the file of the questions
  std::vector<ChoiceItem> items;
  std::string examples_path;         // empty: examples are other questions
  std::vector<ChoiceItem> examples;  // of the training split

  const std::vector<ChoiceItem>& pool() const { return examples_path.empty() ? items : examples; }
};

// `path`: a directory, or one file; "-" is standard input. `examples`: whether any will be drawn.
Result<ChoiceTask> LoadChoiceTask(const std::string& path, bool examples);

}  // namespace infinigen
