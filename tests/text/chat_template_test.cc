#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "text/chat_prompt.h"

namespace infinigen {
namespace {

using nlohmann::json;

// 6 July 2024, 15:04:09, the time that was used for the golden file.
std::tm StoppedClock() {
  std::tm out = {};
  out.tm_year = 124;
  out.tm_mon = 6;
  out.tm_mday = 6;
  out.tm_hour = 15;
  out.tm_min = 4;
  out.tm_sec = 9;
  out.tm_wday = 6;
  out.tm_yday = 187;
  return out;
}

ChatInput InputOf(const json& given) {
  ChatInput out;
  for (const json& message : given["messages"]) out.messages.push_back({message["role"], message["content"]});
  out.bos_token = given["bos_token"];
  out.eos_token = given["eos_token"];
  out.add_generation_prompt = given["add_generation_prompt"];
  for (const auto& [name, value] : given["variables"].items()) {
    if (value.is_boolean()) {
      out.variables[name] = value.get<bool>();
    } else {
      out.variables[name] = value.get<std::string>();
    }
  }
  out.now = StoppedClock();
  return out;
}

ChatInput Conversation() {
  ChatInput out;
  out.messages = {{"user", "Hello"}, {"assistant", "Hi"}};
  out.bos_token = "<s>";
  out.eos_token = "</s>";
  out.now = StoppedClock();
  return out;
}

Result<std::string> ParseAndRender(std::string_view source, const ChatInput& input) {
  Result<ChatTemplate> parsed = ChatTemplate::Parse(source);
  if (!parsed.ok()) return parsed.error();
  return parsed->Render(input);
}

std::string Shown(const Result<std::string>& result) {
  return result.ok() ? "text: " + *result : "error: " + result.error().message;
}

// Every case gives the same text or error as transformers.
TEST(ChatTemplateGolden, EqualsTransformers) {
  std::ifstream file(std::string(INFINIGEN_TEST_DATA) + "/text/data/chat_templates.json");
  ASSERT_TRUE(file.good());
  const json golden = json::parse(file);
  std::vector<ChatInput> inputs;
  for (const json& given : golden["inputs"]) inputs.push_back(InputOf(given));
  ASSERT_GT(golden["cases"].size(), 9000u);
  int failures = 0;
  for (const json& one : golden["cases"]) {
    const json& source = one[1].is_string() ? one[1] : golden["templates"][one[1].get<size_t>()];
    const std::string outcome = one[3];
    const std::string text = one[4];
    const Result<std::string> result = ParseAndRender(source.get<std::string>(), inputs[one[2].get<size_t>()]);
    bool same = result.ok() == (outcome == "text");
    if (same && outcome == "text") same = *result == text;
    if (same && outcome == "raised") same = result.error().message == text;
    if (same && outcome == "undefined") same = result.error().message.ends_with(": " + text);
    if (same) continue;
    ADD_FAILURE() << one[0] << " " << source << "\n  expected " << outcome << ": " << one[4] << "\n  got "
                  << json(Shown(result)).dump(-1, ' ', false, json::error_handler_t::replace);
    if (++failures > 50) FAIL() << "and more";
  }
}

TEST(ChatTemplateRender, DateAndVariables) {
  ChatInput input = Conversation();
  EXPECT_EQ(*ParseAndRender("{{ date_string is defined }}", input), "False");
  EXPECT_EQ(*ParseAndRender("{{ strftime_now('%d %b %Y') }}", input), "06 Jul 2024");
  input.date_string = "1 May";
  input.variables["mode"] = "fast";
  input.variables["thinking"] = true;
  input.variables["bos_token"] = "<B>";
  EXPECT_EQ(*ParseAndRender("{{ date_string }} {{ mode }} {{ thinking is true }} {{ bos_token }}", input),
            "1 May fast True <B>");
  input.now.reset();
  const Result<std::string> year = ParseAndRender("{{ strftime_now('%Y') }}", input);
  ASSERT_TRUE(year.ok());
  EXPECT_GE(std::stoi(*year), 2024);
}

// The limits grow with the input, so that a long conversation and a long message render.
TEST(ChatTemplateLimits, LongConversationsRender) {
  const char* source =
      "{% for m in messages %}{% set content = '<' + m.role + '>' + m['content'] | trim + '</>' %}"
      "{% if loop.index0 == 0 %}{% set content = bos_token + content %}{% endif %}{{ content }}{% endfor %}";
  ChatInput input = Conversation();
  input.messages.assign(20'000, {"user", "Hello"});
  const Result<std::string> many = ParseAndRender(source, input);
  ASSERT_TRUE(many.ok()) << many.error().message;
  EXPECT_EQ(many->size(), 3 + 20'000 * std::string("<user>Hello</>").size());
  input.messages.assign(2, {"user", std::string(20'000'000, 'x')});
  const Result<std::string> large = ParseAndRender(source, input);
  ASSERT_TRUE(large.ok()) << large.error().message;
  EXPECT_EQ(large->size(), 3 + 2 * (20'000'000 + std::string("<user></>").size()));
}

}  // namespace
}  // namespace infinigen
