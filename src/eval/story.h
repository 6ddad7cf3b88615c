// StoryWriter: readable text, the same for the same seed on every machine. Evaluations plant facts in it.
//
// A paragraph keeps one subject (a market, a harbour, a letter …), one person, one place and one town, and has four to
// eight sentences in their natural order. Every sentence begins with a capital letter, ends with a full stop, question
// or exclamation mark, and has no digit and no line break, so planted numbers are the only numbers of a text. One
// thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/split_mix.h"

namespace infinigen {

class StoryWriter {
 public:
  explicit StoryWriter(uint64_t seed) : random_(seed) {}

  // The next paragraph, sentence by sentence. Never twice the same subject in a row.
  std::vector<std::string> Paragraph();

 private:
  SplitMix random_;
  size_t last_subject_ = SIZE_MAX;
};

// Single words that name things, foods, animals and trades, all different.
std::vector<std::string_view> StoryNouns();

}  // namespace infinigen
