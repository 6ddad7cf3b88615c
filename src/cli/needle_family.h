// Families of planted facts, after those of RULER (Hsieh et al., 2024): what a text is told, what is asked about it,
// and the strings that an answer should have. A task is a function of its spec and the random numbers alone; where its
// sentences end up in a text is needle_case's business.
//
//   single       one access code (with --facts K: K codes under different keys), one asked for
//   multi-key    the same with eight codes
//   multi-value  one key with several codes, all of them asked for
//   multi-query  several keys with a code each, asked for in one question
//   variable     two chains of names: the first has a number, each other one is equal to the one before. Asked for: all
//                names with the one number
//   words        no sentences but a list of words, a few of which come ten times as often as the others: which?
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/split_mix.h"
#include "cli/needle_text.h"

namespace infinigen {

enum class NeedleForm { kPlain, kChat, kContinuation };
enum class NeedleFamily { kSingle, kMultiKey, kMultiValue, kMultiQuery, kVariable, kWords };

std::vector<std::string> FamilyNames();
std::string_view Name(NeedleFamily family);
std::optional<NeedleFamily> FamilyOf(std::string_view name);
// The answer is one code, judged strictly; of the other families, a list of strings (needle_judge.h).
inline bool AsksForOne(NeedleFamily family) {
  return family == NeedleFamily::kSingle || family == NeedleFamily::kMultiKey;
}
// What --facts counts is codes; of variable the names of a chain; of words those that are asked for.
int64_t DefaultFacts(NeedleFamily family);
int64_t MostFacts(NeedleFamily family);
inline constexpr int64_t kMostFacts = 256;  // of any family; there are more keys

struct NeedleSpec {
  int64_t length = 0;  // tokens of context, question and answer together, at most
  int64_t facts = 1;
  int64_t index = 0, n = 1;  // case `index` of `n`
  NeedleFamily family = NeedleFamily::kSingle;
};

struct NeedleStatement {
  std::string text;
  double depth = 0;              // where it should stand, in [0, 1)
  std::optional<size_t> sought;  // which of the task's strings it gives
};

struct NeedleTask {
  std::vector<std::string> sought;          // what the answer should have
  std::vector<NeedleStatement> statements;  // to be planted; the families that list have them by rising depth
  std::string question;                     // "What is the access code for the north gate?"
  std::string opening;                      // of the answer, as it follows the text: " The access code for ... is"
};

// The families with sentences. Of the spec's n cases the i-th has its first string at a depth drawn from [i/n,
// (i+1)/n), or one of its strings where they are ordered; all else lies anywhere.
NeedleTask DrawTask(const NeedleSpec& spec, SplitMix& random);

// kWords. `pool`: different words to draw from, at least WordsNeeded. `filler` becomes the list, at least `count` words
// long; it is made of rounds (WordsInRound), so that from the first on the sought words are the most frequent of every
// beginning.
size_t WordsNeeded(int64_t facts);
size_t WordsInRound(int64_t facts);
NeedleTask DrawWords(const NeedleSpec& spec, std::vector<std::string> pool, size_t count, SplitMix& random,
                     std::vector<FillerSentence>* filler);

// Tokens that an answer may have.
int64_t AnswerTokens(const NeedleSpec& spec, NeedleForm form);
// Tokens of `spec.length` that the prompt leaves free: the answer, and a margin.
int64_t AnswerRoom(const NeedleSpec& spec, NeedleForm form);

// "a", "a and b", "a, b and c".
std::string Listed(std::span<const std::string> words);
// "one" to "twelve", then digits.
std::string NumberWord(int64_t number);

}  // namespace infinigen
