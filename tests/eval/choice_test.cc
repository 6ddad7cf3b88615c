// Multiple choice: what files come to, how prompts are made and cut, and transformers' scores.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "eval/choice_run.h"
#include "eval/choice_task.h"
#include "golden/golden_run.h"
#include "sanitized.h"

namespace infinigen {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

const std::string kTree = INFINIGEN_TEST_DATA "/..";
const std::string kOwn = INFINIGEN_TEST_DATA "/golden/choice";

ChoiceFile Parsed(std::string_view text) {
  Result<ChoiceFile> file = ParseChoices(text, "q");
  EXPECT_TRUE(file.ok()) << (file.ok() ? "" : file.error().message);
  return file.ok() ? std::move(file).value() : ChoiceFile{};
}

std::string Refusal(std::string_view text, const std::optional<ChoiceLabels>& labels = std::nullopt) {
  const Result<ChoiceFile> file = ParseChoices(text, "q", labels);
  return file.ok() ? "" : file.error().message;
}

TEST(ChoiceLines, EveryForm) {
  const ChoiceFile copa = Parsed(
      R"({"premise": " It rained… ", "choice1": "The Grass grew.", "choice2": "é", "question": "effect", "label": 1})"
      "\n\n"
      R"({"premise": "It rained.", "choice1": "A", "choice2": "B", "question": "cause", "label": 0, "idx": 3})");
  EXPECT_EQ(copa.task, "copa");
  ASSERT_EQ(copa.items.size(), 2u);
  EXPECT_THAT(copa.items[0].contexts, ElementsAre("It rained therefore"));
  EXPECT_THAT(copa.items[0].endings, ElementsAre("the Grass grew.", "é"));
  EXPECT_EQ(copa.items[0].answer, 1u);
  EXPECT_THAT(copa.items[1].contexts, ElementsAre("It rained because"));
  EXPECT_EQ(copa.items[1].line, 3);

  const ChoiceFile piqa = Parsed(R"({"goal": "open it", "sol1": "Turn the key.", "sol2": "no ", "label": 0})");
  EXPECT_EQ(piqa.task, "piqa");
  EXPECT_THAT(piqa.items[0].contexts, ElementsAre("Question: open it\nAnswer:"));
  EXPECT_THAT(piqa.items[0].endings, ElementsAre("Turn the key.", "no ")) << "as the file has it";

  const ChoiceFile winogrande =
      Parsed(R"({"sentence": "The _ is by the _ sea. ", "option1": "ship", "option2": "town", "answer": "2"})");
  EXPECT_EQ(winogrande.task, "winogrande");
  EXPECT_THAT(winogrande.items[0].contexts, ElementsAre("The ship", "The town"));
  EXPECT_THAT(winogrande.items[0].endings, ElementsAre("is by the _ sea."));
  EXPECT_EQ(winogrande.items[0].answer, 1u);
  EXPECT_EQ(winogrande.items[0].count(), 2u);

  const ChoiceFile table = Parsed(
      "ID\tQuestion Stem\tChoices\tComplete Question\tAnswer Key\r\n"
      "1\tIce is\t(A) cold (so) (B) 2 (C) (D) hot (D) wet\tx\tC\r\n");
  EXPECT_EQ(table.task, "openbookqa");
  EXPECT_THAT(table.items[0].contexts, ElementsAre("Ice is"));
  EXPECT_THAT(table.items[0].endings, ElementsAre("cold (so)", "2", "(D) hot", "wet"));
  EXPECT_EQ(table.items[0].answer, 2u);

  const ChoiceFile plain = Parsed(R"({"query": "", "choices": ["a", "b", "c"], "answer": 2, "task": "mine"})");
  EXPECT_EQ(plain.task, "mine");
  EXPECT_THAT(plain.items[0].contexts, ElementsAre(""));
  EXPECT_EQ(plain.items[0].answer, 2u);
}

TEST(ChoiceLines, ErrorsNameFileLineAndReason) {
  EXPECT_EQ(Refusal(" \n"), "q: contains no question");
  EXPECT_EQ(Refusal("ID\tQuestion Stem\tChoices\tAnswer Key\n"), "q: contains no question");
  EXPECT_THAT(Refusal("\nText"), HasSubstr("q:2: the first line is neither a JSON object"));
  EXPECT_EQ(Refusal("{\"choices\": "), "q:1: invalid JSON at column 13");
  EXPECT_THAT(Refusal("{\"a\": 1}"), HasSubstr("q:1: unknown format"));
  const std::string good = R"({"context": "a", "choices": ["b", "c"], "answer": 0})";
  EXPECT_EQ(Refusal(good + "\n[1]"), "q:2: the line must be a JSON object");
  EXPECT_EQ(Refusal(good + "\n" + R"({"choices": ["b", "c"], "answer": 0})"), "q:2: field 'context' is missing");
  EXPECT_EQ(Refusal(R"({"context": "a", "query": "b", "choices": ["b", "c"], "answer": 0})"),
            "q:1: \"context\" and \"query\" are the same field; give only one");
  EXPECT_EQ(Refusal(R"({"context": 1, "choices": ["b", "c"], "answer": 0})"), "q:1: field 'context' must be text");
  EXPECT_EQ(Refusal(R"({"context": "a", "choices": ["b"], "answer": 0})"),
            "q:1: field 'choices' must be a list of 2 to 64 texts");
  EXPECT_EQ(Refusal(R"({"context": "a", "choices": ["b", " "], "answer": 0})"), "q:1: field 'choices' is empty");
  EXPECT_EQ(Refusal(R"({"context": "a", "choices": ["b", "c"], "answer": 2})"),
            "q:1: the answer 2 is not one of the 2 choices");
  EXPECT_EQ(Refusal(R"({"context": "a", "choices": ["b", "c"], "answer": 1.5})"),
            "q:1: field 'answer' must be the number of a choice");
  EXPECT_EQ(Refusal(R"({"context": "a", "choices": ["b", "c"]})"), "q:1: the right answer is missing");
  EXPECT_EQ(Refusal(R"({"sentence": "no blank", "option1": "a", "option2": "b", "answer": "1"})"),
            "q:1: field 'sentence' has no blank (_)");
  EXPECT_EQ(Refusal(R"({"sentence": "a _ b", "option1": "a", "option2": "b", "answer": "0"})"),
            "q:1: the answer 0 is not one of the 2 choices");
  EXPECT_EQ(Refusal(R"({"premise": "a.", "choice1": "a", "choice2": "b", "question": "why", "label": 0})"),
            "q:1: field 'question' must be cause or effect");
  EXPECT_EQ(Refusal("Question Stem\tChoices\tAnswer Key\nx\t(A) a\tA"),
            "q:2: the choices must look like \"(A) one (B) another\"");
  EXPECT_EQ(Refusal("Question Stem\tChoices\tAnswer Key\nx"), "q:2: the line has 1 columns, fewer than the first line");
  EXPECT_EQ(Refusal("Question Stem\tChoices\tAnswer Key\n\xff\t(A) a (B) b\tA"), "q:2: invalid UTF-8 at byte 0");
  EXPECT_THAT(Refusal("{\"choices\": \"" + std::string(1 << 20, 'x') + "\"}"), HasSubstr("the limit is 1048576"));
  EXPECT_EQ(Refusal("{\"choices\": " + std::string(100, '[') + std::string(100, ']') + "}"),
            "q:1: JSON nested deeper than 64 levels at byte 75");
  EXPECT_EQ(Refusal("{\"choices\": 1e999}"), "q:1: a number is out of range");
}

TEST(ChoiceLines, LabelsOfTheirOwn) {
  const std::string questions = R"({"goal": "g", "sol1": "a", "sol2": "b"})"
                                "\n"
                                R"({"goal": "g", "sol1": "a", "sol2": "b", "label": 1})";
  const auto with = [&](std::string_view labels) { return Refusal(questions, ParseLabels(labels, "l").value()); };
  EXPECT_EQ(with("0\n1\n"), "");
  EXPECT_EQ(ParseChoices(questions, "q", ParseLabels("1\n1", "l").value()).value().items[0].answer, 1u);
  EXPECT_EQ(with("0\n0\n"), "q:2: the answer is 1, but in l it is 0");
  EXPECT_EQ(with("0\n"), "l: has only 1 labels, none for the question at q:2");
  EXPECT_EQ(with("0\n1\n1\n"), "l: has 3 labels for the 2 questions of q");
  EXPECT_EQ(ParseLabels("0\nA\n", "l").error().message, "l:2: 'A' is not a label; each line must be one number");
  EXPECT_EQ(ParseLabels("\x1b[2J\xff", "l").error().message,
            "l:1: '\\x1b[2J\\xff' is not a label; each line must be one number");
}

// A task from files, read as they are.
Result<ChoiceTask> Load(const std::string& path, bool examples) {
  return LoadChoiceTask(path, examples, [](const std::string& name) -> Result<std::string> {
    std::ifstream file(name, std::ios::binary);
    if (!file) return IoError("{}: cannot open", name);
    return std::string(std::istreambuf_iterator<char>(file), {});
  });
}

TEST(ChoiceTask, DirectoriesTellTheirSplits) {
  const ChoiceTask book = Load(kOwn + "/openbookqa", true).value();
  EXPECT_EQ(book.name, "openbookqa");
  EXPECT_EQ(book.path, kOwn + "/openbookqa/test.tsv");
  EXPECT_EQ(book.examples_path, kOwn + "/openbookqa/train.tsv");
  EXPECT_EQ(book.items.size(), 7u);
  EXPECT_EQ(book.pool().size(), 5u);
  const ChoiceTask copa = Load(kOwn + "/copa/", true).value();
  EXPECT_EQ(copa.path, kOwn + "/copa/own_val_8.jsonl");
  EXPECT_EQ(copa.pool().size(), 6u);
  const ChoiceTask piqa = Load(kOwn + "/piqa", true).value();
  EXPECT_EQ(piqa.examples_path, "");
  EXPECT_EQ(&piqa.pool(), &piqa.items);
  EXPECT_EQ(piqa.items[2].answer, 1u) << "of dev-labels.lst";
  EXPECT_EQ(Load(kOwn + "/plain.jsonl", true).value().name, "own questions");
  EXPECT_THAT(Load(kOwn, false).error().message, HasSubstr("has no file of questions"));
  EXPECT_THAT(Load(kOwn + "/none.jsonl", false).error().message, HasSubstr("none.jsonl: cannot open"));
}

TEST(ChoicePrompt, ExamplesAreDrawnBySeedAndIndex) {
  std::set<std::vector<size_t>> seen;
  for (const uint64_t seed : {1, 2})
    for (size_t index = 0; index < 6; ++index) {
      const std::vector<size_t> drawn = DrawExamples(seed, index, 6, 5, /*from_itself=*/true);
      EXPECT_EQ(drawn, DrawExamples(seed, index, 6, 5, true));
      const std::set<size_t> different(drawn.begin(), drawn.end());
      EXPECT_EQ(different.size(), 5u);
      EXPECT_FALSE(different.contains(index));
      EXPECT_LT(*different.rbegin(), 6u);
      seen.insert(drawn);
    }
  EXPECT_EQ(seen.size(), 12u);
  EXPECT_EQ(DrawExamples(1, 3, 4, 4, /*from_itself=*/false).size(), 4u);
}

TEST(ChoicePrompt, TextOfExamples) {
  const ChoiceTask task = Load(kOwn + "/winogrande", true).value();
  const auto tokenizer = Tokenizer::Load(INFINIGEN_TEST_DATA "/text/data/byte_level").value();
  const ChoiceMaker maker = ChoiceMaker::Make(task, *tokenizer, 2, 1).value();
  const std::vector<size_t> drawn = DrawExamples(1, 0, 6, 2, true);
  std::string expected;
  for (const size_t one : drawn) {
    const ChoiceItem& item = task.items[one];
    expected += item.contexts[item.answer] + " " + item.endings[0] + "\n\n";
  }
  EXPECT_EQ(maker.Examples(0), expected);
  EXPECT_THAT(ChoiceMaker::Make(task, *tokenizer, 6, 1).error().message, HasSubstr("has only 5 questions"));
}

// tests/golden/choice/golden.json, made by tools/choice_reference.py from questions of our own.
nlohmann::json Golden() {
  std::ifstream file(kOwn + "/golden.json");
  return nlohmann::json::parse(file);
}

// The cut into tokens, the scores and both choices are those of transformers, for every form, with and without
// examples.
TEST(EvalChoice, AgreesWithTransformersOnTheShippedModel) {
  if (kSanitized) GTEST_SKIP() << "the shipped model is the release build's";
  const std::string directory = kTree + "/models/infinigen-mini";
  const auto tokenizer = Tokenizer::Load(directory).value();
  const auto model =
      LoadModel(directory, {.threads = 2, .max_tokens = 512, .max_batch = 1, .kv_type = StoreType::kF32});
  ChoiceRunner runner(*model->executor, ChoiceMode::kBatched);
  const nlohmann::json golden = Golden();
  ASSERT_EQ(golden["tasks"].size(), 10u);
  size_t asked = 0;
  for (const nlohmann::json& expected : golden["tasks"]) {
    const ChoiceTask task = Load(kOwn + "/" + expected["task"].get<std::string>(), true).value();
    const ChoiceMaker maker = ChoiceMaker::Make(task, *tokenizer, expected["shots"], expected["seed"]).value();
    ASSERT_EQ(expected["questions"].size(), task.items.size());
    for (size_t i = 0; i < task.items.size(); ++i, ++asked) {
      const nlohmann::json& want = expected["questions"][i];
      const ChoiceQuestion question = maker.Question(i).value();
      EXPECT_EQ(question.answer, want["answer"].get<size_t>());
      const std::vector<double> scores = runner.Score(question).value().value();
      ASSERT_EQ(scores.size(), want["scores"].size());
      for (size_t c = 0; c < scores.size(); ++c)
        EXPECT_NEAR(scores[c], want["scores"][c].get<double>(), 2e-3) << task.name << " " << i << " choice " << c;
      const auto best = std::max_element(scores.begin(), scores.end()) - scores.begin();
      EXPECT_EQ(best, want["choice"].get<ptrdiff_t>()) << task.name << " " << i;
    }
  }
  EXPECT_EQ(asked, 66u);
  EXPECT_EQ(model->executor->instruments().pool_bytes(), 0u) << "every question gave its rows back";
}

// Token ids on random models; in bulk and by steps, in batches of any size, the same bits.
TEST(EvalChoice, AgreesWithTransformersOnRandomModels) {
  const nlohmann::json golden = Golden();
  for (const nlohmann::json& entry : golden["models"]) {
    const std::string directory = INFINIGEN_TEST_DATA "/golden/models/" + entry["model"].get<std::string>();
    const auto model =
        LoadModel(directory, {.threads = 2, .max_tokens = 128, .max_batch = 3, .kv_type = StoreType::kF32});
    ChoiceRunner bulk(*model->executor, ChoiceMode::kBatched), steps(*model->executor, ChoiceMode::kStep);
    ASSERT_EQ(entry["questions"].size(), 12u);
    for (const nlohmann::json& expected : entry["questions"]) {
      ChoiceQuestion question;
      for (size_t c = 0; c < expected["scores"].size(); ++c)
        question.choices.push_back({.context = expected["contexts"][c], .ending = expected["endings"][c]});
      const std::vector<double> scores = bulk.Score(question).value().value();
      for (size_t c = 0; c < scores.size(); ++c) {
        const double want = expected["scores"][c];
        EXPECT_NEAR(scores[c], want, 1e-5 * std::abs(want)) << entry["model"];
      }
      EXPECT_EQ(steps.Score(question).value().value(), scores);
    }
    EXPECT_GT(steps.timing().decode_tokens, 0);
    EXPECT_EQ(model->executor->instruments().pool_bytes(), 0u);
  }
}

// The published tasks, where they are: every file is read to its end, and its counts are the published ones.
TEST(EvalChoice, PublishedTasks) {
  const char* data = std::getenv("INFINIGEN_DATA");
  const std::string tasks = (data != nullptr ? std::string(data) : kTree + "/../shared/corpus") + "/eval/tasks";
  if (!std::filesystem::is_directory(tasks)) GTEST_SKIP() << "no tasks in $INFINIGEN_DATA or ../shared/corpus";
  struct Published {
    const char* name;
    size_t questions, examples, choices;
  };
  for (const Published& want : {Published{"copa", 100, 400, 2}, Published{"openbookqa", 500, 4957, 4},
                                Published{"winogrande", 1267, 1267, 2}, Published{"piqa", 1838, 1838, 2}}) {
    const Result<ChoiceTask> task = Load(tasks + "/" + want.name, true);
    ASSERT_TRUE(task.ok()) << task.error().message;
    EXPECT_EQ(task->name, want.name);
    EXPECT_EQ(task->items.size(), want.questions);
    EXPECT_EQ(task->pool().size(), want.examples);
    size_t first = 0;
    for (const ChoiceItem& item : task->items) {
      EXPECT_EQ(item.count(), want.choices);
      first += item.answer == 0 ? 1 : 0;
    }
    EXPECT_GT(first, want.questions / want.choices / 2) << "answers are spread over the choices";
    EXPECT_LT(first, want.questions * 2 / want.choices);
  }
}

}  // namespace
}  // namespace infinigen
