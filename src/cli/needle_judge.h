// Whether an answer has what was asked for.
//
// One code (families single and multi-key): the answer's first number must be it, with nothing but a space before it
// unless a chat answers. Lists: each string counts that occurs in the answer as a whole word (neither a letter nor a
// digit beside it), case ignored, in any order, whatever else is said; RULER's rule, which takes parts of words too. In
// the plain form a list ends where the model goes on to ask itself the next question.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cli/needle_family.h"

namespace infinigen {

// kOpen: the next token decides; never when the answer has ended.
enum class Verdict { kOpen, kRight, kWrong };
Verdict Judge(std::string_view answer, std::string_view code, NeedleForm form, bool ended);

struct ListScore {
  bool done = false;       // no further token changes anything
  std::vector<bool> hits;  // [sought]
};
ListScore ScoreList(std::string_view answer, std::span<const std::string_view> sought, NeedleForm form, bool ended);

}  // namespace infinigen
