#include "eval/needle_family.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "base/check.h"

namespace infinigen {
namespace {

struct Family {
  NeedleFamily family;
  std::string_view name;
  int64_t facts, most_facts;
  int64_t answer_tokens;  // per string; a code is a space, six digits (often one token each) and a comma
};
// Numbers of facts as in RULER, except for words: RULER asks for ten, but the shipped model was trained to name three.
constexpr std::array<Family, 6> kFamilies = {{{NeedleFamily::kSingle, "single", 1, kMostFacts, 12},
                                              {NeedleFamily::kMultiKey, "multi-key", 8, kMostFacts, 12},
                                              {NeedleFamily::kMultiValue, "multi-value", 4, 64, 12},
                                              {NeedleFamily::kMultiQuery, "multi-query", 4, 64, 12},
                                              {NeedleFamily::kVariable, "variable", 5, 64, 8},
                                              {NeedleFamily::kWords, "words", 3, 16, 8}}};
constexpr int64_t kSentenceTokens = 20;  // tokens around the strings in a chat answer
constexpr int64_t kAnswerMargin = 4;

const Family& Of(NeedleFamily family) { return kFamilies[static_cast<size_t>(family)]; }

// A key is a side and a spot; the shipped model was trained with both.
constexpr std::array<std::string_view, 24> kSides = {
    "north", "south", "east",   "west",  "upper", "lower", "old",   "new",   "inner", "outer", "main",   "back",
    "front", "first", "second", "small", "red",   "blue",  "green", "white", "black", "iron",  "wooden", "hidden"};
constexpr std::array<std::string_view, 32> kSpots = {
    "gate",    "tower",   "bridge",   "vault",      "cellar",      "garden",  "harbour", "station",
    "library", "archive", "workshop", "office",     "hall",        "chapel",  "museum",  "stable",
    "barn",    "mill",    "tunnel",   "lighthouse", "greenhouse",  "kitchen", "attic",   "courtyard",
    "depot",   "shed",    "cabin",    "storehouse", "observatory", "bakery",  "school",  "boathouse"};
static_assert(kSides.size() * kSpots.size() >= static_cast<size_t>(kMostFacts));

// All letters except those that look like digits.
constexpr std::string_view kLetters = "ABCDEFGHKLMNPRSTUVWXYZ";
constexpr size_t kChains = 2;  // chains of variables; the question asks for the names of one

// A list has kWordPool different words, or kPoolPerWord times the number of sought words if that is more. In a round,
// every sought word occurs kOften times and every other word once, as in RULER.
constexpr size_t kWordPool = 40;
constexpr size_t kPoolPerWord = 4;
constexpr size_t kOften = 10;

struct Fact {
  std::string key, code;
};

std::vector<Fact> DrawFacts(int64_t count, SplitMix& random) {
  std::vector<Fact> facts;
  while (static_cast<int64_t>(facts.size()) < count) {
    Fact fact;
    fact.key = fmt::format("the {} {}", random.Pick(kSides), random.Pick(kSpots));
    fact.code = fmt::format("{}", 100000 + random.Below(900000));
    const auto clashes = [&](const Fact& other) { return other.key == fact.key || other.code == fact.code; };
    if (std::none_of(facts.begin(), facts.end(), clashes)) facts.push_back(std::move(fact));
  }
  return facts;
}

double DepthOfCase(const NeedleSpec& spec, SplitMix& random) {
  return (static_cast<double>(spec.index) + random.Unit()) / static_cast<double>(spec.n);
}

// Ascending depths: one in [index/n, (index+1)/n), the others anywhere.
std::vector<double> RisingDepths(const NeedleSpec& spec, SplitMix& random) {
  std::vector<double> depths = {DepthOfCase(spec, random)};
  while (static_cast<int64_t>(depths.size()) < spec.facts) depths.push_back(random.Unit());
  std::sort(depths.begin(), depths.end());
  return depths;
}

std::string CodeStatement(const Fact& fact) {
  return fmt::format("The access code for {} is {}.", fact.key, fact.code);
}

NeedleTask OneOfMany(const NeedleSpec& spec, SplitMix& random) {
  const std::vector<Fact> facts = DrawFacts(spec.facts, random);
  NeedleTask task;
  task.sought = {facts[0].code};
  task.statements.push_back({CodeStatement(facts[0]), DepthOfCase(spec, random), size_t{0}});
  for (size_t i = 1; i < facts.size(); ++i) task.statements.push_back({CodeStatement(facts[i]), random.Unit(), {}});
  task.question = fmt::format("What is the access code for {}?", facts[0].key);
  task.opening = fmt::format(" The access code for {} is", facts[0].key);
  return task;
}

NeedleTask ManyValues(const NeedleSpec& spec, SplitMix& random) {
  const std::vector<Fact> facts = DrawFacts(spec.facts, random);  // only the first key is used
  const std::vector<double> depths = RisingDepths(spec, random);
  NeedleTask task;
  for (size_t i = 0; i < facts.size(); ++i) {
    task.sought.push_back(facts[i].code);
    task.statements.push_back(
        {fmt::format("{} access code for {} is {}.", i == 0 ? "One" : "Another", facts[0].key, facts[i].code),
         depths[i], i});
  }
  task.question = fmt::format("What are all the access codes for {}?", facts[0].key);
  task.opening = fmt::format(" All the access codes for {} are", facts[0].key);
  return task;
}

NeedleTask ManyKeys(const NeedleSpec& spec, SplitMix& random) {
  const std::vector<Fact> facts = DrawFacts(spec.facts, random);
  const std::vector<double> depths = RisingDepths(spec, random);
  NeedleTask task;
  std::vector<std::string> keys;
  for (size_t i = 0; i < facts.size(); ++i) {
    keys.push_back(facts[i].key);
    task.sought.push_back(facts[i].code);
    task.statements.push_back({CodeStatement(facts[i]), depths[i], i});
  }
  task.question = fmt::format("What are the access codes for {}?", Listed(keys));
  task.opening = fmt::format(" The access codes for {} are", Listed(keys));
  return task;
}

NeedleTask Chains(const NeedleSpec& spec, SplitMix& random) {
  const size_t links = static_cast<size_t>(spec.facts);
  std::vector<std::string> names, values;
  const auto draw = [&](std::vector<std::string>& taken, auto make) {
    std::string drawn = make();
    while (std::find(taken.begin(), taken.end(), drawn) != taken.end()) drawn = make();
    taken.push_back(std::move(drawn));
  };
  while (names.size() < kChains * links)
    draw(names, [&] { return fmt::format("{}{}", random.Pick(kLetters), random.Between(1, 99)); });
  while (values.size() < kChains) draw(values, [&] { return fmt::format("{}", 10000 + random.Below(90000)); });
  NeedleTask task;
  for (size_t chain = 0; chain < kChains; ++chain) {
    const std::vector<double> depths = RisingDepths(spec, random);
    for (size_t i = 0; i < links; ++i) {
      const size_t at = chain * links + i;
      NeedleStatement statement{i == 0 ? fmt::format("Let {} be {}.", names[at], values[chain])
                                       : fmt::format("Let {} be equal to {}.", names[at], names[at - 1]),
                                depths[i],
                                {}};
      if (chain == 0) statement.sought = i;
      task.statements.push_back(std::move(statement));
    }
  }
  task.sought.assign(names.begin(), names.begin() + static_cast<ptrdiff_t>(links));
  task.question = fmt::format("Which variables have the value {}?", values[0]);
  task.opening = fmt::format(" The variables with the value {} are", values[0]);
  return task;
}

template <class T>
void Shuffle(std::vector<T>& items, SplitMix& random) {
  for (size_t i = items.size(); i > 1; --i) std::swap(items[i - 1], items[random.Below(i)]);
}

constexpr std::string_view kDigits = "0123456789";
constexpr std::string_view kNextQuestion = "\n\nQuestion";

char Lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }

// Bytes beyond ASCII count as letters.
bool InWord(char c) {
  const char lower = Lower(c);
  return (lower >= 'a' && lower <= 'z') || (c >= '0' && c <= '9') || (static_cast<unsigned char>(c) & 0x80) != 0;
}

// A word at the end of an unfinished answer does not count: the next token may continue it.
bool HasWord(std::string_view text, std::string_view word, bool ended) {
  const auto same = [](char a, char b) { return Lower(a) == Lower(b); };
  for (auto at = text.begin();; ++at) {
    at = std::search(at, text.end(), word.begin(), word.end(), same);
    if (at == text.end()) return false;
    const auto end = at + static_cast<ptrdiff_t>(word.size());
    const bool begins = at == text.begin() || !InWord(at[-1]);
    const bool ends = end == text.end() ? ended : !InWord(*end);
    if (begins && ends) return true;
  }
}

}  // namespace

std::string_view Name(NeedleForm form) {
  if (form == NeedleForm::kChat) return "chat";
  return form == NeedleForm::kContinuation ? "continuation" : "plain";
}

std::vector<std::string> FamilyNames() {
  std::vector<std::string> names;
  for (const Family& family : kFamilies) names.emplace_back(family.name);
  return names;
}

std::string_view Name(NeedleFamily family) { return Of(family).name; }

std::optional<NeedleFamily> FamilyOf(std::string_view name) {
  for (const Family& family : kFamilies)
    if (family.name == name) return family.family;
  return std::nullopt;
}

int64_t DefaultFacts(NeedleFamily family) { return Of(family).facts; }
int64_t MostFacts(NeedleFamily family) { return Of(family).most_facts; }

NeedleTask DrawTask(const NeedleSpec& spec, SplitMix& random) {
  CHECK(spec.facts >= 1 && spec.facts <= MostFacts(spec.family) && spec.family != NeedleFamily::kWords);
  if (spec.family == NeedleFamily::kMultiValue) return ManyValues(spec, random);
  if (spec.family == NeedleFamily::kMultiQuery) return ManyKeys(spec, random);
  if (spec.family == NeedleFamily::kVariable) return Chains(spec, random);
  return OneOfMany(spec, random);
}

size_t WordsNeeded(int64_t facts) { return std::max(kWordPool, kPoolPerWord * static_cast<size_t>(facts)); }
size_t WordsInRound(int64_t facts) { return WordsNeeded(facts) + (kOften - 1) * static_cast<size_t>(facts); }

NeedleTask DrawWords(const NeedleSpec& spec, std::vector<std::string> pool, size_t count, SplitMix& random,
                     std::vector<FillerSentence>* filler) {
  CHECK(spec.facts >= 1 && spec.facts <= MostFacts(NeedleFamily::kWords) && pool.size() >= WordsNeeded(spec.facts));
  const size_t facts = static_cast<size_t>(spec.facts);
  Shuffle(pool, random);
  pool.resize(WordsNeeded(spec.facts));
  NeedleTask task;
  task.sought.assign(pool.begin(), pool.begin() + static_cast<ptrdiff_t>(facts));
  std::vector<size_t> round;  // indices in `pool`
  for (size_t i = 0; i < pool.size(); ++i) round.insert(round.end(), i < facts ? kOften : 1, i);
  *filler = {{"", "Words:"}};
  while (filler->size() <= count) {
    Shuffle(round, random);
    for (const size_t i : round) filler->push_back({" ", pool[i]});
  }
  task.question = facts == 1 ? "What is the most frequent word?"
                             : fmt::format("What are the {} most frequent words?", NumberWord(spec.facts));
  task.opening = facts == 1 ? "\n\nThe most frequent word is"
                            : fmt::format("\n\nThe {} most frequent words are", NumberWord(spec.facts));
  return task;
}

int64_t AnswerTokens(const NeedleSpec& spec, NeedleForm form) {
  const int64_t strings = AsksForOne(spec.family) ? 1 : spec.facts;
  return Of(spec.family).answer_tokens * strings + (form == NeedleForm::kChat ? kSentenceTokens : 0);
}
int64_t AnswerRoom(const NeedleSpec& spec, NeedleForm form) { return AnswerTokens(spec, form) + kAnswerMargin; }

Verdict Judge(std::string_view answer, std::string_view code, NeedleForm form, bool ended) {
  const size_t first = std::min(answer.find_first_of(kDigits), answer.size());
  const std::string_view number = answer.substr(first, answer.find_first_not_of(kDigits, first) - first);
  // Only a chat answer may have words before the code.
  if (form != NeedleForm::kChat && answer.substr(0, first).find_first_not_of(' ') != std::string_view::npos)
    return Verdict::kWrong;
  const bool whole = ended || first + number.size() < answer.size();  // no more digits can follow
  if (whole) return number == code ? Verdict::kRight : Verdict::kWrong;
  return number == code.substr(0, number.size()) ? Verdict::kOpen : Verdict::kWrong;
}

ListScore ScoreList(std::string_view answer, std::span<const std::string_view> sought, NeedleForm form, bool ended) {
  const size_t next = form == NeedleForm::kPlain ? answer.find(kNextQuestion) : std::string_view::npos;
  ended = ended || next != std::string_view::npos;
  ListScore score;
  for (const std::string_view word : sought) score.hits.push_back(HasWord(answer.substr(0, next), word, ended));
  score.done = ended || std::find(score.hits.begin(), score.hits.end(), false) == score.hits.end();
  return score;
}

std::string Listed(std::span<const std::string> words) {
  if (words.size() < 2) return words.empty() ? "" : words[0];
  return fmt::format("{} and {}", fmt::join(words.first(words.size() - 1), ", "), words.back());
}

std::string NumberWord(int64_t number) {
  constexpr std::array<std::string_view, 12> kNumbers = {"one",   "two",   "three", "four", "five",   "six",
                                                         "seven", "eight", "nine",  "ten",  "eleven", "twelve"};
  if (number < 1 || number > static_cast<int64_t>(kNumbers.size())) return fmt::format("{}", number);
  return std::string(kNumbers[static_cast<size_t>(number - 1)]);
}

}  // namespace infinigen
