#include "text/added_tokens.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "text/unicode.h"

namespace infinigen {
namespace {

// Start of the character that ends at `end`; nullopt when it is malformed.
std::optional<size_t> CharBefore(std::string_view text, size_t end) {
  for (size_t length = 1; length <= 4 && length <= end; ++length) {
    const Utf8Scan scan = ScanUtf8(text.substr(0, end), end - length);
    if (scan.valid && scan.length == length) return end - length;
  }
  return std::nullopt;
}

bool WordBefore(std::string_view text, size_t end) {
  const std::optional<size_t> begin = CharBefore(text, end);
  return begin && IsWordChar(DecodeUtf8(text, *begin));
}

bool WordAt(std::string_view text, size_t position) {
  return position < text.size() && ScanUtf8(text, position).valid && IsWordChar(DecodeUtf8(text, position));
}

}  // namespace

AddedTokenMatcher::AddedTokenMatcher(std::vector<Entry> entries) : entries_(std::move(entries)) {
  std::stable_sort(entries_.begin(), entries_.end(),
                   [](const Entry& a, const Entry& b) { return a.pattern < b.pattern; });
  for (const Entry& entry : entries_) starts_[static_cast<unsigned char>(entry.pattern[0])] = true;
}

std::optional<AddedTokenMatcher::Match> AddedTokenMatcher::Next(std::string_view text, size_t from) const {
  if (entries_.empty()) return std::nullopt;
  for (size_t position = from; position < text.size(); ++position) {
    if (!starts_[static_cast<unsigned char>(text[position])]) continue;
    if (const std::optional<size_t> entry = LongestAt(text, position))
      return Match{position, position + entries_[*entry].pattern.size(), *entry};
  }
  return std::nullopt;
}

// Narrows the sorted patterns, byte by byte, to those that match the text.
std::optional<size_t> AddedTokenMatcher::LongestAt(std::string_view text, size_t position) const {
  size_t low = 0;
  size_t high = entries_.size();
  std::optional<size_t> longest;
  for (size_t depth = 0; position + depth < text.size(); ++depth) {
    const unsigned char wanted = static_cast<unsigned char>(text[position + depth]);
    const auto byte_of = [depth](const Entry& entry) {
      return entry.pattern.size() > depth ? static_cast<int>(static_cast<unsigned char>(entry.pattern[depth])) : -1;
    };
    const auto first = entries_.begin() + static_cast<ptrdiff_t>(low);
    const auto last = entries_.begin() + static_cast<ptrdiff_t>(high);
    const auto lower = std::partition_point(first, last, [&](const Entry& e) { return byte_of(e) < wanted; });
    const auto upper = std::partition_point(lower, last, [&](const Entry& e) { return byte_of(e) <= wanted; });
    low = static_cast<size_t>(lower - entries_.begin());
    high = static_cast<size_t>(upper - entries_.begin());
    if (low == high) break;
    if (entries_[low].pattern.size() == depth + 1) longest = low;
  }
  return longest;
}

std::optional<AddedTokenMatcher::Match> AddedTokenMatcher::Accept(std::string_view text, Match match, size_t done,
                                                                  bool parse_special) const {
  const AddedToken& token = entries_[match.entry].token;
  if (token.special && !parse_special) return std::nullopt;
  if (token.single_word && (WordBefore(text, match.begin) || WordAt(text, match.end))) return std::nullopt;
  if (token.lstrip) {
    while (const std::optional<size_t> before = CharBefore(text, match.begin)) {
      if (*before < done || !IsWhiteSpace(DecodeUtf8(text, *before))) break;
      match.begin = *before;
    }
  }
  if (token.rstrip) {
    while (match.end < text.size() && ScanUtf8(text, match.end).valid && IsWhiteSpace(DecodeUtf8(text, match.end)))
      match.end += ScanUtf8(text, match.end).length;
  }
  return match;
}

Status AddToken(AddedToken token, TokenizerSpec& spec) {
  if (token.content.empty()) return Ok{};
  if (spec.model_tokens < 0) spec.model_tokens = spec.vocabulary.count();
  const std::optional<TokenId> known = spec.vocabulary.Find(token.content);
  const TokenId id = known.value_or(std::max(spec.model_tokens, spec.next_added));
  if (token.id >= 0 && token.id != id)
    return Invalid("added token {} has id {}, but the vocabulary gives it id {}", Quoted(token.content, 64), token.id,
                   id);
  token.id = id;
  if (known) {
    const auto added = spec.added_index.find(token.id);
    if (added != spec.added_index.end()) {
      spec.added_tokens[added->second].special |= token.special;
      return Ok{};
    }
  }
  if (spec.added_tokens.size() == kMaxAddedTokens)
    return Invalid("more than {} added tokens are not supported", kMaxAddedTokens);
  if (!known) RETURN_IF_ERROR(spec.vocabulary.Add(token.content, id));
  spec.next_added = std::max(spec.next_added, id + 1);
  spec.added_index[token.id] = spec.added_tokens.size();
  spec.added_tokens.push_back(std::move(token));
  return Ok{};
}

}  // namespace infinigen
