// Filler around planted facts: sentences, generated (eval/story.h) or cut from a real text at sentence boundaries. Pure
// functions, any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/split_mix.h"

namespace infinigen {

// Bytes of filler that are certainly enough for a token: no tokenizer in use has more in running text.
inline constexpr size_t kFillerBytesPerToken = 8;

inline bool IsSpace(char c) { return c == ' ' || c == '\n' || c == '\t' || c == '\r'; }

struct FillerSentence {
  std::string before;  // separates it from the sentence before: " ", "\n" or "\n\n"; unused for the first one
  std::string text;
};

// Sentences of `text`, in order. A sentence ends at . ! or ? (closing quotes included) before a space and a capital
// letter or an opening quote, unless the full stop belongs to a title or an initial; and at every empty line. Spaces
// between sentences become one of the three separators; the sentences themselves keep their bytes.
std::vector<FillerSentence> SplitSentences(std::string_view text);

// Generated paragraphs, at least `bytes` of them.
std::vector<FillerSentence> StoryFiller(uint64_t seed, size_t bytes);

// Whole sentences from a random place of `text`, about `bytes` bytes; all of a text that has no more.
std::vector<FillerSentence> CutFiller(std::string_view text, size_t bytes, SplitMix& random);

// The different words of `text` that consist of 4 to 10 letters a-z (capitals made small), in the order in which they
// first appear.
std::vector<std::string> DistinctWords(std::string_view text);

}  // namespace infinigen
