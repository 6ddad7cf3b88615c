// Filler around planted facts: sentences that are generated (StoryWriter) or cut from a text at sentence boundaries.
// Functions are pure and may be called from any thread; a StoryWriter is used by one thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/split_mix.h"

namespace infinigen {

// An upper bound of the bytes per token, in running text with any tokenizer in use.
inline constexpr size_t kFillerBytesPerToken = 8;

inline bool IsSpace(char c) { return c == ' ' || c == '\n' || c == '\t' || c == '\r'; }

struct FillerSentence {
  std::string before;  // separator from the previous sentence: " ", "\n" or "\n\n"; unused for the first one
  std::string text;
};

// Sentences of `text`, in order. A sentence ends at an empty line, and at . ! or ? (with closing quotes) before a space
// and a capital letter or opening quote, unless the full stop belongs to a title or an initial. The space between
// sentences becomes one of the three separators; the bytes of a sentence do not change.
std::vector<FillerSentence> SplitSentences(std::string_view text);

// Generated paragraphs, at least `bytes` of them.
std::vector<FillerSentence> StoryFiller(uint64_t seed, size_t bytes);

// Whole sentences from a random place of `text`, about `bytes` bytes, or all of a shorter text.
std::vector<FillerSentence> CutFiller(std::string_view text, size_t bytes, SplitMix& random);

// The distinct words of `text` with 4 to 10 letters a-z, in lower case, in the order of their first occurrence.
std::vector<std::string> DistinctWords(std::string_view text);

// Writes readable text that depends only on the seed, on every machine.
//
// A paragraph has one subject (a market, a harbour, a letter …), one person, one place and one town, and four to eight
// sentences in a natural order. Every sentence begins with a capital letter, ends with a full stop, question or
// exclamation mark, and has no digits and no line breaks, so planted numbers are the only numbers of a text.
class StoryWriter {
 public:
  explicit StoryWriter(uint64_t seed) : random_(seed) {}
  // The next paragraph, as sentences. Its subject differs from that of the paragraph before.
  std::vector<std::string> Paragraph();

 private:
  SplitMix random_;
  size_t last_subject_ = SIZE_MAX;
};

// Distinct single words for things, foods, animals and trades.
std::vector<std::string_view> StoryNouns();

}  // namespace infinigen
