// Added tokens: AddedTokenMatcher finds them in a text, AddToken adds one to a tokenizer's tables. The matcher takes
// the leftmost match, and the longest of those that start at the same place. It is immutable and may be used from any
// thread; AddToken is used while loading.
#pragma once

#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "text/tokenizer_spec.h"

namespace infinigen {

class AddedTokenMatcher {
 public:
  struct Entry {
    std::string pattern;  // the text to search for: the token's content or its normalized form
    AddedToken token;
  };

  AddedTokenMatcher() = default;
  explicit AddedTokenMatcher(std::vector<Entry> entries);

  bool empty() const { return entries_.empty(); }

  // First offset >= `from` at which a pattern starts. Does not check the token's conditions (single_word, special).
  std::optional<size_t> NextStart(std::string_view text, size_t from) const {
    const std::optional<Match> match = Next(text, from);
    return match ? std::optional(match->begin) : std::nullopt;
  }

  // Divides `text` into pieces and calls, in order, visit(piece, nullptr) for text and visit(piece, &token) for tokens.
  // White space that a token strips is part of the token's piece. Stops and returns false when visit returns false.
  // Where special_at(offset) is false, a special token that starts there is treated as text.
  template <class SpecialAt, class Visit>
  bool ForEach(std::string_view text, SpecialAt&& special_at, Visit&& visit) const {
    size_t done = 0;
    size_t position = 0;
    while (const std::optional<Match> match = Next(text, position)) {
      position = match->end;
      const std::optional<Match> taken = Accept(text, *match, done, special_at(match->begin));
      if (!taken) continue;
      if (taken->begin > done && !visit(text.substr(done, taken->begin - done), nullptr)) return false;
      if (!visit(text.substr(taken->begin, taken->end - taken->begin), &entries_[taken->entry].token)) return false;
      done = taken->end;
      position = std::max(position, done);
    }
    return done == text.size() || visit(text.substr(done), nullptr);
  }

 private:
  struct Match {
    size_t begin = 0;
    size_t end = 0;
    size_t entry = 0;
  };

  std::optional<Match> Next(std::string_view text, size_t from) const;
  std::optional<size_t> LongestAt(std::string_view text, size_t position) const;
  // Extends the match by the white space that the token strips; nullopt when the token's conditions do not hold here.
  std::optional<Match> Accept(std::string_view text, Match match, size_t done, bool parse_special) const;

  std::vector<Entry> entries_;      // sorted by pattern
  std::array<bool, 256> starts_{};  // [byte]: true when a pattern starts with it
};

inline constexpr size_t kMaxAddedTokens = 1 << 16;  // real files have at most a few thousand

// Adds a token in the way of Hugging Face's library. The id is that of the vocabulary entry with the same text if there
// is one; otherwise the next id after the model's tokens and the added ones. When the token was added before, only its
// `special` flag is updated. Fails when the token's file states a different id.
Status AddToken(AddedToken token, TokenizerSpec& spec);

}  // namespace infinigen
