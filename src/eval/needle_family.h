// Families of planted facts, after those of RULER (Hsieh et al., 2024): what a text says, what is asked about it, the
// strings that an answer should have, and whether it has them. A task is a function of its spec and the random numbers
// alone; eval/needle_case.h puts its sentences into a text. Pure functions, any thread.
//
//   single       one access code (with --facts K: K codes under different keys), one asked for
//   multi-key    the same with eight codes
//   multi-value  one key with several codes, all asked for
//   multi-query  several keys with a code each, asked for in one question
//   variable     two chains of names: the first name has a number, each other one equals the name before. Asked for:
//                all names with one of the two numbers
//   words        no sentences but a list of words, a few of which come ten times as often as the others. Asked for: the
//                frequent ones
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
// The answer is one code, judged by Judge; the other families ask for a list of strings, judged by ScoreList.
inline bool AsksForOne(NeedleFamily family) {
  return family == NeedleFamily::kSingle || family == NeedleFamily::kMultiKey;
}
// --facts counts codes; for variable the names of a chain, for words the words that are asked for.
int64_t DefaultFacts(NeedleFamily family);
int64_t MostFacts(NeedleFamily family);
inline constexpr int64_t kMostFacts = 256;  // of any family; there are more keys

struct NeedleSpec {
  int64_t length = 0;  // tokens of context, question and answer together, at most
  int64_t facts = 1;
  int64_t index = 0, n = 1;  // case `index` of `n`
  NeedleFamily family = NeedleFamily::kSingle;
};

// A sentence to plant.
struct NeedleStatement {
  std::string text;
  double depth = 0;              // where it should stand, in [0, 1)
  std::optional<size_t> sought;  // index of the string that it gives; nullopt: it gives none
};

struct NeedleTask {
  std::vector<std::string> sought;          // what the answer should have
  std::vector<NeedleStatement> statements;  // ascending by depth in families that ask for a list
  std::string question;                     // "What is the access code for the north gate?"
  std::string opening;                      // of the answer, as it follows the text: " The access code for ... is"
};

// For all families but words. Case i of n has its first string at a depth drawn from [i/n, (i+1)/n), or one of its
// strings where they are ordered; the others lie anywhere.
NeedleTask DrawTask(const NeedleSpec& spec, SplitMix& random);

// For words. `pool`: different words to draw from, at least WordsNeeded. `filler` becomes the list, at least `count`
// words long. It consists of rounds of WordsInRound words, so that the sought words are the most frequent of every
// beginning from the first round on.
size_t WordsNeeded(int64_t facts);
size_t WordsInRound(int64_t facts);
NeedleTask DrawWords(const NeedleSpec& spec, std::vector<std::string> pool, size_t count, SplitMix& random,
                     std::vector<FillerSentence>* filler);

// Tokens that an answer may have.
int64_t AnswerTokens(const NeedleSpec& spec, NeedleForm form);
// Tokens of `spec.length` that the prompt leaves free: the answer, and a margin.
int64_t AnswerRoom(const NeedleSpec& spec, NeedleForm form);

// Whether an answer gives one code: its first number must be the code, with nothing but spaces before it unless a chat
// answers. kOpen: the next token decides; never where the answer has ended.
enum class Verdict { kOpen, kRight, kWrong };
Verdict Judge(std::string_view answer, std::string_view code, NeedleForm form, bool ended);

// Which strings of a list an answer gives: those that occur in it as whole words (neither a letter nor a digit beside
// them), case ignored, in any order. RULER's rule is the same but takes parts of words too. In the plain form the
// answer ends where the model goes on to ask itself the next question.
struct ListScore {
  bool done = false;       // no further token changes anything
  std::vector<bool> hits;  // [sought]
};
ListScore ScoreList(std::string_view answer, std::span<const std::string_view> sought, NeedleForm form, bool ended);

// "a", "a and b", "a, b and c".
std::string Listed(std::span<const std::string> words);
// "one" to "twelve", then digits.
std::string NumberWord(int64_t number);

}  // namespace infinigen
