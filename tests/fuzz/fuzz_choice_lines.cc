// Parses the input as a file of questions, and as a file of labels. The result is valid questions or a one-line error
// that names the file.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/check.h"
#include "eval/choice_lines.h"

namespace infinigen {
namespace {

void CheckMessage(const std::string& message, std::string_view path) {
  CHECK(message.find('\n') == std::string::npos);
  CHECK(message.size() < 400);
  CHECK(message.substr(0, path.size()) == path);
}

void CheckQuestions(const ChoiceFile& file, size_t bytes) {
  CHECK(!file.items.empty());
  int64_t last_line = 0;
  for (const ChoiceItem& item : file.items) {
    CHECK(item.line > last_line);
    last_line = item.line;
    CHECK(item.count() >= 2 && item.count() <= 64 && item.answer < item.count());
    CHECK(item.contexts.size() == 1 || item.contexts.size() == item.count());
    CHECK(item.endings.size() == 1 || item.endings.size() == item.count());
    for (size_t i = 0; i < item.count(); ++i) {
      CHECK(!item.ending(i).empty());
      CHECK(item.context(i).size() + item.ending(i).size() <= bytes + 32);
    }
  }
}

}  // namespace
}  // namespace infinigen

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace infinigen;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const Result<ChoiceFile> file = ParseChoices(text, "q.jsonl");
  if (file.ok()) CheckQuestions(*file, size);
  if (!file.ok()) CheckMessage(file.error().message, "q.jsonl:");

  // The part after a line "--" is the labels.
  const size_t cut = text.find("\n--\n");
  const std::string_view label_text = cut == std::string_view::npos ? text : text.substr(cut + 4);
  const Result<ChoiceLabels> labels = ParseLabels(label_text, "q.lst");
  if (!labels.ok()) {
    CheckMessage(labels.error().message, "q.lst:");
    return 0;
  }
  const Result<ChoiceFile> labelled = ParseChoices(text.substr(0, cut), "q.jsonl", *labels);
  if (labelled.ok()) CheckQuestions(*labelled, size);
  if (!labelled.ok()) CheckMessage(labelled.error().message, "q.");
  CHECK(Trimmed(text).size() <= TrimmedRight(text).size());
  return 0;
}
