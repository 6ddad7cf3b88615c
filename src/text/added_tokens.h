// AddedTokenMatcher: finds added tokens in a text. The leftmost one comes first; among those that start at one place,
// the longest. Immutable, any thread.
#pragma once

#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/tokenizer_spec.h"

namespace infinigen {

class AddedTokenMatcher {
 public:
  struct Entry {
    std::string pattern;  // searched for: the token's content, or its normalized form
    AddedToken token;
  };

  AddedTokenMatcher() = default;
  explicit AddedTokenMatcher(std::vector<Entry> entries);

  bool empty() const { return entries_.empty(); }

  // The first offset from `from` on at which a pattern starts; the token's conditions are not checked.
  std::optional<size_t> NextStart(std::string_view text, size_t from) const {
    const std::optional<Match> match = Next(text, from);
    return match ? std::optional(match->begin) : std::nullopt;
  }

  // Calls visit(piece, nullptr) for text between tokens and visit(piece, &token) for tokens, in order, covering `text`
  // (white space that a token strips belongs to its piece). Stops when visit returns false, and returns that.
  // `special_at(offset)` false leaves a special token that starts there in the text.
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
  // The match with the white space that the token strips; nullopt when the token's conditions refuse it here.
  std::optional<Match> Accept(std::string_view text, Match match, size_t done, bool parse_special) const;

  std::vector<Entry> entries_;      // sorted by pattern
  std::array<bool, 256> starts_{};  // [byte]: a pattern starts with it
};

}  // namespace infinigen
