#include "eval/choice_lines.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/utf8.h"
#include "json/fields.h"
#include "json/parse.h"

namespace infinigen {
namespace {

using Json = nlohmann::json;

// A JSON tree takes up to 50 times the bytes of its text, so the tree of a line stays within 50 MiB.
constexpr size_t kMaxQuestionBytes = size_t{1} << 20;
constexpr size_t kMaxQuestions = 200'000;
constexpr size_t kMaxChoices = 64;

using Line = JsonLines::Line;

// ---- JSON lines ----

std::string WhereOf(const std::string& path, const Line& line) { return fmt::format("{}:{}", path, line.number); }

Result<Json> ParseObject(const Line& line, const std::string& path) {
  const std::string where = WhereOf(path, line);
  if (line.text.size() > kMaxQuestionBytes)
    return Invalid("{}: the line has {} bytes, the limit is {}", where, line.text.size(), kMaxQuestionBytes);
  Json json;
  if (const std::optional<JsonFault> fault = BuildJson(line.text, {}, &json)) {
    if (fault->kind == JsonFault::Kind::kNumber) return Invalid("{}: a number is out of range", where);
    if (fault->kind == JsonFault::Kind::kTooDeep) return Invalid("{}: {}", where, fault->Message());
    return Invalid("{}: invalid JSON at column {}", where, fault->byte + 1);
  }
  if (!json.is_object()) return Invalid("{}: the line must be a JSON object", where);
  return json;
}

FieldReader FieldsOf(const Json& object, const std::string& path, const Line& line) {
  return FieldReader(object, WhereOf(path, line), "", FieldWording::kPlain);
}

std::string TextOf(FieldReader& fields, const char* name, const Json& value, bool may_be_empty) {
  if (!value.is_string()) return fields.Refuse(name, "must be text"), "";
  std::string text = value.get<std::string>();
  if (!may_be_empty && Trimmed(text).empty()) fields.Refuse(name, "is empty");
  return text;
}

std::string Text(FieldReader& fields, const char* name, bool may_be_empty = false) {
  const Json* value = fields.Find(name);
  if (value == nullptr) return fields.Refuse(name, "is missing"), "";
  return TextOf(fields, name, *value, may_be_empty);
}

std::vector<std::string> Texts(FieldReader& fields, const char* name) {
  std::vector<std::string> texts;
  const Json* value = fields.Find(name);
  if (value == nullptr) return fields.Refuse(name, "is missing"), texts;
  if (!value->is_array() || value->size() < 2 || value->size() > kMaxChoices)
    return fields.Refuse(name, fmt::format("must be a list of 2 to {} texts", kMaxChoices)), texts;
  for (const Json& one : *value) texts.push_back(TextOf(fields, name, one, false));
  return texts;
}

// A whole number, also if it is written as text ("2"); nullopt if the field is missing.
std::optional<int64_t> Label(FieldReader& fields, const char* name) {
  const Json* found = fields.Find(name);
  if (found == nullptr) return std::nullopt;
  int64_t value = -1;
  bool whole = found->is_number_integer() && *found >= 0 && *found <= INT32_MAX;
  if (whole) value = found->get<int64_t>();
  if (found->is_string()) {
    const std::string& text = found->get_ref<const std::string&>();
    const auto [end, wrong] = std::from_chars(text.data(), text.data() + text.size(), value);
    whole = wrong == std::errc() && end == text.data() + text.size() && value >= 0;
  }
  if (!whole) return fields.Refuse(name, "must be the number of a choice"), std::nullopt;
  return value;
}

// A parsed line: the question, and its answer in the notation of the line.
struct Parsed {
  ChoiceItem item;
  std::optional<int64_t> label;
};

// The reader of each format records errors in `fields`; its result is valid only if there are none.

// "My body cast a shadow." with "cause": "My body cast a shadow because", "the sun was rising."
Parsed ParseCopa(FieldReader& fields) {
  Parsed parsed;
  const std::string premise = Text(fields, "premise");
  const std::string asked = Text(fields, "question");
  if (asked != "cause" && asked != "effect") fields.Refuse("question", "must be cause or effect");
  if (fields.problem()) return parsed;
  std::string_view start = Trimmed(premise);
  do {
    start.remove_suffix(1);  // the full stop
  } while (ValidUtf8Prefix(start) != start.size());
  parsed.item.contexts = {std::string(start) + (asked == "cause" ? " because" : " therefore")};
  for (const char* name : {"choice1", "choice2"}) {
    std::string choice = Text(fields, name);
    if (!choice.empty() && choice[0] >= 'A' && choice[0] <= 'Z') choice[0] = static_cast<char>(choice[0] - 'A' + 'a');
    parsed.item.endings.push_back(std::move(choice));
  }
  parsed.label = Label(fields, "label");
  return parsed;
}

Parsed ParsePiqa(FieldReader& fields) {
  Parsed parsed;
  parsed.item.contexts = {"Question: " + Text(fields, "goal") + "\nAnswer:"};
  for (const char* name : {"sol1", "sol2"}) parsed.item.endings.push_back(Text(fields, name));
  parsed.label = Label(fields, "label");
  return parsed;
}

// Partial evaluation: each option replaces the blank, and the text after the blank is scored.
Parsed ParseWinoGrande(FieldReader& fields) {
  Parsed parsed;
  const std::string sentence = Text(fields, "sentence");
  const size_t blank = sentence.find('_');
  if (blank == std::string::npos) return fields.Refuse("sentence", "has no blank (_)"), parsed;
  const std::string_view rest = Trimmed(std::string_view(sentence).substr(blank + 1));
  if (rest.empty())
    fields.Fail(Invalid("{}: nothing follows the blank (_), so there is nothing to score", fields.where()));
  parsed.item.endings = {std::string(rest)};
  for (const char* name : {"option1", "option2"})
    parsed.item.contexts.push_back(sentence.substr(0, blank) + Text(fields, name));
  parsed.label = Label(fields, "answer");
  return parsed;
}

Parsed ParsePlain(FieldReader& fields) {
  Parsed parsed;
  const bool query = fields.Find("query") != nullptr;
  if (query && fields.Find("context") != nullptr)
    fields.Fail(Invalid("{}: \"context\" and \"query\" are the same field; give only one", fields.where()));
  parsed.item.contexts = {Text(fields, query ? "query" : "context", true)};
  parsed.item.endings = Texts(fields, "choices");
  parsed.label = Label(fields, "answer");
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
    return Invalid("{}:{}: the line has {} bytes, the limit is {}", path, line.number, line.text.size(),
                   kMaxQuestionBytes);
  const std::vector<std::string_view> cells = Cells(line.text);
  if (cells.size() <= std::max({columns.stem, columns.choices, columns.key}))
    return Invalid("{}:{}: the line has {} columns, fewer than the first line", path, line.number, cells.size());
  if (ValidUtf8Prefix(line.text) != line.text.size())
    return Invalid("{}:{}: invalid UTF-8 at byte {}", path, line.number, ValidUtf8Prefix(line.text));
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
    return Invalid("{}:{}: the first line is neither a JSON object nor the header of OpenBookQA's table", path,
                   first.number);
  ASSIGN_OR_RETURN(Json json, ParseObject(first, path));
  const FreeJsonAtEnd free(json);
  if (json.contains("premise") && json.contains("choice1")) return ChoiceFormat::kCopa;
  if (json.contains("goal") && json.contains("sol1")) return ChoiceFormat::kPiqa;
  if (json.contains("sentence") && json.contains("option1")) return ChoiceFormat::kWinoGrande;
  if (json.contains("choices")) return ChoiceFormat::kPlain;
  return Invalid(
      "{}:{}: unknown format: the fields must be \"context\", \"choices\" and \"answer\", or those of COPA, PIQA or "
      "WinoGrande",
      path, first.number);
}

Parsed ParseFields(FieldReader& fields, ChoiceFormat format) {
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
      return Invalid("{}: has only {} labels, none for the question at {}:{}", labels->path, labels->values.size(),
                     path, item.line);
    if (label && *label != labels->values[index])
      return Invalid("{}:{}: the answer is {}, but in {} it is {}", path, item.line, *label, labels->path,
                     labels->values[index]);
    label = labels->values[index];
  }
  if (!label) return Invalid("{}:{}: the right answer is missing", path, item.line);
  const int64_t answer = *label - (format == ChoiceFormat::kWinoGrande ? 1 : 0);
  if (answer < 0 || answer >= static_cast<int64_t>(item.count()))
    return labels ? Invalid("{}: label {} is {}, which is not one of the {} choices of {}:{}", labels->path, index + 1,
                            *label, item.count(), path, item.line)
                  : Invalid("{}:{}: the answer {} is not one of the {} choices", path, item.line, *label, item.count());
  item.answer = static_cast<size_t>(answer);
  return Ok();
}

}  // namespace

Result<ChoiceFormat> RecogniseChoices(std::string_view text, const std::string& path) {
  const std::optional<Line> first = JsonLines(text).Next();
  if (!first) return Invalid("{}: contains no question", path);
  return FormatOf(*first, path);
}

Result<ChoiceFile> ParseChoices(std::string_view text, const std::string& path,
                                const std::optional<ChoiceLabels>& labels) {
  ChoiceFile file;
  ASSIGN_OR_RETURN(file.format, RecogniseChoices(text, path));
  file.task = TaskName(file.format);
  JsonLines lines(text);
  std::optional<TsvColumns> columns;
  while (const std::optional<Line> line = lines.Next()) {
    if (file.format == ChoiceFormat::kOpenBookQa && !columns) {
      columns = OpenBookColumns(line->text);
      continue;
    }
    if (file.items.size() == kMaxQuestions)
      return Invalid("{}:{}: more than {} questions; split the file", path, line->number, kMaxQuestions);
    Parsed parsed;
    if (columns) {
      ASSIGN_OR_RETURN(parsed, ParseOpenBook(*line, *columns, path));
    } else {
      ASSIGN_OR_RETURN(Json json, ParseObject(*line, path));
      const FreeJsonAtEnd free(json);
      FieldReader fields = FieldsOf(json, path, *line);
      parsed = ParseFields(fields, file.format);
      if (file.format == ChoiceFormat::kPlain && file.items.empty() && json.contains("task"))
        file.task = Text(fields, "task");
      RETURN_IF_ERROR(fields.status());
    }
    ChoiceItem& item = file.items.emplace_back(std::move(parsed.item));
    item.line = line->number;
    RETURN_IF_ERROR(Answer(parsed, file.format, path, file.items.size() - 1, labels, item));
  }
  if (file.items.empty()) return Invalid("{}: contains no question", path);
  if (labels && labels->values.size() != file.items.size())
    return Invalid("{}: has {} labels for the {} questions of {}", labels->path, labels->values.size(),
                   file.items.size(), path);
  return file;
}

Result<ChoiceLabels> ParseLabels(std::string_view text, const std::string& path) {
  ChoiceLabels labels{.path = path, .values = {}};
  JsonLines lines(text);
  while (const std::optional<Line> line = lines.Next()) {
    const std::string_view word = Trimmed(line->text);
    int64_t value = -1;
    const auto [end, wrong] = std::from_chars(word.data(), word.data() + word.size(), value);
    if (wrong != std::errc() || end != word.data() + word.size() || value < 0)
      return Invalid("{}:{}: {} is not a label; each line must be one number", path, line->number, Quoted(word, 32));
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
