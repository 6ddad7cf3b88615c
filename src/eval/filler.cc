#include "eval/filler.h"

#include <algorithm>
#include <array>
#include <set>

namespace infinigen {
namespace {

bool IsCapital(char c) { return c >= 'A' && c <= 'Z'; }
bool IsLetter(char c) { return IsCapital(c) || (c >= 'a' && c <= 'z'); }

constexpr std::array<std::string_view, 5> kClosing = {"\"", "'", ")", "\u201d", "\u2019"};
constexpr std::array<std::string_view, 4> kOpening = {"\"", "'", "\u201c", "\u2018"};
constexpr std::array<std::string_view, 10> kTitles = {"Mr",   "Mrs",  "Ms",  "Dr",  "St",
                                                      "Prof", "Capt", "Col", "Rev", "No"};

// Length of the mark that begins at `at`, if it is one of `marks`; otherwise 0.
template <size_t N>
size_t MarkAt(std::string_view text, size_t at, const std::array<std::string_view, N>& marks) {
  for (const std::string_view mark : marks)
    if (text.substr(at, mark.size()) == mark) return mark.size();
  return 0;
}

// Whether the full stop at `at` belongs to a title ("Mr.") or an initial ("J.").
bool IsAbbreviation(std::string_view text, size_t at) {
  size_t begin = at;
  while (begin > 0 && !IsSpace(text[begin - 1])) --begin;
  const std::string_view word = text.substr(begin, at - begin);
  return (word.size() == 1 && IsCapital(word[0])) || std::find(kTitles.begin(), kTitles.end(), word) != kTitles.end();
}

// The end of the sentence (after closing quotes) if `text[at]` ends one; otherwise 0.
size_t SentenceEnd(std::string_view text, size_t at) {
  if (text[at] != '.' && text[at] != '!' && text[at] != '?') return 0;
  if (text[at] == '.' && IsAbbreviation(text, at)) return 0;
  size_t end = at + 1;
  while (const size_t size = MarkAt(text, end, kClosing)) end += size;
  size_t next = end;
  while (next < text.size() && IsSpace(text[next])) ++next;
  if (next == end || next == text.size()) return 0;
  return IsCapital(text[next]) || MarkAt(text, next, kOpening) > 0 ? end : 0;
}

std::string Separator(std::string_view spaces) {
  const ptrdiff_t lines = std::count(spaces.begin(), spaces.end(), '\n');
  return lines == 0 ? " " : lines == 1 ? "\n" : "\n\n";
}

}  // namespace

std::vector<FillerSentence> SplitSentences(std::string_view text) {
  std::vector<FillerSentence> sentences;
  std::string before;
  size_t begin = 0;
  while (begin < text.size() && IsSpace(text[begin])) ++begin;
  for (size_t i = begin; i < text.size(); ++i) {
    size_t end = SentenceEnd(text, i);
    if (end == 0 && text[i] == '\n') {
      const size_t next = text.find_first_not_of(" \t\r", i + 1);
      if (next != std::string_view::npos && text[next] == '\n') end = i;  // an empty line
    }
    if (end == 0) continue;
    size_t next = end;
    while (next < text.size() && IsSpace(text[next])) ++next;
    sentences.push_back({before, std::string(text.substr(begin, end - begin))});
    before = Separator(text.substr(end, next - end));
    begin = next;
    i = next - 1;
  }
  while (!text.empty() && IsSpace(text.back())) text.remove_suffix(1);
  if (begin < text.size()) sentences.push_back({before, std::string(text.substr(begin))});
  return sentences;
}

std::vector<FillerSentence> StoryFiller(uint64_t seed, size_t bytes) {
  StoryWriter writer(seed);
  std::vector<FillerSentence> sentences;
  for (size_t size = 0; size < bytes;) {
    std::string before = "\n\n";
    for (std::string& sentence : writer.Paragraph()) {
      size += sentence.size() + before.size();
      sentences.push_back({before, std::move(sentence)});
      before = " ";
    }
  }
  return sentences;
}

std::vector<FillerSentence> CutFiller(std::string_view text, size_t bytes, SplitMix& random) {
  const bool inside = text.size() > bytes;
  const size_t first = inside ? random.Next() % (text.size() - bytes) : 0;
  std::vector<FillerSentence> sentences = SplitSentences(text.substr(first, bytes));
  // The first and the last sentence of a piece are incomplete.
  if (inside && !sentences.empty()) sentences.pop_back();
  if (inside && first > 0 && !sentences.empty()) sentences.erase(sentences.begin());
  return sentences;
}

std::vector<std::string> DistinctWords(std::string_view text) {
  std::vector<std::string> words;
  std::set<std::string> seen;
  for (size_t i = 0; i < text.size();) {
    size_t end = i;
    while (end < text.size() && !IsSpace(text[end])) ++end;
    // Remove punctuation around a word; a word with punctuation inside is skipped below.
    size_t begin = i, stop = end;
    while (begin < stop && !IsLetter(text[begin])) ++begin;
    while (stop > begin && !IsLetter(text[stop - 1])) --stop;
    std::string word(text.substr(begin, stop - begin));
    i = end + 1;
    if (word.size() < 4 || word.size() > 10 || !std::all_of(word.begin(), word.end(), IsLetter)) continue;
    for (char& c : word) c = IsCapital(c) ? static_cast<char>(c - 'A' + 'a') : c;
    if (seen.insert(word).second) words.push_back(std::move(word));
  }
  return words;
}

}  // namespace infinigen
