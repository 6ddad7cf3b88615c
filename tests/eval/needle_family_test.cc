// Families of planted facts: what each plants and asks, how lists are judged, how cases are counted.
#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <map>
#include <regex>
#include <set>
#include <sstream>

#include "eval/filler.h"
#include "eval/needle_case.h"
#include "eval/needle_run.h"
#include "eval/needle_score.h"
#include "eval/needle_show.h"
#include "golden/golden_run.h"

namespace infinigen {
namespace {

const std::string kFamilyModel = INFINIGEN_TEST_DATA "/../models/infinigen-mini";

const Tokenizer& FamilyTokenizer() {
  static const std::unique_ptr<Tokenizer> tokenizer = Tokenizer::Load(kFamilyModel).value();
  return *tokenizer;
}

NeedleMaker Maker(NeedleForm form, std::optional<std::string> source = std::nullopt, uint64_t seed = 3) {
  return NeedleMaker::Make(FamilyTokenizer(), form, std::move(source), seed).value();
}

size_t Times(std::string_view text, std::string_view part) {
  size_t count = 0;
  for (size_t at = text.find(part); at != std::string_view::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

std::vector<bool> Hits(std::string_view answer, std::vector<std::string_view> sought, bool ended = true,
                       NeedleForm form = NeedleForm::kPlain) {
  return ScoreList(answer, sought, form, ended).hits;
}

TEST(NeedleFamily, NamesGoBothWays) {
  EXPECT_EQ(FamilyNames(),
            (std::vector<std::string>{"single", "multi-key", "multi-value", "multi-query", "variable", "words"}));
  for (const std::string& name : FamilyNames()) EXPECT_EQ(Name(*FamilyOf(name)), name);
  EXPECT_FALSE(FamilyOf("needle"));
  EXPECT_EQ(Listed(std::vector<std::string>{"a", "b", "c"}), "a, b and c");
  EXPECT_EQ(Listed(std::vector<std::string>{"a"}), "a");
  EXPECT_EQ(NumberWord(3), "three");
  EXPECT_EQ(NumberWord(13), "13");
}

TEST(NeedleJudge, ListsCountWholeWordsInAnyOrder) {
  using Bits = std::vector<bool>;
  EXPECT_EQ(Hits(" 483920, 111111 and 222222", {"111111", "222222", "333333"}), (Bits{true, true, false}));
  EXPECT_EQ(Hits("The words are Raven and cat.", {"raven", "cat"}), (Bits{true, true})) << "case is ignored";
  EXPECT_EQ(Hits(" A71 and BA7, A7b", {"A7"}), Bits{false}) << "parts of words are none";
  EXPECT_EQ(Hits(" A71, (A7)", {"A7"}), Bits{true});
  EXPECT_EQ(Hits(" caf\u00e9s cat\u00e9", {"cat", "s"}), (Bits{false, false})) << "letters beyond ASCII are letters";
  EXPECT_EQ(Hits("", {"A7"}), Bits{false});
}

TEST(NeedleJudge, ListsEndWithTheLastStringOrTheNextQuestion) {
  const std::vector<std::string_view> sought = {"A7", "K31"};
  const auto done = [&](std::string_view answer, bool ended, NeedleForm form = NeedleForm::kPlain) {
    return ScoreList(answer, sought, form, ended).done;
  };
  EXPECT_FALSE(done(" A7 and K31", false)) << "K310 may come";
  EXPECT_FALSE(ScoreList(" A7 and K31", sought, NeedleForm::kPlain, false).hits[1]);
  EXPECT_TRUE(ScoreList(" A7 and K31", sought, NeedleForm::kPlain, true).hits[1]);
  EXPECT_TRUE(done(" A7 and K31.", false));
  EXPECT_FALSE(done(" A7 and B2, ", false));
  EXPECT_TRUE(done(" B2", true));
  // A model that goes on to ask itself has answered; what it asks for is no answer.
  const std::string next = " A7\n\nQuestion: What is the value of K31?";
  EXPECT_TRUE(done(next, false));
  EXPECT_EQ(Hits(next, sought, false), (std::vector<bool>{true, false}));
  EXPECT_FALSE(done(" A7\n\nQuestion", false, NeedleForm::kChat));
}

// For every family and form: the token budget, the question, and the positions of the sentences.
TEST(NeedleFamily, KeepsItsPromises) {
  for (const NeedleForm form : {NeedleForm::kPlain, NeedleForm::kChat, NeedleForm::kContinuation}) {
    const NeedleMaker maker = Maker(form);
    for (const std::string& name : FamilyNames()) {
      const NeedleFamily family = *FamilyOf(name);
      for (int64_t index = 0; index < 4; ++index) {
        SCOPED_TRACE(fmt::format("{}, form {}, case {}", name, static_cast<int>(form), index));
        const NeedleSpec spec{.length = 900, .facts = DefaultFacts(family), .index = index, .n = 4, .family = family};
        const NeedleCase made = maker.Case(spec).value();
        EXPECT_EQ(made.text, maker.Case(spec).value().text);
        EXPECT_EQ(made.sought.size(), AsksForOne(family) ? 1u : static_cast<size_t>(spec.facts));
        const int64_t room = spec.length - AnswerRoom(spec, form);
        EXPECT_LE(made.prompt_tokens(), room);
        EXPECT_GT(static_cast<double>(made.prompt_tokens()), 0.98 * static_cast<double>(room));
        std::vector<int32_t> ids = made.context;
        ids.insert(ids.end(), made.question_ids.begin(), made.question_ids.end());
        const std::string prompt = FamilyTokenizer().Decode(ids, /*skip_special=*/true);
        EXPECT_NE(prompt.find(made.text + made.question), std::string::npos);
        std::set<std::string> different;
        bool in_stratum = false;
        for (size_t i = 0; i < made.sought.size(); ++i) {
          const NeedleSought& sought = made.sought[i];
          different.insert(sought.text);
          if (sought.statement.empty()) continue;
          EXPECT_EQ(made.text.substr(sought.at, sought.statement.size()), sought.statement);
          EXPECT_NE(sought.statement.find(sought.text), std::string::npos);
          const std::string from =
              FamilyTokenizer().Decode(std::span(ids).subspan(static_cast<size_t>(sought.token), 30), false);
          EXPECT_LE(from.find(sought.statement.substr(0, 12)), 6u) << from;
          EXPECT_NEAR(made.depth(i), sought.depth, 0.2);
          in_stratum |=
              sought.depth * 4 >= static_cast<double>(index) && sought.depth * 4 < static_cast<double>(index + 1);
          if (i > 0) {
            EXPECT_LT(made.sought[i - 1].at, sought.at) << "lists are asked for in the order of the text";
          }
        }
        EXPECT_EQ(different.size(), made.sought.size());
        EXPECT_TRUE(in_stratum || family == NeedleFamily::kWords);
      }
    }
  }
}

TEST(NeedleFamily, MultiKeyIsSingleWithMoreFacts) {
  const NeedleMaker maker = Maker(NeedleForm::kPlain);
  NeedleSpec spec{.length = 700, .facts = 8, .index = 1, .n = 3};
  const std::string single = maker.Case(spec).value().text;
  spec.family = NeedleFamily::kMultiKey;
  EXPECT_EQ(maker.Case(spec).value().text, single);
  spec.family = NeedleFamily::kMultiQuery;
  EXPECT_NE(maker.Case(spec).value().text, single);
}

TEST(NeedleFamily, ValuesHaveOneKeyAndQueriesMany) {
  const NeedleMaker maker = Maker(NeedleForm::kPlain);
  const NeedleCase values = maker.Case({.length = 900, .facts = 4, .family = NeedleFamily::kMultiValue}).value();
  std::smatch key;
  ASSERT_TRUE(std::regex_search(values.question, key, std::regex("all the access codes for (the .+)\\?")));
  EXPECT_EQ(Times(values.text, "ne access code for " + key[1].str() + " is"), 1u) << "One ...";
  EXPECT_EQ(Times(values.text, "Another access code for " + key[1].str() + " is"), 3u);
  const NeedleCase keys = maker.Case({.length = 900, .facts = 4, .family = NeedleFamily::kMultiQuery}).value();
  size_t last = 0;
  for (const NeedleSought& sought : keys.sought) {
    ASSERT_TRUE(std::regex_match(sought.statement, key, std::regex("The access code for (.+) is (\\d{6})\\.")));
    EXPECT_EQ(key[2], sought.text);
    const size_t at = keys.question.find(key[1].str());
    ASSERT_NE(at, std::string::npos) << keys.question;
    EXPECT_GT(at, last);
    last = at;
  }
}

// The names that a reader of the text finds to have the value, each said before it is used.
TEST(NeedleFamily, ChainsOfVariablesHoldTogether) {
  const NeedleMaker maker = Maker(NeedleForm::kPlain);
  for (int64_t index = 0; index < 5; ++index) {
    const NeedleCase made =
        maker.Case({.length = 1200, .facts = 5, .index = index, .n = 5, .family = NeedleFamily::kVariable}).value();
    std::map<std::string, std::string> value;
    const std::regex let("Let ([A-Z]\\d+) be (equal to )?([A-Z]?\\d+)\\.");
    for (std::sregex_iterator it(made.text.begin(), made.text.end(), let), end; it != end; ++it) {
      const std::string name = (*it)[1], source = (*it)[3];
      EXPECT_FALSE(value.count(name));
      if ((*it)[2].matched) {
        ASSERT_TRUE(value.count(source)) << source << " is used before it is said";
      }
      value[name] = (*it)[2].matched ? value[source] : source;
    }
    EXPECT_EQ(value.size(), 10u);
    std::smatch asked;
    ASSERT_TRUE(std::regex_search(made.question, asked, std::regex("have the value (\\d{5})\\?")));
    std::set<std::string> expected, sought;
    for (const auto& [name, number] : value)
      if (number == asked[1]) expected.insert(name);
    for (const NeedleSought& one : made.sought) sought.insert(one.text);
    EXPECT_EQ(sought, expected);
    EXPECT_EQ(sought.size(), 5u);
  }
}

TEST(NeedleFamily, SoughtWordsAreTheMostFrequent) {
  std::string book;
  StoryWriter writer(5);
  for (int i = 0; i < 60; ++i)
    for (const std::string& sentence : writer.Paragraph()) book += sentence + " ";
  std::string small = book;
  std::transform(small.begin(), small.end(), small.begin(), [](char c) { return static_cast<char>(std::tolower(c)); });
  for (const bool real : {false, true}) {
    const NeedleMaker maker = Maker(NeedleForm::kPlain, real ? std::optional(book) : std::nullopt);
    for (const int64_t facts : {1, 3, 10}) {
      const NeedleCase made = maker.Case({.length = 800, .facts = facts, .family = NeedleFamily::kWords}).value();
      ASSERT_EQ(made.text.rfind("Words: ", 0), 0u);
      std::istringstream words(made.text.substr(7));
      std::map<std::string, int> count;
      for (std::string word; words >> word;) ++count[word];
      EXPECT_EQ(count.size(), WordsNeeded(facts));
      int least = 1 << 20, most = 0;
      for (const NeedleSought& sought : made.sought) {
        EXPECT_TRUE(sought.statement.empty());
        least = std::min(least, count[sought.text]);
        count.erase(sought.text);
        if (real) {
          EXPECT_NE(small.find(sought.text), std::string::npos);
        }
      }
      for (const auto& [word, times] : count) most = std::max(most, times);
      EXPECT_GT(least, 4 * most) << facts;
    }
  }
  const Result<NeedleCase> crowded =
      Maker(NeedleForm::kPlain).Case({.length = 100, .facts = 3, .family = NeedleFamily::kWords});
  ASSERT_FALSE(crowded.ok());
  EXPECT_NE(crowded.error().message.find("too few for 3 facts"), std::string::npos) << crowded.error().message;
  const Result<NeedleCase> poor = Maker(NeedleForm::kPlain, "One word here. And one word there.")
                                      .Case({.length = 500, .family = NeedleFamily::kWords});
  ASSERT_FALSE(poor.ok());
  EXPECT_NE(poor.error().message.find("different words"), std::string::npos);
}

TEST(NeedleText, DistinctWordsAreLettersOnly) {
  EXPECT_EQ(DistinctWords("The River, the river; don't (Stones) x1yz abcdefghijklm na\u00efve seas."),
            (std::vector<std::string>{"river", "stones", "seas"}));
  const std::vector<std::string_view> nouns = StoryNouns();
  EXPECT_GE(nouns.size(), WordsNeeded(MostFacts(NeedleFamily::kWords)));
  EXPECT_EQ(std::set<std::string_view>(nouns.begin(), nouns.end()).size(), nouns.size());
}

NeedleCell CellOf(size_t cases, size_t bins) {
  NeedleCell cell;
  cell.outcomes.resize(cases);
  cell.bins.resize(bins);
  return cell;
}

TEST(NeedleCell, CountsCasesSharesAndDepths) {
  NeedleCell cell = CellOf(2, 4);
  NeedleCase planted;
  planted.context.resize(100);
  planted.sought = {{.text = "a", .statement = "a.", .depth = 0.1, .token = 12},
                    {.text = "b", .statement = "b.", .depth = 0.99, .token = 98}};
  cell.Add(planted, {.done = true, .found = false, .hits = {true, false}, .tokens = {1, 2}});
  planted.spec.index = 1;
  cell.Add(planted, {.done = true, .found = true, .hits = {true, true}, .tokens = {3}});
  EXPECT_EQ(cell.score.all.n, 2);
  EXPECT_EQ(cell.score.all.found, 1) << "with everything";
  EXPECT_DOUBLE_EQ(cell.score.accuracy(), 0.75) << "RULER's share of strings";
  EXPECT_EQ(cell.by_depth[0].found, 2);
  EXPECT_EQ(cell.by_depth[4].found, 1);
  EXPECT_EQ(cell.by_depth[4].n, 2);
  EXPECT_EQ(cell.bins[0].n, 2);
  EXPECT_EQ(cell.bins[3].found, 1);
  // Agreement is case by case, of those that both finished.
  NeedleCell other = cell;
  other.outcomes[0].tokens = {1, 4};
  EXPECT_EQ(Agree(cell, other).n, 2);
  EXPECT_EQ(Agree(cell, other).same_answer, 1);
  EXPECT_EQ(Agree(cell, other).same_found, 2);
  other.outcomes[0].hits = {false, false};
  other.outcomes[1].done = false;
  EXPECT_EQ(Agree(cell, other).n, 1);
  EXPECT_EQ(Agree(cell, other).same_found, 0);
}

TEST(NeedleRun, TheShippedModelListsThem) {
  const auto model =
      LoadModel(kFamilyModel, {.threads = 2, .max_tokens = 400, .max_batch = 4, .kv_type = StoreType::kBF16});
  const NeedleMaker maker = Maker(NeedleForm::kPlain);
  std::vector<NeedleCase> cases;
  for (const NeedleFamily family : {NeedleFamily::kMultiValue, NeedleFamily::kMultiQuery})
    for (int64_t i = 0; i < 2; ++i)
      cases.push_back(maker.Case({.length = 400, .facts = 3, .index = i, .n = 2, .family = family}).value());
  NeedleRunner runner(*model->executor, FamilyTokenizer(), NeedleForm::kPlain);
  const std::vector<NeedleAnswer> answers = runner.Run(cases, {}).value();
  double shares = 0;
  for (size_t i = 0; i < cases.size(); ++i) {
    EXPECT_TRUE(answers[i].done);
    ASSERT_EQ(answers[i].hits.size(), 3u);
    for (size_t k = 0; k < 3; ++k)
      EXPECT_EQ(answers[i].hits[k], answers[i].text.find(cases[i].sought[k].text) != std::string::npos);
    EXPECT_EQ(answers[i].found, answers[i].share() == 1);
    shares += answers[i].share();
  }
  EXPECT_GE(shares, 3) << "of 4";
}

TEST(NeedleShow, EveryFamilyFitsAScreen) {
  const NeedleMaker maker = Maker(NeedleForm::kPlain);
  for (const std::string& name : FamilyNames()) {
    const NeedleFamily family = *FamilyOf(name);
    const NeedleCase made =
        maker.Case({.length = 3000, .facts = DefaultFacts(family), .index = 2, .n = 4, .family = family}).value();
    NeedleAnswer answer{.done = true, .hits = std::vector<bool>(made.sought.size(), false)};
    const std::string wrong = ShowOutcome(made, answer, {}, {}, {}, {}, {});
    EXPECT_NE(wrong.find(made.sought.size() == 1 ? "wrong, it is " : "wrong, they are "), std::string::npos);
    for (const NeedleSought& sought : made.sought) EXPECT_EQ(Times(wrong, sought.text), 1u) << wrong;
    answer.hits[0] = answer.found = true;
    if (made.sought.size() > 1) {
      answer.found = false;
      EXPECT_NE(ShowOutcome(made, answer, {}, {}, {}, {}, {}).find("1 of"), std::string::npos);
    }
    const std::string screen = ShowCase(made, "generated", {}) + wrong;
    EXPECT_LE(Times(screen, "\n"), 26u) << screen;
    EXPECT_EQ(Times(screen, "Question: "), 1u);
  }
}

}  // namespace
}  // namespace infinigen
