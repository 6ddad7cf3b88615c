// RegexSplitter: finds the matches of a pattern from a tokenizer file. Such patterns are untrusted and written for
// Oniguruma; here they run in PCRE2 with JIT. Compiled once, then used from any thread, each with its own RegexScratch.
//
// Constructs that mean something else in PCRE2 are translated, or rejected by Compile. A pattern that backtracks
// without end fails while matching: there is a match limit, and a time limit for patterns that scan the rest of the
// text at every position.
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

// Working memory of one Encode call.
class RegexScratch {
 public:
  RegexScratch();
  ~RegexScratch();
  RegexScratch(const RegexScratch&) = delete;
  RegexScratch& operator=(const RegexScratch&) = delete;

 private:
  friend class RegexSplitter;
  struct Handles;  // PCRE2 types, which this header does not expose
  std::unique_ptr<Handles> handles_;
  std::chrono::steady_clock::time_point started_;
};

struct RegexMatch {
  size_t begin = 0;
  size_t end = 0;
};

class RegexSplitter {
 public:
  // Error messages do not contain the file's name.
  static Result<RegexSplitter> Compile(std::string_view pattern);

  RegexSplitter(RegexSplitter&&) noexcept;
  RegexSplitter& operator=(RegexSplitter&&) noexcept;
  ~RegexSplitter();

  // The first non-empty match that starts at `from` or later; nullopt when there is none. `text` must be valid UTF-8.
  Result<std::optional<RegexMatch>> Find(std::string_view text, size_t from, RegexScratch& scratch) const;

 private:
  struct Code;
  explicit RegexSplitter(std::unique_ptr<Code> code);
  std::unique_ptr<Code> code_;
};

// Rewrites Oniguruma's syntax and character classes to PCRE2's, or fails. Declared here for tests.
Result<std::string> TranslatePattern(std::string_view pattern);

}  // namespace infinigen
