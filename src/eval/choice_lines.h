// Reads files of multiple-choice questions and turns each question into the texts to score: a context and the endings
// that may follow it. The contexts are those of lm-evaluation-harness (docs/evaluation-choice.md lists them). Needs no
// model. Any thread.
//
// The first line of a file determines its format: the tab-separated form of OpenBookQA, or JSON lines with the fields
// of COPA, PIQA, WinoGrande, or the plain format {"context": "...", "choices": ["...", ...], "answer": 0}.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace infinigen {

// Invariant: at least one of the two lists has an entry for each choice; the other may have one entry for all choices.
struct ChoiceItem {
  std::vector<std::string> contexts;
  std::vector<std::string> endings;  // follow the context after a space; never empty
  size_t answer = 0;
  int64_t line = 0;  // in the file, from 1

  size_t count() const { return contexts.size() > endings.size() ? contexts.size() : endings.size(); }
  const std::string& context(size_t choice) const { return contexts.size() > 1 ? contexts[choice] : contexts[0]; }
  const std::string& ending(size_t choice) const { return endings.size() > 1 ? endings[choice] : endings[0]; }
};

enum class ChoiceFormat { kPlain, kCopa, kOpenBookQa, kPiqa, kWinoGrande };

struct ChoiceFile {
  ChoiceFormat format = ChoiceFormat::kPlain;
  std::string task;  // "copa"; in the plain format, the field "task" or empty
  std::vector<ChoiceItem> items;
};

// Right answers from a separate file: line n is the answer to question n, in the notation of the question file.
struct ChoiceLabels {
  std::string path;
  std::vector<int64_t> values;
};

// The format of the first line that is not blank. Here and below, `path` is used only in messages.
Result<ChoiceFormat> RecogniseChoices(std::string_view text, const std::string& path);

// Every question must have an answer, in its line or in `labels`; if both exist, they must agree.
Result<ChoiceFile> ParseChoices(std::string_view text, const std::string& path,
                                const std::optional<ChoiceLabels>& labels = std::nullopt);

Result<ChoiceLabels> ParseLabels(std::string_view text, const std::string& path);

// Remove Unicode white space from both ends, or from the right end.
std::string_view Trimmed(std::string_view text);
std::string_view TrimmedRight(std::string_view text);

}  // namespace infinigen
