// Reads files of questions with several choices and turns each question into the texts that are scored: a context, and
// the endings that may follow it. The contexts are those of lm-evaluation-harness (docs/evaluation-choice.md has them).
// No model is needed. Any thread.
//
// A file is recognised by its first line: the tab-separated form of OpenBookQA, or JSON lines with the fields of COPA,
// PIQA, WinoGrande, or our own {"context": "...", "choices": ["...", ...], "answer": 0}.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace infinigen {

// One of the two lists has an entry for each choice, the other has one for each or one for all.
struct ChoiceItem {
  std::vector<std::string> contexts;
  std::vector<std::string> endings;  // follow a space; never empty
  size_t answer = 0;
  int64_t line = 0;  // in the file, from 1

  size_t count() const { return contexts.size() > endings.size() ? contexts.size() : endings.size(); }
  const std::string& context(size_t choice) const { return contexts.size() > 1 ? contexts[choice] : contexts[0]; }
  const std::string& ending(size_t choice) const { return endings.size() > 1 ? endings[choice] : endings[0]; }
};

enum class ChoiceFormat { kPlain, kCopa, kOpenBookQa, kPiqa, kWinoGrande };

struct ChoiceFile {
  ChoiceFormat format = ChoiceFormat::kPlain;
  std::string task;  // "copa"; in the plain format the field "task", or empty
  std::vector<ChoiceItem> items;
};

// Right answers in a separate file: line n answers question n, written as in the file of questions.
struct ChoiceLabels {
  std::string path;
  std::vector<int64_t> values;
};

// The format of the first line that is not blank. `path` is used in messages only, here and below.
Result<ChoiceFormat> RecogniseChoices(std::string_view text, const std::string& path);

// Every question has an answer: its own, that of `labels`, or both, which then must agree.
Result<ChoiceFile> ParseChoices(std::string_view text, const std::string& path,
                                const std::optional<ChoiceLabels>& labels = std::nullopt);

Result<ChoiceLabels> ParseLabels(std::string_view text, const std::string& path);

// Without white space at its ends, or at its right end; white space of Unicode.
std::string_view Trimmed(std::string_view text);
std::string_view TrimmedRight(std::string_view text);

}  // namespace infinigen
