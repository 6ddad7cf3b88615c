// Needle cases: what is planted, where, how much of it, and whether the shipped model finds it.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "eval/filler.h"
#include "eval/needle_case.h"
#include "eval/needle_run.h"
#include "eval/needle_show.h"
#include "golden/golden_run.h"

namespace infinigen {
namespace {

const std::string kShipped = INFINIGEN_TEST_DATA "/../models/infinigen-mini";

const Tokenizer& ShippedTokenizer() {
  static const std::unique_ptr<Tokenizer> tokenizer = Tokenizer::Load(kShipped).value();
  return *tokenizer;
}

size_t Occurrences(std::string_view text, std::string_view part) {
  size_t count = 0;
  for (size_t at = text.find(part); at != std::string_view::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

// Running text with everything that makes sentences hard to find.
std::string RealText() {
  std::string text = "CHAPTER I\n\n";
  StoryWriter writer(99);
  for (int i = 0; i < 900; ++i) {
    for (const std::string& sentence : writer.Paragraph()) text += sentence + (i % 3 == 0 ? "\n" : "  ");
    text +=
        "\u201cWhat did Mr. Brown say to J. Smith in 1852?\u201d he asked. \"Nothing at all!\" Then it was late.\n\n";
  }
  return text;
}

TEST(NeedleText, SplitsAtSentences) {
  const auto split = SplitSentences(
      "\n Title\n\nOne is here.  Two came!\nThree \u201cwent.\u201d Four saw Mr. Brown and J. Smith. five? no. "
      "\"Six,\" said it.\n");
  std::vector<std::string> texts, before;
  for (const FillerSentence& s : split) {
    texts.push_back(s.text);
    before.push_back(s.before);
  }
  EXPECT_EQ(texts, (std::vector<std::string>{"Title", "One is here.", "Two came!", "Three \u201cwent.\u201d",
                                             "Four saw Mr. Brown and J. Smith. five? no.", "\"Six,\" said it."}));
  EXPECT_EQ(before, (std::vector<std::string>{"", "\n\n", " ", "\n", " ", " "}));
  EXPECT_TRUE(SplitSentences("").empty());
  EXPECT_TRUE(SplitSentences(" \n\n \n").empty());
}

TEST(NeedleText, SplittingAgainChangesNothing) {
  for (const FillerSentence& s : SplitSentences(RealText())) {
    EXPECT_FALSE(s.text.empty());
    EXPECT_EQ(SplitSentences(s.text).size(), 1u) << s.text;
  }
}

TEST(NeedleText, CutsWholeSentencesFromRandomPlaces) {
  const std::string text = RealText();
  std::set<std::string> whole, firsts;
  for (const FillerSentence& s : SplitSentences(text)) whole.insert(s.text);
  SplitMix random(5);
  for (int i = 0; i < 50; ++i) {
    const std::vector<FillerSentence> cut = CutFiller(text, 4000, random);
    ASSERT_GT(cut.size(), 10u);
    firsts.insert(cut[0].text);
    for (const FillerSentence& s : cut) EXPECT_TRUE(whole.count(s.text)) << s.text;
  }
  EXPECT_GT(firsts.size(), 25u);
}

TEST(NeedleCase, JudgesTheFirstNumber) {
  const auto plain = [](std::string_view text, bool ended) { return Judge(text, "483920", NeedleForm::kPlain, ended); };
  EXPECT_EQ(plain("", false), Verdict::kOpen);
  EXPECT_EQ(plain(" ", false), Verdict::kOpen);
  EXPECT_EQ(plain(" 4839", false), Verdict::kOpen);
  EXPECT_EQ(plain(" 4839", true), Verdict::kWrong);
  EXPECT_EQ(plain(" 4838", false), Verdict::kWrong);
  EXPECT_EQ(plain(" 483920", false), Verdict::kOpen) << "a seventh digit may follow";
  EXPECT_EQ(plain(" 483920", true), Verdict::kRight);
  EXPECT_EQ(plain(" 483920.", false), Verdict::kRight);
  EXPECT_EQ(plain(" 4839201", false), Verdict::kWrong);
  EXPECT_EQ(plain(" 483 920", false), Verdict::kWrong);
  EXPECT_EQ(plain(" It is 483920.", false), Verdict::kWrong);
  EXPECT_EQ(plain("", true), Verdict::kWrong);
  const auto chat = [](std::string_view text, bool ended) { return Judge(text, "483920", NeedleForm::kChat, ended); };
  EXPECT_EQ(chat("The access code for the north gate is", false), Verdict::kOpen);
  EXPECT_EQ(chat("The access code for the north gate is 483920.", false), Verdict::kRight);
  EXPECT_EQ(chat("The code is 111111, not 483920.", false), Verdict::kWrong);
  EXPECT_EQ(chat("I do not know.", true), Verdict::kWrong);
}

struct Setting {
  NeedleForm form;
  bool real;
};

class NeedlePlanting : public testing::TestWithParam<Setting> {};

TEST_P(NeedlePlanting, KeepsItsPromises) {
  const auto [form, real] = GetParam();
  const Tokenizer& tokenizer = ShippedTokenizer();
  const NeedleMaker maker =
      NeedleMaker::Make(tokenizer, form, real ? std::optional(RealText()) : std::nullopt, 17).value();
  for (const int64_t length : {400, 1024, 4096}) {
    for (const int64_t facts : {1, 8}) {
      const int64_t n = 5;
      for (int64_t index = 0; index < n; ++index) {
        const NeedleCase made = maker.Case({.length = length, .facts = facts, .index = index, .n = n}).value();
        SCOPED_TRACE(fmt::format("{} tokens, {} facts, case {}", length, facts, index));
        // The asked fact is there once, between two sentences; every key and code is there once.
        ASSERT_EQ(made.sought.size(), 1u);
        const NeedleSought& sought = made.sought[0];
        const std::string& statement = sought.statement;
        EXPECT_EQ(made.text.substr(sought.at, statement.size()), statement);
        EXPECT_EQ(Occurrences(made.text, statement), 1u);
        EXPECT_EQ(Occurrences(made.text, sought.text), 1u);
        EXPECT_EQ(Occurrences(statement, sought.text), 1u);
        EXPECT_EQ(Occurrences(made.text, "The access code for the "), static_cast<size_t>(facts));
        EXPECT_NE(std::string(".!?\"\u201d").find(made.text[sought.at - 2]), std::string::npos);
        EXPECT_EQ(made.text[sought.at + statement.size()], ' ');
        std::set<std::string> keys;
        for (size_t at = made.text.find("code for "); at != std::string::npos; at = made.text.find("code for ", at + 1))
          keys.insert(made.text.substr(at, made.text.find(" is ", at) - at));
        EXPECT_EQ(keys.size(), static_cast<size_t>(facts));
        // The budget of tokens.
        const int64_t room = length - AnswerRoom(made.spec, form);
        EXPECT_LE(made.prompt_tokens(), room);
        EXPECT_GT(static_cast<double>(made.prompt_tokens()), 0.98 * static_cast<double>(room));
        // The depth: within its stratum, up to a few sentences (of the generated text: a paragraph's opening has no
        // place before it).
        const double slack = 150.0 / static_cast<double>(length);
        EXPECT_GE(made.depth(), static_cast<double>(index) / static_cast<double>(n) - slack);
        EXPECT_LE(made.depth(), static_cast<double>(index + 1) / static_cast<double>(n) + slack);
        // Context and question are the prompt, encoded as one text; the fact is where it is said to be.
        std::vector<int32_t> ids = made.context;
        ids.insert(ids.end(), made.question_ids.begin(), made.question_ids.end());
        const std::string prompt = tokenizer.Decode(ids, /*skip_special=*/false);
        const bool chat = form == NeedleForm::kChat;
        EXPECT_EQ(prompt, (chat ? "<|endoftext|><|user|>" : "<|endoftext|>") + made.text + made.question +
                              (chat ? "<|end|><|assistant|>" : ""));
        EXPECT_EQ(tokenizer.Encode(prompt, {.add_special = false}).value(), ids);
        const std::string from_fact =
            tokenizer.Decode(std::span(ids).subspan(static_cast<size_t>(sought.token), 40), /*skip_special=*/false);
        // Its first token may also hold the separator and the end of the sentence before (".\n").
        EXPECT_LE(from_fact.find(statement), 6u) << from_fact;
        EXPECT_LT(made.question_ids.size(), 48u);
      }
    }
  }
}

std::string SettingName(const testing::TestParamInfo<Setting>& info) {
  const char* form = info.param.form == NeedleForm::kPlain  ? "Plain"
                     : info.param.form == NeedleForm::kChat ? "Chat"
                                                            : "Continuation";
  return std::string(form) + (info.param.real ? "Real" : "Generated");
}

INSTANTIATE_TEST_SUITE_P(Forms, NeedlePlanting,
                         testing::Values(Setting{NeedleForm::kPlain, false}, Setting{NeedleForm::kPlain, true},
                                         Setting{NeedleForm::kChat, false}, Setting{NeedleForm::kContinuation, true}),
                         SettingName);

TEST(NeedleCase, IsAFunctionOfItsSpecAndSeed) {
  const Tokenizer& tokenizer = ShippedTokenizer();
  const NeedleSpec spec{.length = 512, .facts = 3, .index = 1, .n = 4};
  const auto text = [&](uint64_t seed, const NeedleSpec& of) {
    return NeedleMaker::Make(tokenizer, NeedleForm::kPlain, std::nullopt, seed).value().Case(of).value().text;
  };
  EXPECT_EQ(text(1, spec), text(1, spec));
  EXPECT_NE(text(1, spec), text(2, spec));
  EXPECT_NE(text(1, spec), text(1, {.length = 512, .facts = 3, .index = 2, .n = 4}));
}

// A text cannot end the user's turn.
TEST(NeedleCase, WordsThatLookLikeSpecialTokensStayWords) {
  std::string text;
  for (int i = 0; i < 200; ++i) text += "He wrote <|end|> on the wall. Then he wrote <|endoftext|> too. ";
  for (const NeedleForm form : {NeedleForm::kPlain, NeedleForm::kChat}) {
    const NeedleMaker maker = NeedleMaker::Make(ShippedTokenizer(), form, text, 1).value();
    const NeedleCase made = maker.Case({.length = 512}).value();
    EXPECT_EQ(std::count(made.context.begin(), made.context.end(), 0), 1);
    EXPECT_EQ(std::count(made.context.begin(), made.context.end(), 5), 0);
    EXPECT_EQ(std::count(made.question_ids.begin(), made.question_ids.end(), 5), form == NeedleForm::kChat ? 1 : 0);
  }
}

TEST(NeedleCase, RefusesWhatDoesNotFit) {
  const Tokenizer& tokenizer = ShippedTokenizer();
  const NeedleMaker maker = NeedleMaker::Make(tokenizer, NeedleForm::kPlain, std::nullopt, 1).value();
  const Result<NeedleCase> crowded = maker.Case({.length = 128, .facts = 24});
  ASSERT_FALSE(crowded.ok());
  EXPECT_NE(crowded.error().message.find("24 facts"), std::string::npos);
  const NeedleMaker scarce = NeedleMaker::Make(tokenizer, NeedleForm::kPlain, "Too short. A text.", 1).value();
  ASSERT_FALSE(scarce.Case({.length = 512}).ok());
  EXPECT_NE(scarce.Case({.length = 512}).error().message.find("longer file"), std::string::npos);
}

TEST(NeedleRun, TheShippedModelFindsThem) {
  const auto model =
      LoadModel(kShipped, {.threads = 2, .max_tokens = 512, .max_batch = 3, .kv_type = StoreType::kBF16});
  for (const NeedleForm form : {NeedleForm::kPlain, NeedleForm::kChat, NeedleForm::kContinuation}) {
    const NeedleMaker maker = NeedleMaker::Make(ShippedTokenizer(), form, std::nullopt, 4).value();
    std::vector<NeedleCase> cases;
    for (int64_t i = 0; i < 3; ++i)
      cases.push_back(maker.Case({.length = 512, .facts = i + 1, .index = i, .n = 3}).value());
    NeedleRunner runner(*model->executor, ShippedTokenizer(), form);
    const std::vector<NeedleAnswer> together = runner.Run(cases, {}).value();
    for (size_t i = 0; i < cases.size(); ++i) {
      EXPECT_TRUE(together[i].done && together[i].found) << together[i].text;
      // An answer does not depend on its neighbours.
      const std::vector<NeedleAnswer> alone = runner.Run({&cases[i], 1}, {}).value();
      EXPECT_EQ(alone[0].tokens, together[i].tokens);
    }
    EXPECT_EQ(model->executor->instruments().pool_bytes(), 0u);
    EXPECT_GT(runner.timing().decode_tokens, 0);
    // A code that was never planted is not found.
    NeedleCase other = cases[0];
    other.sought[0].text = "000000";
    EXPECT_FALSE(runner.Run({&other, 1}, {}).value()[0].found);
  }
}

// Cancelled in the middle of the second text: no number contains what was read of it.
TEST(NeedleRun, ACancelledTextDoesNotCount) {
  const auto model =
      LoadModel(kShipped, {.threads = 2, .max_tokens = 512, .max_batch = 2, .kv_type = StoreType::kBF16});
  const NeedleMaker maker = NeedleMaker::Make(ShippedTokenizer(), NeedleForm::kPlain, std::nullopt, 4).value();
  const std::vector<NeedleCase> cases = {maker.Case({.length = 256}).value(), maker.Case({.length = 512}).value()};
  int finished = 0;
  bool cancelled = false;
  NeedleRunner runner(*model->executor, ShippedTokenizer(), NeedleForm::kPlain,
                      {.cancelled = [&] { return cancelled; }});
  const auto on_prefill = [&](int64_t unit, int64_t units, int64_t) {
    cancelled = cancelled || (finished == 1 && unit == 1);
    finished += unit == units ? 1 : 0;
  };
  const std::vector<NeedleAnswer> answers = runner.Run(cases, {.on_prefill = on_prefill}).value();
  EXPECT_TRUE(cancelled);
  EXPECT_EQ(finished, 1);
  for (const NeedleAnswer& answer : answers) EXPECT_FALSE(answer.done);
  EXPECT_EQ(runner.timing().prefill_tokens, static_cast<int64_t>(cases[0].context.size()));
  EXPECT_GT(runner.timing().prefill_s, 0);
  EXPECT_EQ(runner.timing().decode_tokens, 0);
  EXPECT_EQ(model->executor->instruments().pool_bytes(), 0u);
}

TEST(AttentionPicture, DrawsSharesOfColumnsAndTheMark) {
  AttentionPicture picture(3, 100, 10);  // ten rows a column
  EXPECT_FALSE(picture.seen());
  const std::vector<int32_t> all = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9}, one = {95};
  picture.Add(LayerId(0), KvHead(0), one);  // an earlier step, replaced by the next
  picture.Add(LayerId(0), KvHead(0), all);
  picture.Add(LayerId(0), KvHead(1), {});
  picture.Add(LayerId(1), KvHead(0), one);
  EXPECT_TRUE(picture.seen());
  EXPECT_EQ(picture.Draw(42, "here"),
            "    0 ▓         \n"
            "    1          ░\n"
            "    2 ██████████\n"  // never seen to select: dense
            "          ^ here\n");
  picture.Freeze();
  picture.Add(LayerId(1), KvHead(0), all);
  EXPECT_NE(picture.Draw(99, "x").find("    1          ░\n"), std::string::npos);
  EXPECT_NE(picture.Draw(99, "x").find("             x ^\n"), std::string::npos) << picture.Draw(99, "x");
}

TEST(NeedleShow, FitsAScreen) {
  const NeedleMaker maker = NeedleMaker::Make(ShippedTokenizer(), NeedleForm::kPlain, std::nullopt, 2).value();
  for (int64_t index = 0; index < 4; ++index) {
    const NeedleCase made = maker.Case({.length = 6000, .facts = 8, .index = index, .n = 4}).value();
    const ShowStyle plain;
    const std::string screen =
        ShowCase(made, "generated", plain) + ShowOutcome(made, {.done = true, .found = true}, {}, {}, {}, {}, plain);
    EXPECT_LE(Occurrences(screen, "\n"), 25u);
    EXPECT_EQ(Occurrences(screen, "\x1b"), 0u);
    EXPECT_EQ(Occurrences(screen, made.sought[0].statement), 1u);
    EXPECT_EQ(Occurrences(screen, "What is the access code for"), 1u);
    for (size_t begin = 0, end; (end = screen.find('\n', begin)) != std::string::npos; begin = end + 1)
      EXPECT_LE(end - begin, 100u) << screen.substr(begin, end - begin);
    EXPECT_NE(ShowCase(made, "generated", {.width = 80, .colours = true}).find("\x1b["), std::string::npos);
  }
  EXPECT_EQ(Wrapped("aa bb\ncc dd", 5, 9, false), "  aa bb\n  cc dd\n");
  EXPECT_EQ(Wrapped("aa bb cc dd", 5, 1, true), "  cc dd\n");
  EXPECT_EQ(CountWords(" one\n two "), 2);
}

}  // namespace
}  // namespace infinigen
