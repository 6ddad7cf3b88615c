#include "cli/needle_show.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <vector>

#include "base/machine.h"
#include "base/size.h"
#include "cli/needle_text.h"

namespace infinigen {
namespace {

constexpr size_t kLinesAtEnds = 3;      // of the beginning
constexpr size_t kLinesAround = 2;      // before and after the planted sentence
constexpr size_t kContextBytes = 2000;  // of text that is looked at for those lines

// Columns: characters, not bytes. Wide ones are counted as one.
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

// What a step read instead of everything.
std::string Attended(const KvStats& stats, const PoolUse& pool, const ExecutorOptions& options) {
  if (stats.steps == 0 || options.method.select == SelectKind::kAll) return {};
  const uint64_t read = stats.read_bytes / static_cast<uint64_t>(stats.steps);
  const uint64_t sketches =
      stats.entry_row_bytes > 0 ? pool.peak_bytes / stats.entry_row_bytes * stats.sketch_row_bytes : 0;
  return fmt::format("A step read {} of entries ({:.1f} % of the cache) and {} of sketches that pointed at them.\n",
                     FormatSize(read), 100 * stats.All().attended_ratio(), FormatSize(sketches));
}

}  // namespace

ShowStyle DetectStyle() {
  ShowStyle style;
  struct winsize size {};
  const bool terminal = ::isatty(STDOUT_FILENO) == 1;
  if (terminal && ::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0)
    style.width = std::clamp<size_t>(size.ws_col, 60, 110) - 2;
  style.colours = terminal && std::getenv("NO_COLOR") == nullptr;
  return style;
}

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
  const std::string statement = planted.asked.Statement();
  const std::string_view before = text.substr(0, planted.fact_at);
  const std::string_view after = text.substr(planted.fact_at + statement.size());
  const int64_t others = planted.spec.facts - 1;
  std::string screen = fmt::format(
      "{}\n\n", Marked(fmt::format("A text of {} tokens, {} words ({}){}", Thousands(planted.prompt_tokens()),
                                   Thousands(CountWords(text)), source,
                                   others == 0   ? ", with one access code in it."
                                   : others == 1 ? ", with two access codes in it."
                                                 : fmt::format(", with {} access codes in it.", others + 1)),
                       "1", style));
  const std::string_view around = before.substr(before.size() - std::min(before.size(), kContextBytes));
  if (before.size() > 2 * kContextBytes) {
    screen += Wrapped(text.substr(0, kContextBytes), style.width - 2, kLinesAtEnds, false);
    screen += Gap(before, style);
  }
  screen += Wrapped(around, style.width - 2, kLinesAround, true);
  screen += "  " + Marked(statement, "1;30;43", style) + "\n";
  screen += Wrapped(after.substr(0, kContextBytes), style.width - 2, kLinesAround, false);
  if (after.size() > kContextBytes) screen += Gap(after, style);
  std::string_view question = planted.question;
  while (!question.empty() && IsSpace(question.front())) question.remove_prefix(1);
  screen += "\n";
  for (size_t end = 0; end != std::string_view::npos; question.remove_prefix(std::min(end + 1, question.size()))) {
    end = question.find('\n');
    screen += fmt::format("  {}{}", question.substr(0, end), end == std::string_view::npos ? "" : "\n");
  }
  // Where the answer comes; the other forms end with "Answer:" or in the middle of a sentence.
  if (planted.question.back() == '?') screen += "\n  Answer: ";
  return screen;
}

std::string ShowOutcome(const NeedleCase& planted, const NeedleAnswer& answer, const Timing& timing,
                        const PoolUse& pool, const KvStats& stats, const ExecutorOptions& options,
                        const ShowStyle& style) {
  if (!answer.done) return fmt::format("   <- {}\n", Marked("interrupted", "33", style));
  const std::string verdict = answer.found ? Marked("right", "1;32", style)
                                           : Marked(fmt::format("wrong, it is {}", planted.asked.code), "1;31", style);
  const std::string_view since = std::string_view(planted.text).substr(planted.fact_at);
  const int64_t back = planted.prompt_tokens() - planted.fact_token;
  return fmt::format(
      "   <- {}\n\n"
      "The code lay {} tokens back, {} words of text before the question.\n"
      "Read {} tokens in {:.1f} s ({} tok/s), then {} one by one ({:.1f} tok/s, {:.2f} ms each).\n"
      "KV cache {} ({}), memory {} at most, {} thread{}.\n{}",
      verdict, Thousands(back), Thousands(CountWords(since)), Thousands(timing.prefill_tokens), timing.prefill_s,
      Thousands(static_cast<int64_t>(timing.prefill_rate())), timing.decode_tokens, timing.decode_rate(),
      Mean(timing.step_ms), FormatSize(pool.bytes), KvWords(options), FormatSize(PeakResidentBytes()), options.threads,
      options.threads == 1 ? "" : "s", Attended(stats, pool, options));
}

}  // namespace infinigen
