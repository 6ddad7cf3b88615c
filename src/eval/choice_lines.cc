#include "eval/choice_lines.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <nlohmann/json.hpp>
#include <utility>

#include "runtime/text.h"

namespace infinigen {
namespace {

using Json = nlohmann::json;

// Foreign JSON is built as a tree, which takes up to 50 times its bytes: a line's tree stays within 50 MiB.
constexpr size_t kMaxQuestionBytes = size_t{1} << 20;
constexpr size_t kMaxQuestions = 200'000;
constexpr size_t kMaxChoices = 64;

struct Line {
  std::string_view text;
  int64_t number = 0;
};

// Takes the next line off `text`; blank ones are skipped. nullopt at the end.
std::optional<Line> NextLine(std::string_view& text, int64_t& number) {
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    ++number;
    if (!line.empty() && line.back() == '\r') line.remove_suffix(1);
    if (line.find_first_not_of(" \t") != std::string_view::npos) return Line{line, number};
  }
  return std::nullopt;
}

// ---- JSON lines ----

// One question as JSON, with messages that say where it is.
class Fields {
 public:
  static Result<Fields> Parse(const Line& line, const std::string& path) {
    Fields fields(path, line.number);
    if (line.text.size() > kMaxQuestionBytes)
      return fields.Wrong(fmt::format("a line of {} bytes, {} at most", line.text.size(), kMaxQuestionBytes));
    try {
      fields.json_ = Json::parse(line.text.begin(), line.text.end());
    } catch (const Json::parse_error& error) {
      return fields.Wrong(fmt::format("no valid JSON at column {}", error.byte));
    } catch (const Json::exception&) {
      return fields.Wrong("a number that JSON cannot hold");
    }
    if (!fields.json_.is_object()) return fields.Wrong("an object {...} is expected");
    return fields;
  }

  bool Has(const char* name) const { return json_.contains(name); }

  Result<std::string> Text(const char* name, bool may_be_empty = false) const {
    const auto found = json_.find(name);
    if (found == json_.end()) return Missing(name);
    return TextOf(*found, name, may_be_empty);
  }

  Result<std::vector<std::string>> Texts(const char* name) const {
    const auto found = json_.find(name);
    if (found == json_.end()) return Missing(name);
    if (!found->is_array() || found->size() < 2 || found->size() > kMaxChoices)
      return Wrong(fmt::format("field '{}' must be a list of 2 to {} texts", name, kMaxChoices));
    std::vector<std::string> texts;
    for (const Json& one : *found) {
      ASSIGN_OR_RETURN(std::string text, TextOf(one, name, false));
      texts.push_back(std::move(text));
    }
    return texts;
  }

  // A whole number, also where it is written as text ("2"); nullopt where there is no such field.
  Result<std::optional<int64_t>> Label(const char* name) const {
    const auto found = json_.find(name);
    if (found == json_.end()) return std::optional<int64_t>();
    int64_t value = -1;
    bool whole = found->is_number_integer() && *found >= 0 && *found <= INT32_MAX;
    if (whole) value = found->get<int64_t>();
    if (found->is_string()) {
      const std::string& text = found->get_ref<const std::string&>();
      const auto [end, wrong] = std::from_chars(text.data(), text.data() + text.size(), value);
      whole = wrong == std::errc() && end == text.data() + text.size() && value >= 0;
    }
    if (!whole) return Wrong(fmt::format("field '{}' must be the number of a choice", name));
    return std::optional(value);
  }

  Error Wrong(std::string_view what) const { return Invalid("{}:{}: {}", path_, line_, what); }
  Error Missing(const char* name) const { return Wrong(fmt::format("field '{}' is missing", name)); }

 private:
  Fields(const std::string& path, int64_t line) : path_(path), line_(line) {}

  Result<std::string> TextOf(const Json& value, const char* name, bool may_be_empty) const {
    if (!value.is_string()) return Wrong(fmt::format("field '{}' must hold text", name));
    const std::string& text = value.get_ref<const std::string&>();
    if (!may_be_empty && Trimmed(text).empty()) return Wrong(fmt::format("field '{}' is empty", name));
    return text;
  }

  std::string path_;
  int64_t line_;
  Json json_;
};

// What a format's line comes to: the question, and its answer as the line writes it.
struct Parsed {
  ChoiceItem item;
  std::optional<int64_t> label;
};

// "My body cast a shadow." with "cause": "My body cast a shadow because", "the sun was rising."
Result<Parsed> ParseCopa(const Fields& fields) {
  Parsed parsed;
  ASSIGN_OR_RETURN(const std::string premise, fields.Text("premise"));
  ASSIGN_OR_RETURN(const std::string asked, fields.Text("question"));
  if (asked != "cause" && asked != "effect") return fields.Wrong("field 'question' must be cause or effect");
  std::string_view start = Trimmed(premise);
  do {
    start.remove_suffix(1);  // the full stop, a character of one byte or more
  } while (ValidUtf8Prefix(start) != start.size());
  parsed.item.contexts = {std::string(start) + (asked == "cause" ? " because" : " therefore")};
  for (const char* name : {"choice1", "choice2"}) {
    ASSIGN_OR_RETURN(std::string choice, fields.Text(name));
    if (choice[0] >= 'A' && choice[0] <= 'Z') choice[0] = static_cast<char>(choice[0] - 'A' + 'a');
    parsed.item.endings.push_back(std::move(choice));
  }
  ASSIGN_OR_RETURN(parsed.label, fields.Label("label"));
  return parsed;
}

Result<Parsed> ParsePiqa(const Fields& fields) {
  Parsed parsed;
  ASSIGN_OR_RETURN(const std::string goal, fields.Text("goal"));
  parsed.item.contexts = {"Question: " + goal + "\nAnswer:"};
  for (const char* name : {"sol1", "sol2"}) {
    ASSIGN_OR_RETURN(std::string choice, fields.Text(name));
    parsed.item.endings.push_back(std::move(choice));
  }
  ASSIGN_OR_RETURN(parsed.label, fields.Label("label"));
  return parsed;
}

// Partial evaluation: each option in the place of the blank, and what follows the blank is scored.
Result<Parsed> ParseWinoGrande(const Fields& fields) {
  Parsed parsed;
  ASSIGN_OR_RETURN(const std::string sentence, fields.Text("sentence"));
  const size_t blank = sentence.find('_');
  if (blank == std::string::npos) return fields.Wrong("field 'sentence' has no blank (_)");
  const std::string_view rest = Trimmed(std::string_view(sentence).substr(blank + 1));
  if (rest.empty()) return fields.Wrong("nothing follows the blank (_), so there is nothing to score");
  parsed.item.endings = {std::string(rest)};
  for (const char* name : {"option1", "option2"}) {
    ASSIGN_OR_RETURN(const std::string option, fields.Text(name));
    parsed.item.contexts.push_back(sentence.substr(0, blank) + option);
  }
  ASSIGN_OR_RETURN(parsed.label, fields.Label("answer"));
  return parsed;
}

Result<Parsed> ParsePlain(const Fields& fields) {
  Parsed parsed;
  if (fields.Has("context") && fields.Has("query"))
    return fields.Wrong("\"context\" and \"query\" are the same field, give one");
  ASSIGN_OR_RETURN(std::string context, fields.Text(fields.Has("query") ? "query" : "context", true));
  parsed.item.contexts = {std::move(context)};
  ASSIGN_OR_RETURN(parsed.item.endings, fields.Texts("choices"));
  ASSIGN_OR_RETURN(parsed.label, fields.Label("answer"));
  return parsed;
}

// ---- OpenBookQA ----

struct TsvColumns {
  size_t stem = SIZE_MAX, choices = SIZE_MAX, key = SIZE_MAX;
};

std::vector<std::string_view> Cells(std::string_view line) {
  std::vector<std::string_view> cells;
  for (size_t end = 0; end != std::string_view::npos && cells.size() < kMaxChoices;) {
    end = line.find('\t');
    cells.push_back(line.substr(0, end));
    if (end != std::string_view::npos) line.remove_prefix(end + 1);
  }
  return cells;
}

std::optional<TsvColumns> OpenBookColumns(std::string_view header) {
  TsvColumns columns;
  const std::vector<std::string_view> cells = Cells(header);
  for (size_t i = 0; i < cells.size(); ++i) {
    if (cells[i] == "Question Stem") columns.stem = i;
    if (cells[i] == "Choices") columns.choices = i;
    if (cells[i] == "Answer Key") columns.key = i;
  }
  if (std::max({columns.stem, columns.choices, columns.key}) == SIZE_MAX) return std::nullopt;
  return columns;
}

// "(A) puppies (B) children growing up": the texts between the letters, in their order.
std::vector<std::string> SplitLettered(std::string_view text) {
  std::vector<std::string> choices;
  if (!text.starts_with("(A) ")) return choices;
  text.remove_prefix(4);
  for (char letter = 'B'; letter <= 'Z'; ++letter) {
    const size_t next = text.find(fmt::format(" ({}) ", letter));
    choices.emplace_back(Trimmed(text.substr(0, next)));
    if (next == std::string_view::npos) break;
    text.remove_prefix(next + 5);
  }
  return choices;
}

Result<Parsed> ParseOpenBook(const Line& line, const TsvColumns& columns, const std::string& path) {
  if (line.text.size() > kMaxQuestionBytes)
    return Invalid("{}:{}: a line of {} bytes, {} at most", path, line.number, line.text.size(), kMaxQuestionBytes);
  const std::vector<std::string_view> cells = Cells(line.text);
  if (cells.size() <= std::max({columns.stem, columns.choices, columns.key}))
    return Invalid("{}:{}: {} columns, the first line names more", path, line.number, cells.size());
  if (ValidUtf8Prefix(line.text) != line.text.size())
    return Invalid("{}:{}: no valid UTF-8 at byte {}", path, line.number, ValidUtf8Prefix(line.text));
  Parsed parsed;
  parsed.item.contexts = {std::string(cells[columns.stem])};
  parsed.item.endings = SplitLettered(cells[columns.choices]);
  const auto empty = [](const std::string& choice) { return choice.empty(); };
  const std::vector<std::string>& endings = parsed.item.endings;
  if (endings.size() < 2 || std::any_of(endings.begin(), endings.end(), empty))
    return Invalid("{}:{}: the choices must look like \"(A) one (B) another\"", path, line.number);
  const std::string_view key = Trimmed(cells[columns.key]);
  if (key.size() > 1 || (key.size() == 1 && (key[0] < 'A' || key[0] > 'Z')))
    return Invalid("{}:{}: the answer key must be the letter of a choice", path, line.number);
  if (key.size() == 1) parsed.label = key[0] - 'A';
  return parsed;
}

// ---- all formats ----

Result<ChoiceFormat> FormatOf(const Line& first, const std::string& path) {
  if (OpenBookColumns(first.text)) return ChoiceFormat::kOpenBookQa;
  const size_t start = first.text.find_first_not_of(" \t");
  if (first.text[start] != '{')
    return Invalid("{}:{}: neither a JSON object nor the first line of OpenBookQA's table", path, first.number);
  ASSIGN_OR_RETURN(const Fields fields, Fields::Parse(first, path));
  if (fields.Has("premise") && fields.Has("choice1")) return ChoiceFormat::kCopa;
  if (fields.Has("goal") && fields.Has("sol1")) return ChoiceFormat::kPiqa;
  if (fields.Has("sentence") && fields.Has("option1")) return ChoiceFormat::kWinoGrande;
  if (fields.Has("choices")) return ChoiceFormat::kPlain;
  return Invalid(
      "{}:{}: not the fields of a task: {{\"context\", \"choices\", \"answer\"}}, or those of COPA, PIQA or WinoGrande",
      path, first.number);
}

Result<Parsed> ParseJsonLine(const Fields& fields, ChoiceFormat format) {
  switch (format) {
    case ChoiceFormat::kCopa:
      return ParseCopa(fields);
    case ChoiceFormat::kPiqa:
      return ParsePiqa(fields);
    case ChoiceFormat::kWinoGrande:
      return ParseWinoGrande(fields);
    default:
      return ParsePlain(fields);
  }
}

std::string_view TaskName(ChoiceFormat format) {
  constexpr std::array<std::string_view, 5> kNames = {"", "copa", "openbookqa", "piqa", "winogrande"};
  return kNames[static_cast<size_t>(format)];
}

// The answer as an index: WinoGrande counts its options from 1.
Status Answer(const Parsed& parsed, ChoiceFormat format, const std::string& path, size_t index,
              const std::optional<ChoiceLabels>& labels, ChoiceItem& item) {
  std::optional<int64_t> label = parsed.label;
  if (labels) {
    if (index >= labels->values.size())
      return Invalid("{}: {} labels, but {}:{} is one more question", labels->path, labels->values.size(), path,
                     item.line);
    if (label && *label != labels->values[index])
      return Invalid("{}:{}: the answer is {}, in {} it is {}", path, item.line, *label, labels->path,
                     labels->values[index]);
    label = labels->values[index];
  }
  if (!label) return Invalid("{}:{}: the right answer is missing", path, item.line);
  const int64_t answer = *label - (format == ChoiceFormat::kWinoGrande ? 1 : 0);
  if (answer < 0 || answer >= static_cast<int64_t>(item.count()))
    return labels ? Invalid("{}: label {} is {}, none of the {} choices of {}:{}", labels->path, index + 1, *label,
                            item.count(), path, item.line)
                  : Invalid("{}:{}: the answer {} is none of the {} choices", path, item.line, *label, item.count());
  item.answer = static_cast<size_t>(answer);
  return Ok();
}

}  // namespace

Result<ChoiceFormat> RecogniseChoices(std::string_view text, const std::string& path) {
  int64_t number = 0;
  const std::optional<Line> first = NextLine(text, number);
  if (!first) return Invalid("{}: holds no question", path);
  return FormatOf(*first, path);
}

Result<ChoiceFile> ParseChoices(std::string_view text, const std::string& path,
                                const std::optional<ChoiceLabels>& labels) {
  ChoiceFile file;
  ASSIGN_OR_RETURN(file.format, RecogniseChoices(text, path));
  file.task = TaskName(file.format);
  int64_t number = 0;
  std::optional<TsvColumns> columns;
  while (const std::optional<Line> line = NextLine(text, number)) {
    if (file.format == ChoiceFormat::kOpenBookQa && !columns) {
      columns = OpenBookColumns(line->text);
      continue;
    }
    if (file.items.size() == kMaxQuestions)
      return Invalid("{}:{}: more than {} questions, split the file", path, line->number, kMaxQuestions);
    Parsed parsed;
    if (columns) {
      ASSIGN_OR_RETURN(parsed, ParseOpenBook(*line, *columns, path));
    } else {
      ASSIGN_OR_RETURN(const Fields fields, Fields::Parse(*line, path));
      ASSIGN_OR_RETURN(parsed, ParseJsonLine(fields, file.format));
      if (file.format == ChoiceFormat::kPlain && file.items.empty() && fields.Has("task")) {
        ASSIGN_OR_RETURN(file.task, fields.Text("task"));
      }
    }
    ChoiceItem& item = file.items.emplace_back(std::move(parsed.item));
    item.line = line->number;
    RETURN_IF_ERROR(Answer(parsed, file.format, path, file.items.size() - 1, labels, item));
  }
  if (file.items.empty()) return Invalid("{}: holds no question", path);
  if (labels && labels->values.size() != file.items.size())
    return Invalid("{}: {} labels for the {} questions of {}", labels->path, labels->values.size(), file.items.size(),
                   path);
  return file;
}

Result<ChoiceLabels> ParseLabels(std::string_view text, const std::string& path) {
  ChoiceLabels labels{.path = path, .values = {}};
  int64_t number = 0;
  while (const std::optional<Line> line = NextLine(text, number)) {
    const std::string_view word = Trimmed(line->text);
    int64_t value = -1;
    const auto [end, wrong] = std::from_chars(word.data(), word.data() + word.size(), value);
    if (wrong != std::errc() || end != word.data() + word.size() || value < 0)
      return Invalid("{}:{}: '{}' is no label, one number a line is expected", path, line->number,
                     OneLine(word.substr(0, 32)));
    if (labels.values.size() == kMaxQuestions)
      return Invalid("{}:{}: more than {} labels", path, line->number, kMaxQuestions);
    labels.values.push_back(value);
  }
  return labels;
}

std::string_view TrimmedRight(std::string_view text) {
  while (!text.empty()) {
    size_t start = text.size() - 1;
    while (start > 0 && text.size() - start < 4 && (static_cast<unsigned char>(text[start]) & 0xC0) == 0x80) --start;
    const Utf8Scan last = ScanUtf8(text, start);
    if (!last.valid || start + last.length != text.size() || !IsWhiteSpace(DecodeUtf8(text, start))) break;
    text.remove_suffix(last.length);
  }
  return text;
}

std::string_view Trimmed(std::string_view text) {
  text = TrimmedRight(text);
  while (!text.empty()) {
    const Utf8Scan first = ScanUtf8(text, 0);
    if (!first.valid || !IsWhiteSpace(DecodeUtf8(text, 0))) break;
    text.remove_prefix(first.length);
  }
  return text;
}

}  // namespace infinigen
