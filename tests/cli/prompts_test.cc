#include "cli/prompts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace infinigen {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::string ErrorOf(std::string_view text) {
  const Result<std::vector<PromptSpec>> prompts = ParsePromptLines(text, "p.jsonl");
  return prompts.ok() ? "" : prompts.error().message;
}

TEST(PromptLines, EveryForm) {
  const auto prompts = ParsePromptLines(
      "\"plain \\u00e9\"\n"
      "\n"
      "[1, 2,3]\r\n"
      "{\"prompt\": \"text\", \"n\": 7}\n"
      "  {\"seed\": 18446744, \"prompt_ids\": [0]}",
      "p.jsonl");
  ASSERT_TRUE(prompts.ok()) << prompts.error().message;
  ASSERT_EQ(prompts->size(), 4u);
  const std::vector<PromptSpec>& p = *prompts;
  EXPECT_EQ(p[0].text, "plain \xc3\xa9");
  EXPECT_FALSE(p[0].has_ids);
  EXPECT_EQ(p[0].line, 1);
  EXPECT_TRUE(p[1].has_ids);
  EXPECT_THAT(p[1].ids, ElementsAre(1, 2, 3));
  EXPECT_EQ(p[1].line, 3) << "blank lines are counted";
  EXPECT_EQ(p[2].text, "text");
  EXPECT_EQ(p[2].n, 7);
  EXPECT_EQ(p[2].seed, std::nullopt);
  EXPECT_THAT(p[3].ids, ElementsAre(0));
  EXPECT_EQ(p[3].seed, 18446744u);
  EXPECT_EQ(p[3].line, 5);
}

TEST(PromptLines, EmptyPromptsAreTheTokenizersBusiness) {
  const auto prompts = ParsePromptLines("\"\"\n[]\n", "p.jsonl");
  ASSERT_TRUE(prompts.ok());
  EXPECT_EQ((*prompts)[0].text, "");
  EXPECT_TRUE((*prompts)[1].has_ids);
}

TEST(PromptLines, ErrorsNameFileLineAndReason) {
  EXPECT_EQ(ErrorOf(""), "p.jsonl: contains no prompt");
  EXPECT_EQ(ErrorOf("\n \n"), "p.jsonl: contains no prompt");
  EXPECT_THAT(ErrorOf("\"a\"\n{\"prompt\": \"b\", \"temperature\": 1}"),
              HasSubstr("p.jsonl:2: unknown field 'temperature'"));
  EXPECT_THAT(ErrorOf("{\"prompt\": \"a\", \"prompt_ids\": [1]}"), HasSubstr("either \"prompt\" or \"prompt_ids\""));
  EXPECT_THAT(ErrorOf("{}"), HasSubstr("either \"prompt\" or \"prompt_ids\""));
  EXPECT_THAT(ErrorOf("{\"prompt\": \"a\", \"prompt\": \"b\"}"), HasSubstr("given twice"));
  EXPECT_THAT(ErrorOf("{\"prompt\": [1]}"), HasSubstr("a list where text is expected"));
  EXPECT_THAT(ErrorOf("{\"prompt_ids\": \"1\"}"), HasSubstr("text where a list of token ids is expected"));
  EXPECT_THAT(ErrorOf("[1, -2]"), HasSubstr("the id -2 where a token id is expected"));
  EXPECT_THAT(ErrorOf("[1, 2147483648]"), HasSubstr("the id 2147483648"));
  EXPECT_THAT(ErrorOf("[1.5]"), HasSubstr("the number 1.5"));
  EXPECT_THAT(ErrorOf("[[1]]"), HasSubstr("a list where a token id"));
  EXPECT_THAT(ErrorOf("[1"), HasSubstr("p.jsonl:1: invalid JSON at column"));
  EXPECT_THAT(ErrorOf("\"a\" \"b\""), HasSubstr("invalid JSON"));
  EXPECT_THAT(ErrorOf("\"\xff\""), HasSubstr("invalid JSON")) << "text must be UTF-8";
  EXPECT_THAT(ErrorOf("7"), HasSubstr("a number where text, a list of token ids or an object is expected"));
  EXPECT_THAT(ErrorOf("null"), HasSubstr("null where"));
  EXPECT_THAT(ErrorOf("{\"prompt\": \"a\", \"n\": -2}"), HasSubstr("\"n\" is -2"));
  EXPECT_THAT(ErrorOf("{\"prompt\": \"a\", \"seed\": -1}"), HasSubstr("\"seed\" is -1"));
}

TEST(PromptLines, ForeignNamesAreQuotedEscapedAndShort) {
  const std::string error = ErrorOf("{\"" + std::string(63, 'x') + "\u6f22\\n" + std::string(1000, 'y') + "\": 1}");
  EXPECT_EQ(error,
            "p.jsonl:1: unknown field '" + std::string(63, 'x') + "…', known are prompt, prompt_ids, n and seed");
  EXPECT_THAT(ErrorOf("{\"a\\n\\u001b\": 1}"), HasSubstr("unknown field 'a\\x0a\\x1b', known"));
}

TEST(PromptLines, BytesBehindAZeroByteAreNotIgnored) {
  EXPECT_EQ(ErrorOf(std::string("\"a\"\0b", 5)), "p.jsonl:1: invalid JSON at column 4");
}

TEST(PromptLines, DepthAndCountAreBounded) {
  EXPECT_THAT(ErrorOf(std::string(1'000'000, '[')), HasSubstr("a list where a token id"));
  std::string many;
  for (int i = 0; i < 100'001; ++i) many += "\"\"\n";
  EXPECT_THAT(ErrorOf(many), HasSubstr("p.jsonl:100001: more than 100000 prompts"));
}

}  // namespace
}  // namespace infinigen
