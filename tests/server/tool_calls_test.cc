// Calls of tools in answers, cut into pieces in every way.
#include "server/tool_calls.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace infinigen {
namespace {

// Content, then "name(arguments)" of each call. The answer arrives in pieces of `piece` bytes.
std::string Read(ToolForm form, const std::string& answer, size_t piece, bool forced = false) {
  ToolCallStream stream(form, forced);
  std::string content, calls;
  const auto add = [&](const ToolCallStream::Found& found) {
    content += found.content;
    for (const ToolCall& call : found.calls) calls += "|" + call.name + "(" + call.arguments + ")";
  };
  for (size_t at = 0; at < answer.size(); at += piece) add(stream.Push(answer.substr(at, piece)));
  add(stream.Finish());
  return content + calls;
}

void Expect(ToolForm form, const std::string& answer, const std::string& expected, bool forced = false) {
  for (size_t piece = 1; piece <= answer.size() + 1; ++piece)
    EXPECT_EQ(Read(form, answer, piece, forced), expected) << answer << " by " << piece;
}

TEST(ToolCallsTest, TaggedCallsAreFoundBetweenText) {
  const ToolForm form = ToolForm::kTagged;
  Expect(form, "Just text, 1 < 2 <tool", "Just text, 1 < 2 <tool");
  Expect(form, "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"b\": 1, \"a\": [\"x\"]}}\n</tool_call>",
         R"(|f({"b":1,"a":["x"]}))");
  Expect(form,
         "Let me "
         "see.\n\n<tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call>\n<tool_call>{\"name\":\"g\"}</tool_call>\n",
         "Let me see.|f({})|g({})");
  Expect(form, "<tool_call>{\"name\":\"f\",\"arguments\":{}}", "|f({})");
  Expect(form, "<tool_call>{\"name\":\"f\",\"arguments\":\"{\\\"a\\\":1}\"}</tool_call>", R"(|f({"a":1}))");
}

TEST(ToolCallsTest, WhatIsNoCallStaysText) {
  const ToolForm form = ToolForm::kTagged;
  Expect(form, "<tool_call>call f</tool_call> done", "<tool_call>call f</tool_call> done");
  Expect(form, "<tool_call>{\"name\":7}</tool_call>", "<tool_call>{\"name\":7}</tool_call>");
  Expect(form, "<tool_call>{\"name\":\"f\",\"arguments\":[]}</tool_call>",
         "<tool_call>{\"name\":\"f\",\"arguments\":[]}</tool_call>");
  Expect(form, "a <tool_call>{\"name", "a <tool_call>{\"name");
  Expect(form, "  spaces alone  \n", "  spaces alone  \n");
  Expect(ToolForm::kObject, "{\"a\": 1}", "{\"a\": 1}");
  Expect(ToolForm::kList, "[1, 2] are numbers", "[1, 2] are numbers");
  Expect(ToolForm::kNone, "<tool_call>{\"name\":\"f\"}</tool_call>", "<tool_call>{\"name\":\"f\"}</tool_call>");
  const std::string deep = "<tool_call>{\"name\":\"f\",\"arguments\":{\"a\":" + std::string(5000, '[') + "</tool_call>";
  EXPECT_EQ(Read(form, deep, 100), deep);
}

TEST(ToolCallsTest, OtherFamilies) {
  Expect(ToolForm::kList, " [{\"name\": \"f\", \"arguments\": {\"a\": 1}}, {\"name\": \"g\", \"arguments\": {}}]",
         R"(|f({"a":1})|g({}))");
  Expect(ToolForm::kList, "[TOOL_CALLS] [{\"name\": \"f\", \"arguments\": {}}]", "|f({})");
  Expect(ToolForm::kList, "Hello [x]", "Hello [x]");
  Expect(ToolForm::kObject, "{\"name\": \"f\", \"parameters\": {\"a\": null}}", R"(|f({"a":null}))");
  Expect(ToolForm::kObject, "<|python_tag|>{\"name\": \"f\", \"parameters\": {}}", "|f({})");
  Expect(ToolForm::kTagged, "{\"name\": \"f\", \"arguments\": {}}", "|f({})", /*forced=*/true);
}

TEST(ToolCallsTest, TemplatesTellTheForm) {
  EXPECT_EQ(FormOfTemplate("{% if tools %}<tool_call>"), ToolForm::kTagged);
  EXPECT_EQ(FormOfTemplate("{% if tools %}[TOOL_CALLS]"), ToolForm::kList);
  EXPECT_EQ(FormOfTemplate("{% if tools %}{\"name\": n, \"parameters\": p}<|eot_id|>"), ToolForm::kObject);
  EXPECT_EQ(FormOfTemplate("{% if tools %}<tool_call><function=f>"), ToolForm::kNone);
  EXPECT_EQ(FormOfTemplate("<tool_call>"), ToolForm::kNone);
}

}  // namespace
}  // namespace infinigen
