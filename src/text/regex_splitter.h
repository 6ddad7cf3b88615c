// RegexSplitter: finds the matches of a pattern from a tokenizer file. The pattern is foreign and written for
// Oniguruma; it runs in PCRE2 with JIT. Compiled once, then used by any number of threads, each with its own
// RegexScratch.
//
// A pattern that means something else in PCRE2 is translated or refused when it is compiled. One that would backtrack
// for ever ends in an error while matching: there is a match limit, and a time limit for patterns that scan the rest of
// the text at every position.
#pragma once

#include <chrono>
#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "base/result.h"

namespace infinigen {

class RegexSplitter;

// Working memory of one Encode.
class RegexScratch {
 public:
  RegexScratch();
  ~RegexScratch();
  RegexScratch(const RegexScratch&) = delete;
  RegexScratch& operator=(const RegexScratch&) = delete;

 private:
  friend class RegexSplitter;
  struct Handles;  // hides PCRE2's header
  std::unique_ptr<Handles> handles_;
  std::chrono::steady_clock::time_point started_;
};

struct RegexMatch {
  size_t begin = 0;
  size_t end = 0;
};

class RegexSplitter {
 public:
  // The message of an error is without file name.
  static Result<RegexSplitter> Compile(std::string_view pattern);

  RegexSplitter(RegexSplitter&&) noexcept;
  RegexSplitter& operator=(RegexSplitter&&) noexcept;
  ~RegexSplitter();

  // The first non-empty match that starts at `from` or later; nullopt when there is none. `text` is valid UTF-8.
  Result<std::optional<RegexMatch>> Find(std::string_view text, size_t from, RegexScratch& scratch) const;

 private:
  struct Code;
  explicit RegexSplitter(std::unique_ptr<Code> code);
  std::unique_ptr<Code> code_;
};

// Rewrites Oniguruma's syntax and character classes to PCRE2's, or refuses them. In the header for tests.
Result<std::string> TranslatePattern(std::string_view pattern);

}  // namespace infinigen
