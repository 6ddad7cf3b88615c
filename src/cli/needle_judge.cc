#include "cli/needle_judge.h"

#include <algorithm>

namespace infinigen {
namespace {

constexpr std::string_view kDigits = "0123456789";
constexpr std::string_view kNextQuestion = "\n\nQuestion";

char Lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }

// Bytes beyond ASCII are parts of letters.
bool InWord(char c) {
  const char lower = Lower(c);
  return (lower >= 'a' && lower <= 'z') || (c >= '0' && c <= '9') || (static_cast<unsigned char>(c) & 0x80) != 0;
}

// At the end of an answer that goes on, a word may still grow.
bool HasWord(std::string_view text, std::string_view word, bool ended) {
  const auto same = [](char a, char b) { return Lower(a) == Lower(b); };
  for (auto at = text.begin();; ++at) {
    at = std::search(at, text.end(), word.begin(), word.end(), same);
    if (at == text.end()) return false;
    const auto end = at + static_cast<ptrdiff_t>(word.size());
    const bool begins = at == text.begin() || !InWord(at[-1]);
    const bool ends = end == text.end() ? ended : !InWord(*end);
    if (begins && ends) return true;
  }
}

}  // namespace

Verdict Judge(std::string_view answer, std::string_view code, NeedleForm form, bool ended) {
  const size_t first = std::min(answer.find_first_of(kDigits), answer.size());
  const std::string_view number = answer.substr(first, answer.find_first_not_of(kDigits, first) - first);
  // Only a chat's sentence has words before the code.
  if (form != NeedleForm::kChat && answer.substr(0, first).find_first_not_of(' ') != std::string_view::npos)
    return Verdict::kWrong;
  const bool whole = ended || first + number.size() < answer.size();  // no further digit can come
  if (whole) return number == code ? Verdict::kRight : Verdict::kWrong;
  return number == code.substr(0, number.size()) ? Verdict::kOpen : Verdict::kWrong;
}

ListScore ScoreList(std::string_view answer, std::span<const std::string_view> sought, NeedleForm form, bool ended) {
  const size_t next = form == NeedleForm::kPlain ? answer.find(kNextQuestion) : std::string_view::npos;
  ended = ended || next != std::string_view::npos;
  ListScore score;
  for (const std::string_view word : sought) score.hits.push_back(HasWord(answer.substr(0, next), word, ended));
  score.done = ended || std::find(score.hits.begin(), score.hits.end(), false) == score.hits.end();
  return score;
}

}  // namespace infinigen
