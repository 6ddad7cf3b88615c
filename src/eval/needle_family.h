// Families of planted facts, after RULER (Hsieh et al., 2024): the sentences to plant, the question, the strings that
// an answer should contain, and the check of an answer. A task depends only on its spec and the random numbers;
// eval/needle_case.h puts its sentences into a text. Pure functions, any thread.
//
//   single       one access code (with --facts K: K codes with different keys); the question asks for one
//   multi-key    the same with eight codes
//   multi-value  one key with several codes; the question asks for all
//   multi-query  several keys with one code each; the question asks for all
//   variable     two chains of names: the first name has a number, each other name equals the one before; the question
//                asks for all names with one of the two numbers
//   words        a list of words instead of sentences, a few of them ten times as frequent as the others; the question
//                asks for the frequent ones
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/split_mix.h"
#include "eval/filler.h"

namespace infinigen {

enum class NeedleForm { kPlain, kChat, kContinuation };
enum class NeedleFamily { kSingle, kMultiKey, kMultiValue, kMultiQuery, kVariable, kWords };

std::string_view Name(NeedleForm form);
std::vector<std::string> FamilyNames();
std::string_view Name(NeedleFamily family);
std::optional<NeedleFamily> FamilyOf(std::string_view name);
// Whether the question asks for one code (checked by Judge) or a list of strings (checked by ScoreList).
inline bool AsksForOne(NeedleFamily family) {
  return family == NeedleFamily::kSingle || family == NeedleFamily::kMultiKey;
}
// --facts is the number of codes; for variable the names of a chain, for words the frequent words.
int64_t DefaultFacts(NeedleFamily family);
int64_t MostFacts(NeedleFamily family);
inline constexpr int64_t kMostFacts = 256;  // maximum over all families; there are more keys than that

struct NeedleSpec {
  int64_t length = 0;  // tokens of context, question and answer together, at most
  int64_t facts = 1;
  int64_t index = 0, n = 1;  // case `index` of `n`
  NeedleFamily family = NeedleFamily::kSingle;
};

// A sentence to plant.
struct NeedleStatement {
  std::string text;
  double depth = 0;              // relative position in the text, in [0, 1)
  std::optional<size_t> sought;  // index of the sought string that it states; nullopt: none
};

struct NeedleTask {
  std::vector<std::string> sought;          // strings that the answer should contain
  std::vector<NeedleStatement> statements;  // ascending by depth in families that ask for a list
  std::string question;                     // "What is the access code for the north gate?"
  std::string opening;                      // beginning of the answer: " The access code for ... is"
};

// For all families except words. The first string of case i of n is at a depth drawn from [i/n, (i+1)/n) (in families
// with ordered strings, one of them is); the others are anywhere.
NeedleTask DrawTask(const NeedleSpec& spec, SplitMix& random);

// For words. `pool`: at least WordsNeeded different words. `filler` receives the list, of at least `count` words. It
// consists of rounds of WordsInRound words, so that after each round the sought words are the most frequent.
size_t WordsNeeded(int64_t facts);
size_t WordsInRound(int64_t facts);
NeedleTask DrawWords(const NeedleSpec& spec, std::vector<std::string> pool, size_t count, SplitMix& random,
                     std::vector<FillerSentence>* filler);

// Maximum tokens of an answer.
int64_t AnswerTokens(const NeedleSpec& spec, NeedleForm form);
// Tokens of `spec.length` that the prompt leaves free: the answer and a margin.
int64_t AnswerRoom(const NeedleSpec& spec, NeedleForm form);

// Whether an answer states the code: its first number must be the code, and except in a chat only spaces may precede
// it. kOpen: undecided until the next token; never if `ended`.
enum class Verdict { kOpen, kRight, kWrong };
Verdict Judge(std::string_view answer, std::string_view code, NeedleForm form, bool ended);

// Which sought strings an answer contains, as whole words (no letter or digit beside them), ignoring case, in any
// order. RULER's rule is the same but also accepts parts of words. In the plain form, the answer ends where the model
// begins another question.
struct ListScore {
  bool done = false;       // further tokens cannot change the score
  std::vector<bool> hits;  // [sought]
};
ListScore ScoreList(std::string_view answer, std::span<const std::string_view> sought, NeedleForm form, bool ended);

// "a", "a and b", "a, b and c".
std::string Listed(std::span<const std::string> words);
// "one" to "twelve", then digits.
std::string NumberWord(int64_t number);

}  // namespace infinigen
