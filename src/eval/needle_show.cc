#include "eval/needle_show.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "base/check.h"
#include "base/machine.h"
#include "base/size.h"
#include "eval/filler.h"
#include "runtime/report.h"

namespace infinigen {
namespace {

constexpr size_t kLinesOfBeginning = 3;
constexpr size_t kLinesAround = 2;      // lines before and after the planted sentence
constexpr size_t kContextBytes = 2000;  // bytes of text from which those lines are taken

// Columns of a text: its number of characters; wide characters count as one.
size_t Columns(std::string_view text) {
  return static_cast<size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; }));
}

std::string Thousands(int64_t value) {
  std::string digits = fmt::format("{}", value);
  for (size_t i = digits.size(); i > 3;) digits.insert(i -= 3, ",");
  return digits;
}

std::string Marked(std::string_view text, std::string_view code, const ShowStyle& style) {
  return style.colours ? fmt::format("\x1b[{}m{}\x1b[0m", code, text) : std::string(text);
}

std::string Gap(std::string_view text, const ShowStyle& style) {
  const int64_t words = CountWords(text);
  return words > 0 ? "  " + Marked(fmt::format("[... {} words ...]", Thousands(words)), "2", style) + "\n"
                   : std::string();
}

// The entries that a step read.
std::string Attended(const KvStats& stats, const PoolUse& pool, const ExecutorOptions& options) {
  if (stats.steps == 0 || !options.method.selects()) return {};
  const uint64_t read = stats.read_bytes / static_cast<uint64_t>(stats.steps);
  const uint64_t sketches =
      stats.entry_row_bytes > 0 ? pool.peak_bytes / stats.entry_row_bytes * stats.sketch_row_bytes : 0;
  return fmt::format("A step read {} of entries ({:.1f} % of the cache) and {} of sketches that pointed at them.\n",
                     FormatSize(read), 100 * stats.All().attended_ratio(), FormatSize(sketches));
}

// A description of the planted facts.
std::string Contents(const NeedleCase& planted) {
  const int64_t facts = planted.spec.facts;
  const std::string number = facts <= 2 ? NumberWord(facts) : fmt::format("{}", facts);
  switch (planted.spec.family) {
    case NeedleFamily::kMultiValue:
      return fmt::format("{} access code{} for one place", number, facts == 1 ? "" : "s");
    case NeedleFamily::kVariable:
      return fmt::format("two chains of {} variable{}", number, facts == 1 ? "" : "s");
    case NeedleFamily::kWords:
      return facts == 1 ? "one word ten times as often as any other"
                        : fmt::format("{} words ten times as often as the others", number);
    default:
      return fmt::format("{} access code{}", number, facts == 1 ? "" : "s");
  }
}

std::string VerdictWords(const NeedleCase& planted, const NeedleAnswer& answer, const ShowStyle& style) {
  const size_t count = planted.sought.size();
  if (answer.found) return Marked(count == 1 ? "right" : fmt::format("right, all {}", count), "1;32", style);
  std::vector<std::string> sought;
  for (const NeedleSought& one : planted.sought) sought.push_back(one.text);
  const ptrdiff_t hits = std::count(answer.hits.begin(), answer.hits.end(), true);
  if (hits == 0)
    return Marked(fmt::format("wrong, {} {}", count == 1 ? "it is" : "they are", Listed(sought)), "1;31", style);
  return Marked(fmt::format("{} of {} right, they are {}", hits, count, Listed(sought)), "1;33", style);
}

// Whether the family's answers are codes, rather than names or words.
bool AsksForCodes(NeedleFamily family) { return family != NeedleFamily::kWords && family != NeedleFamily::kVariable; }

// The label of the first sought string's place below the picture.
std::string MarkOf(const NeedleCase& planted) {
  if (planted.sought[0].statement.empty()) return "the list";
  const char* what = planted.spec.family == NeedleFamily::kVariable ? "variable" : "code";
  return fmt::format("the {}{}", planted.sought.size() == 1 ? "" : "first ", what);
}

constexpr size_t kMostLines = 16;  // lines of a picture

// Characters for the share of a column's tokens that were attended to.
const char* Glyph(double share) {
  if (share <= 0) return " ";
  if (share < 0.04) return "·";
  if (share < 0.15) return "░";
  if (share < 0.4) return "▒";
  return share < 0.8 ? "▓" : "█";
}

}  // namespace

int64_t CountWords(std::string_view text) {
  int64_t words = 0;
  for (size_t i = 0; i < text.size(); ++i)
    if (!IsSpace(text[i]) && (i == 0 || IsSpace(text[i - 1]))) ++words;
  return words;
}

std::string Wrapped(std::string_view text, size_t width, size_t most, bool from_end) {
  std::vector<std::string> lines;
  for (size_t i = 0; i < text.size();) {
    if (IsSpace(text[i])) {
      ++i;
      continue;
    }
    size_t end = i;
    while (end < text.size() && !IsSpace(text[end])) ++end;
    const std::string_view word = text.substr(i, end - i);
    if (lines.empty() || Columns(lines.back()) + 1 + Columns(word) > width)
      lines.push_back(std::string(word));
    else
      lines.back() += fmt::format(" {}", word);
    i = end;
  }
  if (lines.size() > most && from_end) lines.erase(lines.begin(), lines.end() - static_cast<ptrdiff_t>(most));
  if (lines.size() > most) lines.resize(most);
  return fmt::format("  {}\n", fmt::join(lines, "\n  "));
}

std::string ShowCase(const NeedleCase& planted, std::string_view source, const ShowStyle& style) {
  const std::string_view text = planted.text;
  // A list has no planted sentence, so its end is shown instead.
  const std::string& statement = planted.sought[0].statement;
  const size_t at = statement.empty() ? text.size() : planted.sought[0].at;
  const std::string_view before = text.substr(0, at), after = text.substr(at + statement.size());
  std::string screen = fmt::format("{}\n\n", Marked(fmt::format("A text of {} tokens, {} words ({}), with {} in it.",
                                                                Thousands(planted.prompt_tokens()),
                                                                Thousands(CountWords(text)), source, Contents(planted)),
                                                    "1", style));
  const std::string_view around = before.substr(before.size() - std::min(before.size(), kContextBytes));
  if (before.size() > 2 * kContextBytes) {
    screen += Wrapped(text.substr(0, kContextBytes), style.width - 2, kLinesOfBeginning, false);
    screen += Gap(before, style);
  }
  screen += Wrapped(around, style.width - 2, kLinesAround, true);
  if (!statement.empty()) screen += "  " + Marked(statement, "1;30;43", style) + "\n";
  if (!after.empty()) screen += Wrapped(after.substr(0, kContextBytes), style.width - 2, kLinesAround, false);
  if (after.size() > kContextBytes) screen += Gap(after, style);
  std::string_view question = planted.question;
  while (!question.empty() && IsSpace(question.front())) question.remove_prefix(1);
  screen += "\n";
  for (size_t end = 0; end != std::string_view::npos; question.remove_prefix(std::min(end + 1, question.size()))) {
    end = question.find('\n');
    const std::string_view line = question.substr(0, end);
    if (end == std::string_view::npos)
      screen += fmt::format("  {}", line);  // the answer follows
    else
      screen += Wrapped(line, style.width - 2, line.size(), false);
  }
  // The other forms end with "Answer:" or in the middle of a sentence.
  if (planted.question.back() == '?') screen += "\n  Answer: ";
  return screen;
}

std::string ShowOutcome(const NeedleCase& planted, const NeedleAnswer& answer, const Timing& timing,
                        const PoolUse& pool, const KvStats& stats, const ExecutorOptions& options,
                        const ShowStyle& style) {
  if (!answer.done) return fmt::format("   <- {}\n", Marked("interrupted", "33", style));
  const NeedleSought& first = planted.sought[0];
  std::string lay;
  if (!first.statement.empty())
    lay = fmt::format("{} lay {} tokens back, {} words of text before the question.\n",
                      planted.sought.size() == 1 ? "The code" : "The first of them",
                      Thousands(planted.prompt_tokens() - first.token),
                      Thousands(CountWords(std::string_view(planted.text).substr(first.at))));
  return fmt::format(
      "   <- {}\n\n{}"
      "Read {} tokens in {:.1f} s ({} tok/s), then {} one by one ({:.1f} tok/s, {:.2f} ms each).\n"
      "KV cache {} ({}), memory peak {}, {} thread{}.\n{}",
      VerdictWords(planted, answer, style), lay, Thousands(timing.prefill_tokens), timing.prefill_s,
      Thousands(static_cast<int64_t>(timing.prefill_rate())), timing.decode_tokens, timing.decode_rate(),
      Mean(timing.step_ms), FormatSize(pool.bytes), KvWords(options), FormatSize(PeakResidentBytes()), options.threads,
      options.threads == 1 ? "" : "s", Attended(stats, pool, options));
}

// ---- the picture ----

AttentionPicture::AttentionPicture(int64_t layers, int64_t rows, size_t columns)
    : rows_(rows), columns_(columns), layers_(static_cast<size_t>(layers)) {
  CHECK(layers > 0 && rows > 0 && columns > 0);
  for (Layer& layer : layers_) layer.counts.resize(columns);
}

SelectionObserver AttentionPicture::Observer() {
  return [this](LayerId layer, SeqSlot, KvHead head, std::span<const int32_t> rows) { Add(layer, head, rows); };
}

size_t AttentionPicture::ColumnOf(int64_t row) const {
  return static_cast<size_t>(std::min(row, rows_ - 1)) * columns_ / static_cast<size_t>(rows_);
}

double AttentionPicture::ColumnRows(size_t column) const {
  // ColumnOf(row) == column for rows [⌈column·rows/columns⌉, ⌈(column+1)·rows/columns⌉).
  const size_t rows = static_cast<size_t>(rows_);
  const auto first = [&](size_t c) { return (c * rows + columns_ - 1) / columns_; };
  return static_cast<double>(first(column + 1) - first(column));
}

void AttentionPicture::Add(LayerId layer, KvHead head, std::span<const int32_t> rows) {
  if (frozen_) return;
  Layer& of = layers_[layer.index()];
  if (head.value() == 0) {  // a new step
    of.heads = 0;
    std::fill(of.counts.begin(), of.counts.end(), 0.0);
  }
  ++of.heads;
  seen_ = true;
  for (const int32_t row : rows)
    if (row < rows_) ++of.counts[ColumnOf(row)];
}

std::string AttentionPicture::Draw(int64_t row, const std::string& name) const {
  const size_t per_line = (layers_.size() + kMostLines - 1) / kMostLines;
  std::string text;
  for (size_t first = 0; first < layers_.size(); first += per_line) {
    const size_t last = std::min(first + per_line, layers_.size());
    text += fmt::format("{:>5} ", first);
    for (size_t column = 0; column < columns_; ++column) {
      double attended = 0, whole = 0;
      for (size_t layer = first; layer < last; ++layer) {
        const int64_t heads = std::max<int64_t>(layers_[layer].heads, 1);
        attended += layers_[layer].heads > 0 ? layers_[layer].counts[column] : ColumnRows(column);  // dense: all of it
        whole += ColumnRows(column) * static_cast<double>(heads);
      }
      text += Glyph(whole > 0 ? attended / whole : 0);
    }
    text += "\n";
  }
  const size_t mark = ColumnOf(row);
  const bool before = mark + 2 + name.size() > columns_ && mark > name.size();
  text +=
      before ? fmt::format("      {:>{}} ^\n", name, mark - 1) : fmt::format("      {:>{}} {}\n", "^", mark + 1, name);
  return text;
}

std::string ShowAttention(const NeedleCase& planted, const AttentionPicture& picture) {
  if (!picture.seen()) return {};
  return fmt::format(
      "\nWhat each layer attended to in the step that produced the first {} (darker: more of those tokens):\n{}",
      AsksForCodes(planted.spec.family) ? "digit" : "word", picture.Draw(planted.sought[0].token, MarkOf(planted)));
}

bool BeginsAnswer(const NeedleCase& planted, std::string_view text) {
  if (AsksForCodes(planted.spec.family)) return text.find_first_of("0123456789") != std::string_view::npos;
  return !std::all_of(text.begin(), text.end(), IsSpace);
}

}  // namespace infinigen
